"""The names that a dead letter's story has are the broker's."""

from penstock.core.dead_letters.letters import UNKNOWN_REASON
from penstock.core.queues import envelope, moves
from penstock.limits import TOPIC_NAME_CHARS_MAX
from penstock.spark.tables import dead_letters as ours


def test_headers_are_named_as_the_broker_names_them() -> None:
    assert ours.STORY == envelope.DEAD_LETTER_HEADERS
    for name in ("ORIGINAL_TOPIC", "ORIGINAL_PARTITION", "ORIGINAL_OFFSET", "ORIGINAL_GROUP", "ATTEMPTS", "LAST_ERROR"):
        assert getattr(ours, name) == getattr(envelope, name)
    assert ours.ROUTED_AT_MS == envelope.ROUTED_AT_MS
    assert ours.UNKNOWN_REASON == UNKNOWN_REASON
    assert ours.REDRIVE_GROUP == moves.REDRIVE_GROUP


def test_dead_letter_topics_are_named_as_in_the_broker() -> None:
    for topic in ("orders", "dlq.orders", "x" * TOPIC_NAME_CHARS_MAX):
        assert ours.dead_letter_topic(topic) == moves.dead_letter_topic(topic)
