"""Queues: leases, what workers report about records, and what is in a queue."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.operations.handling import (
    Cancel,
    Done,
    OnEnd,
    OnItems,
    OpenStream,
    answers,
    begins,
    merges,
    streams,
    with_reason,
)
from penstock.core.operations.rights import may_describe_group, may_describe_topic
from penstock.core.publish import record_id
from penstock.core.security.access import Caller
from penstock.core.security.explaining import worker_refusal
from penstock.errors import PenstockError, Reason
from penstock.operations import queues

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@begins(queues.Lease)
def lease(
    broker: "Broker", asked: queues.Lease, caller: Caller, done: Done[tuple[queues.Delivery, ...]]
) -> Cancel | None:
    """A caller that cancels gets no more leases, nor does one that loses the right to them while it waits."""

    def begin(answer: Done[tuple[queues.Delivery, ...]]) -> Cancel:
        def leased(deliveries: Sequence[queues.Delivery]) -> None:
            answer(tuple(deliveries))

        return broker.queues.lease(asked, leased)

    return begin(done) if asked.wait_ms == 0 else broker.door.streams.wait(asked, caller, done, begin)


@streams(queues.Consume)
def consume(
    broker: "Broker",
    asked: queues.Consume,
    _: Caller,
    on_items: OnItems[queues.Delivery],
    on_end: OnEnd,
) -> OpenStream:
    """A connected worker."""

    def gone(reason: Reason) -> None:
        on_end(PenstockError(reason))

    return broker.queues.attach(asked, on_items, gone)


@begins(queues.Ack)
def ack(broker: "Broker", asked: queues.Ack, _: Caller, done: Done[None]) -> Cancel | None:
    """All of them or none."""
    broker.queues.ack(asked, with_reason(done))
    return None


@begins(queues.AckUpTo)
def ack_up_to(broker: "Broker", asked: queues.AckUpTo, _: Caller, done: Done[None]) -> Cancel | None:
    """Every record that the worker holds, up to this one."""
    broker.queues.ack_up_to(asked, with_reason(done))
    return None


@begins(queues.Nack)
def nack(broker: "Broker", asked: queues.Nack, _: Caller, done: Done[None]) -> Cancel | None:
    """All of them or none."""
    broker.queues.nack(asked, with_reason(done))
    return None


@begins(queues.Extend)
def extend(broker: "Broker", asked: queues.Extend, _: Caller, done: Done[None]) -> Cancel | None:
    """All of them or none."""
    broker.queues.extend(asked, with_reason(done))
    return None


# Looking.


@answers(queues.ListQueues)
def list_queues(broker: "Broker", _: queues.ListQueues, caller: Caller) -> tuple[queues.QueueStatus, ...]:
    """Those that this node coordinates."""
    return tuple(
        queue
        for queue in broker.queues.queues()
        if may_describe_topic(broker, caller, queue.topic) and may_describe_group(broker, caller, queue.group)
    )


@merges(queues.ListQueues)
def merge_queues(_: "Broker", by_node: dict[int, tuple[queues.QueueStatus, ...]]) -> tuple[queues.QueueStatus, ...]:
    """Those of all nodes, by name."""
    found = (queue for found in by_node.values() for queue in found)
    return tuple(sorted(found, key=lambda queue: (queue.topic, queue.group)))


@answers(queues.DescribeQueue)
def describe_queue(broker: "Broker", asked: queues.DescribeQueue, _: Caller) -> queues.QueueStatus:
    """GROUP_ID_NOT_FOUND if the group works no queue on the topic."""
    return broker.queues.status(asked.topic, asked.group)


@answers(queues.PeekQueue)
def peek_queue(broker: "Broker", asked: queues.PeekQueue, _: Caller) -> tuple[queues.PeekedRecord, ...]:
    """Nothing changes."""
    return tuple(broker.queues.peek(asked.topic, asked.group, asked.max_records))


@answers(queues.DescribeStates)
def describe_states(broker: "Broker", asked: queues.DescribeStates, _: Caller) -> queues.KnownStates:
    """As many as fit one answer."""
    return broker.queues.known_states(asked.topic, asked.group, asked.partition, asked.offset)


@answers(queues.ExplainRecord)
def explain_record(broker: "Broker", asked: queues.ExplainRecord, _: Caller) -> queues.Why:
    """In one sentence."""
    if asked.principal is not None:
        refusal = worker_refusal(broker.access, asked.principal, asked.topic, asked.group)
        if refusal is not None:
            name = record_id(asked.topic, asked.partition, asked.offset)
            return queues.Why(queues.WhyState.NOT_ALLOWED, f"{name} is not delivered to {asked.principal}: {refusal}")
    return broker.queues.why(asked.topic, asked.partition, asked.offset, asked.group)
