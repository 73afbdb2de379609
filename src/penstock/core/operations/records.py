"""Records: publish one exactly once by its key, and read them from an offset on."""

from typing import TYPE_CHECKING

from penstock.core.access import Caller
from penstock.core.operations.handling import Cancel, Done, answers, begins
from penstock.core.operations.topics import described
from penstock.core.partitions.reading import read_from, record_bytes
from penstock.core.publish import NewRecord, Placed
from penstock.errors import PenstockError
from penstock.operations import records
from penstock.operations.topics import TopicDescription
from penstock.records.records import Record
from penstock.types import Acks

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@begins(records.PublishOnce)
def publish_once(
    broker: "Broker", asked: records.PublishOnce, caller: Caller, done: Done[records.PublishedOnce]
) -> Cancel | None:
    """A partition whose backlog is over its bound admits no new record."""

    def placed(result: Placed | PenstockError, duplicate: bool) -> None:
        done(result if isinstance(result, PenstockError) else records.PublishedOnce(*result, duplicate=duplicate))

    broker.idempotency.publish_once(
        caller,
        asked.topic,
        NewRecord(asked.key, asked.value, asked.headers, asked.partition),
        Acks.ALL,
        asked.tenant,
        asked.idempotency_key,
        placed,
        admit=broker.backlog.check if broker.backlog.is_on else None,
    )
    return None


@answers(records.FollowTopic)
def follow_topic(broker: "Broker", asked: records.FollowTopic, _: Caller) -> TopicDescription:
    """The caller reads by :class:`~penstock.core.partitions.reading.Tail`."""
    return described(broker.topics.require(asked.topic))


@begins(records.ReadRecords)
def read_records(
    broker: "Broker", asked: records.ReadRecords, caller: Caller, done: Done[tuple[Record, ...]]
) -> Cancel | None:
    """What was acknowledged before the call is waited for, if it could be in the answer."""
    partition = broker.partition(asked.topic, asked.partition)

    def read() -> tuple[Record, ...]:
        offset = max(asked.offset, partition.log.start_offset) if asked.from_start else asked.offset
        if offset >= partition.high_watermark:
            return ()
        found = read_from(partition, offset, asked.max_records, asked.max_bytes)
        broker.meters.gave_out(asked.topic, caller.gateway, len(found), sum(map(record_bytes, found)))
        return tuple(found)

    if asked.offset + asked.max_records <= partition.high_watermark:
        done(read())
        return None

    def settled() -> None:
        try:
            result: tuple[Record, ...] | PenstockError = read()
        except PenstockError as error:
            result = error
        done(result)

    return broker.settling.wait((partition,), settled)
