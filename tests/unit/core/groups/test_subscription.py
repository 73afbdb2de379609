"""What is read of a consumer's own bytes: its topics, or nothing at all."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.groups.subscription import subscribed_topics
from tests.unit.core.groups.world import subscription


def test_the_topics_of_a_consumer_are_read_whatever_follows_them() -> None:
    assert subscribed_topics(subscription("a", "b")) == {"a", "b"}
    assert subscribed_topics(subscription("a", user_data=b"anything")) == {"a"}
    assert subscribed_topics(subscription()) == frozenset()


def test_bytes_that_are_no_subscription_have_no_topics() -> None:
    assert subscribed_topics(b"") is None
    assert subscribed_topics(b"\x00\x01\x7f\xff\xff\xff") is None
    assert subscribed_topics(b"\x00\x01\x00\x00\x00\x01\x00\x09abc") is None
    assert subscribed_topics(b"\x00\x01\x00\x00\x00\x01\x00\x01\xff") is None


@given(st.binary(max_size=40))
def test_any_bytes_are_topics_or_nothing(data) -> None:
    topics = subscribed_topics(data)
    assert topics is None or isinstance(topics, frozenset)
