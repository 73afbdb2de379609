"""The ids under which observers keep their logs: one for each topic, never a topic's, and known by sight."""

from uuid import UUID, uuid4

from penstock.core.cluster.observed import is_observed_id, observed_id


def test_each_topic_has_an_id_of_its_own_that_no_topic_has() -> None:
    topics = [uuid4() for _ in range(100)]
    ids = {observed_id(topic) for topic in topics}
    assert len(ids) == len(topics)
    assert not ids & set(topics)
    assert {each.version for each in ids} == {8}


def test_an_observers_id_is_known_by_sight() -> None:
    topic = UUID("0f0e0d0c-0b0a-4909-8807-060504030201")
    assert observed_id(topic) == UUID("0f0e0d0c-0b0a-8909-8807-060504030201")
    assert is_observed_id(observed_id(topic))
    assert not is_observed_id(topic)
