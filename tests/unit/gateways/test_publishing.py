"""Records of several topics that are published together."""

from functools import partial

from penstock.core.publish import NewRecord, Placed, PublishDone
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.errors import PenstockError, Reason
from penstock.gateways.publishing import publish_by_topic
from penstock.types import Acks, Gateway

CALLER = Caller(ANONYMOUS, Gateway.TCP)


class RecordingPublisher:
    """Refuses topics whose name is not in ``offsets``, and answers the others when it is told to."""

    def __init__(self) -> None:
        self.offsets = {"a": 10, "b": 20}
        self.waiting: list[partial[None]] = []

    def publish(self, _: Caller, topic: str, records: list[NewRecord], acks: Acks, done: PublishDone) -> None:
        assert acks is Acks.ALL
        if topic not in self.offsets:
            raise PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION, topic)
        first = self.offsets[topic]
        self.waiting.append(partial(done, [Placed(0, first + n, 0) for n in range(len(records))]))


def publish(publisher: RecordingPublisher, *topics: str) -> list[list]:
    """What ``done`` was called with."""
    calls: list[list] = []
    publish_by_topic(publisher, CALLER, topics, [NewRecord(None, b"")] * len(topics), calls.append)  # type: ignore[arg-type]
    return calls


def test_results_are_in_the_order_of_the_records() -> None:
    publisher = RecordingPublisher()
    calls = publish(publisher, "b", "a", "none", "b", "a")
    assert len(publisher.waiting) == 2
    publisher.waiting.pop()()
    assert calls == []
    publisher.waiting.pop()()
    ((b0, a0, refused, b1, a1),) = calls
    assert [each.offset for each in (a0, a1, b0, b1)] == [10, 11, 20, 21]
    assert refused.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION


def test_records_of_one_topic_are_one_call() -> None:
    publisher = RecordingPublisher()
    calls = publish(publisher, "a", "a")
    (done,) = publisher.waiting
    done()
    assert [each.offset for each in calls[0]] == [10, 11]


def test_a_topic_that_is_refused_refuses_all_its_records() -> None:
    ((first, second),) = publish(RecordingPublisher(), "none", "none")
    assert first is second
    assert first.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
