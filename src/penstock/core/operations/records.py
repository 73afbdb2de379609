"""Records: publish one exactly once by its key, read them from an offset on, find them by time, and delete them."""

from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.core.operations.handling import Cancel, Done, answers, begins, works
from penstock.core.operations.topics import described
from penstock.core.partitions.delete_records import delete_records
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.reading import read_from, record_bytes
from penstock.core.publish import NewRecord, Placed
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.operations import records
from penstock.operations.records import EpochEnd, FoundOffset
from penstock.operations.topics import TopicDescription
from penstock.records.records import Record
from penstock.types import NO_OFFSET, Acks

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@begins(records.PublishOnce)
def publish_once(
    broker: "Broker", asked: records.PublishOnce, caller: Caller, done: Done[records.PublishedOnce]
) -> Cancel | None:
    """A partition whose backlog is over its bound admits no new record."""
    if broker.quotas.is_on:
        # Here, because the record may be appended only later, or be there already.
        broker.quotas.produced(caller, len(asked.key or b"") + len(asked.value or b""))

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
        if broker.quotas.is_on:
            broker.quotas.check_consume(caller)
        found = read_from(partition, offset, asked.max_records, asked.max_bytes)
        size_bytes = sum(map(record_bytes, found))
        broker.meters.gave_out(asked.topic, caller.gateway, len(found), size_bytes)
        if broker.quotas.is_on:
            broker.quotas.consumed(caller, size_bytes)
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


@begins(records.FindOffsets)
def find_offsets(
    broker: "Broker", asked: records.FindOffsets, _: Caller, done: Done[tuple[FoundOffset | Reason, ...]]
) -> Cancel | None:
    """Looked for again once the records that a result depends on are committed."""
    settling: list[Partition] = []

    def find() -> tuple[FoundOffset | Reason, ...]:
        return tuple([_find_offset(broker, query, asked.committed_only, settling) for query in asked.queries])

    found = find()
    if settling:
        return broker.settling.wait(list(settling), lambda: done(find()))
    done(found)
    return None


def _find_offset(
    broker: "Broker", query: records.OffsetQuery, committed_only: bool, settling: list[Partition]
) -> FoundOffset | Reason:
    """What is known now; a partition in which more may be found in a moment is added to ``settling``."""
    try:
        partition = broker.partition(query.topic, query.partition)
        partition.check_epoch(query.leader_epoch)
        timestamp = query.timestamp_ms
        found = _find_in(partition, timestamp, partition.stable_offset if committed_only else partition.high_watermark)
        # A record that was found by its time is the first one, whatever follows.
        if timestamp in (records.LATEST, records.MAX_TIMESTAMP) or (timestamp >= 0 and found.offset == NO_OFFSET):
            if partition.is_settling(partition.acknowledged_offset):
                settling.append(partition)
            if partition.high_watermark < partition.in_sync.epoch_start:
                # More may be committed than is known here.
                return Reason.OFFSET_NOT_AVAILABLE
    except PenstockError as error:
        return error.reason
    except OSError:
        return Reason.STORAGE_ERROR
    return found


def _find_in(partition: Partition, timestamp: int, end: int) -> FoundOffset:
    log = partition.log
    if timestamp == records.LATEST:
        return FoundOffset(end, leader_epoch=partition.leader_epoch)
    if timestamp in (records.EARLIEST, records.EARLIEST_LOCAL):
        return FoundOffset(log.start_offset, leader_epoch=log.epochs.epoch_at(log.start_offset))
    if timestamp in (records.LATEST_TIERED, records.EARLIEST_PENDING_UPLOAD):
        return FoundOffset()
    if timestamp < records.EARLIEST_PENDING_UPLOAD:
        raise PenstockError(Reason.INVALID_REQUEST, f"{timestamp} is neither a timestamp nor -1 to -6")
    if timestamp == records.MAX_TIMESTAMP:
        found = log.latest_by_time(end)
    else:
        found = log.offset_for_time(timestamp, end)
    return FoundOffset() if found is None else FoundOffset(found.offset, found.timestamp, found.leader_epoch)


@answers(records.FindEpochEnds)
def find_epoch_ends(broker: "Broker", asked: records.FindEpochEnds, _: Caller) -> tuple[EpochEnd | Reason, ...]:
    """As the leader knows it."""
    return tuple([_find_epoch_end(broker, query) for query in asked.queries])


def _find_epoch_end(broker: "Broker", query: records.EpochQuery) -> EpochEnd | Reason:
    try:
        partition = broker.partition(query.topic, query.partition)
        partition.check_epoch(query.leader_epoch)
    except PenstockError as error:
        return error.reason
    return EpochEnd(*partition.end_offset_for(query.epoch))


@works(records.DeleteRecords)
async def delete_everywhere(broker: "Broker", asked: records.DeleteRecords, _: Caller) -> records.DeletedRecords:
    """It is done here even if the time is over before the followers have done it."""
    until_ms = broker.clock.monotonic_ms() + max(asked.timeout_ms, 0)

    async def in_time(waited: Awaitable[None]) -> bool:
        return await broker.within(max(until_ms - broker.clock.monotonic_ms(), 0), waited)

    offset = asked.offset
    partition = broker.partition(asked.topic, asked.partition)
    # What was acknowledged can be deleted once it is committed. If that takes too long, the rules say what can be deleted.
    if offset == records.TO_HIGH_WATERMARK:
        await in_time(broker.settling.settled(partition))
    elif partition.high_watermark < offset <= partition.log.next_offset:
        await in_time(_committed(partition, offset))
    partition = broker.partition(asked.topic, asked.partition)
    start = delete_records(partition, offset)
    if offset == records.TO_HIGH_WATERMARK:
        offset = start
    reason = await _deleted(partition, offset, in_time)
    return records.DeletedRecords(NO_OFFSET if partition.gone else partition.low_watermark, reason)


async def _deleted(
    partition: Partition, offset: int, in_time: Callable[[Awaitable[None]], Awaitable[bool]]
) -> Reason | None:
    """None once every replica that may lead has deleted the records before ``offset``, else why that is not known."""
    if partition.gone:
        return Reason.NOT_LEADER_OR_FOLLOWER
    told: Future[Reason | None] = Future()

    def done(reason: Reason | None) -> None:
        if not told.done():
            told.set_result(reason)

    async def wait() -> None:
        await told

    partition.when_deleted(offset, done)
    try:
        return told.result() if await in_time(wait()) else Reason.REQUEST_TIMED_OUT
    finally:
        partition.forget_deleted(done)


async def _committed(partition: Partition, offset: int) -> None:
    """Return once everything before ``offset`` is committed, or cannot be here."""
    while partition.high_watermark < offset and partition.log.failed is None and not partition.gone:
        moved: Future[None] = Future()

        def wake(moved: Future[None] = moved) -> None:
            if not moved.done():
                moved.set_result(None)

        partition.watch(wake)
        try:
            await moved
        finally:
            partition.unwatch(wake)


@works(records.TakeProducerId)
async def take_producer_id(broker: "Broker", _: records.TakeProducerId, __: Caller) -> int:
    """From a block of ids that this node reserved."""
    return await broker.producer_ids.next_id()
