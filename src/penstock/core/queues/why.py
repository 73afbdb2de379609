"""Why a record is not delivered: one sentence for every case, and what to do next where that helps."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.core.cluster.status import why_below_min
from penstock.core.partitions.reading import copied_here, read_from
from penstock.core.publish import record_id
from penstock.core.queues.block import (
    BLOCK_BITS,
    BLOCK_MASK,
    DELAYED,
    FINISHED,
    LEASED,
    MOVING,
    READY,
    UNTOUCHED,
    WAITING,
    Block,
)
from penstock.core.queues.envelope import (
    ATTEMPTS,
    LAST_ERROR,
    ORIGINAL_GROUP,
    ORIGINAL_OFFSET,
    ORIGINAL_PARTITION,
    ORIGINAL_TOPIC,
    Envelope,
    read_envelope,
)
from penstock.core.queues.idempotent import key_of
from penstock.core.queues.moves import REDRIVE_GROUP, dead_letter_topic
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.queue import Queue
from penstock.core.queues.workers import Worker
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.limits import MIB
from penstock.operations.groups import GroupState
from penstock.operations.queues import Why, WhyState
from penstock.types import GroupId, PartitionKey, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_DEAD_LETTERS_LOOKED_AT: Final = 2_000
"""The newest ones of a partition: some milliseconds of work."""
_DEAD_LETTER_BYTES: Final = 4 * MIB


def explain(broker: "Broker", queue: Queue | None, topic: str, partition: int, offset: int, group: str) -> Why:
    """The answer for any record, even one that does not exist."""
    found = broker.topics.get(topic)
    if found is None:
        return Why(WhyState.NO_SUCH_TOPIC, f"There is no topic {topic}; list the topics to find its name.")
    name = f"{topic}/{partition}@{offset}"
    if not 0 <= partition < found.partition_count:
        return Why(
            WhyState.NO_SUCH_PARTITION,
            f"{topic} has no partition {partition}: it has {found.partition_count}, counted from 0.",
        )
    # Records below the floor are finished, so they need not be copied here.
    log = copied_here(broker, topic, partition, max(offset, 0 if queue is None else queue.partition(partition).floor))
    if offset >= log.log.next_offset or offset < 0:
        return Why(
            WhyState.BEYOND_END,
            f"{name} does not exist yet: the partition ends at {log.log.next_offset}. "
            f"Check the offset, or check that the producer got a response.{_below_min(broker, found, partition)}",
        )
    if offset >= log.high_watermark:
        return Why(
            WhyState.NOT_COMMITTED,
            f"{name} is not committed yet: readers see records below the high watermark, {log.high_watermark}."
            f"{_below_min(broker, found, partition)}",
        )
    if offset < log.first_offset:
        return Why(
            WhyState.EXPIRED_BY_RETENTION,
            f"{name} was deleted by retention or DeleteRecords: the partition starts at {log.first_offset}. "
            "Raise the topic's retention to keep records longer.",
        )
    if queue is None:
        why = _without_queue(broker, name, topic, partition, offset, group)
    else:
        why = _in_queue(queue, queue.partition(partition), name, offset)
    if why.state is WhyState.FINISHED:
        return _dead_letter(broker, name, topic, partition, offset, group) or why
    return why


def _below_min(broker: "Broker", topic: Topic, index: int) -> str:
    """Another sentence while acks=all is refused, because the record may have been refused."""
    record = broker.topics.partition(topic, index)
    min_in_sync = topic.min_in_sync_of(len(record.replicas))
    if len(record.isr) >= min_in_sync:
        return ""
    why = why_below_min(record, min_in_sync)
    return f" Nothing new is committed to {topic.name}/{index} for acks=all at the moment: {why}."


def _dead_letter(broker: "Broker", name: str, topic: str, partition: int, offset: int, group: str) -> Why | None:
    """The dead letter of a failed record, if it is among the newest ones."""
    letters = dead_letter_topic(topic)
    found = broker.topics.get(letters)
    if found is None or partition >= found.partition_count:
        return None
    place = {
        ORIGINAL_TOPIC: topic,
        ORIGINAL_PARTITION: str(partition),
        ORIGINAL_OFFSET: str(offset),
        ORIGINAL_GROUP: group,
    }
    source = copied_here(broker, letters, partition)
    start = max(source.log.start_offset, source.high_watermark - _DEAD_LETTERS_LOOKED_AT)
    try:
        records = read_from(source, start, _DEAD_LETTERS_LOOKED_AT, _DEAD_LETTER_BYTES)
    except PenstockError:
        return None
    for record in reversed(records):
        headers = {key: value.decode(errors="replace") for key, value in record.headers if value is not None}
        if headers.items() >= place.items():
            break
    else:
        return None
    letter, error = record_id(letters, partition, record.offset), headers.get(LAST_ERROR, "")
    if _is_settled(broker, letters, partition, record.offset):
        after = "and has since been redriven or purged"
    else:
        after = f"inspect it with penstock dlq show {topic}, or send it back with penstock dlq redrive {topic}"
    return Why(
        WhyState.DEAD_LETTER,
        f"{name} failed in group {group} (attempt {headers.get(ATTEMPTS, '?')}: {error or 'no reason given'}) and is the dead letter {letter}; {after}.",
        attempts=int(headers[ATTEMPTS]) if headers.get(ATTEMPTS, "").isdecimal() else 0,
        last_error=error or None,
    )


def _is_settled(broker: "Broker", letters: str, partition: int, offset: int) -> bool:
    """Whether a dead letter was redriven or purged, as far as this node knows: another node may coordinate its group."""
    try:
        return broker.queues.is_finished(letters, REDRIVE_GROUP, partition, offset)
    except PenstockError:
        return False


def _without_queue(broker: "Broker", name: str, topic: str, partition: int, offset: int, group: str) -> Why:
    key = PartitionKey(TopicName(topic), partition)
    committed = broker.groups.fetch_offsets(GroupId(group), [key]).get(key)
    if committed is not None and offset < committed.offset:
        return Why(
            WhyState.FINISHED,
            f"{name} is finished: group {group} has committed offset {committed.offset}. "
            f"Commit {offset} to read it and all later records again.",
        )
    if committed is None and broker.groups.describe(GroupId(group)).state is GroupState.DEAD:
        return Why(
            WhyState.NO_SUCH_GROUP,
            f"There is no group {group}; check the name, or start a worker in that group.",
        )
    return Why(
        WhyState.READY,
        f"{name} waits for group {group} to read it: no worker has requested records of {topic} yet.",
    )


def _in_queue(queue: Queue, part: QueuePartition, name: str, offset: int) -> Why:
    queue.open()
    queue.follow_start(part)
    if offset < part.floor:
        return Why(
            WhyState.FINISHED,
            f"{name} is finished: the group's committed offset is {part.floor}. "
            f"Commit offset {offset} to deliver it and all later records to the group again.",
        )
    block = part.blocks.get(offset >> BLOCK_BITS)
    at = offset & BLOCK_MASK
    state = UNTOUCHED if block is None else block.states[at]
    if state == FINISHED:
        return Why(
            WhyState.FINISHED,
            f"{name} is finished, but earlier records are not: the group's committed offset is still {part.floor}.",
        )
    if block is not None and state in (LEASED, WAITING, MOVING):
        return _busy(part, block, name, offset)
    try:
        record = queue.read(part, offset)
    except PenstockError as error:
        return Why(WhyState.DAMAGED, f"{name} cannot be read: {error.text}")
    if record is None:
        return Why(WhyState.NO_RECORD, f"{name} does not exist: compaction removed it, or the offset was never used.")
    ending = _ending(queue, read_envelope(record.headers), name)
    if ending is not None:
        return ending
    return _ready(queue, part, block if state == READY else None, name, offset)


def _busy(part: QueuePartition, block: Block, name: str, offset: int) -> Why:
    at = offset & BLOCK_MASK
    state, until_ms, attempts, error = block.states[at], block.until_ms[at], block.attempts[at], block.error(at)
    if state == LEASED:
        owner = block.owner(at)
        return Why(
            WhyState.LEASED,
            f"{name} is leased by {owner} until {_time(until_ms)} (attempt {attempts}); "
            "it is delivered again if it is not acked by then.",
            owner,
            until_ms,
            attempts,
            error,
        )
    if state == MOVING:
        move = part.moves.get(offset)
        target = "another topic" if move is None else f"{move.target_topic}/{move.target_partition}"
        reason = f" ({move.reason})" if move is not None and move.reason else ""
        return Why(
            WhyState.MOVING,
            f"{name} is being moved to {target} after attempt {attempts}{reason}; look for it there.",
            attempts=attempts,
            last_error=error,
        )
    if block.flags[at] & DELAYED:
        return Why(
            WhyState.DELAYED,
            f"{name} is delayed until {_time(until_ms)}: its producer set this delay.",
            until_ms=until_ms,
            attempts=attempts,
        )
    return Why(
        WhyState.BACKING_OFF,
        f"{name} is backing off until {_time(until_ms)} after attempt {attempts} failed ({error or 'no reason given'}).",
        until_ms=until_ms,
        attempts=attempts,
        last_error=error,
    )


def _ending(queue: Queue, envelope: Envelope, name: str) -> Why | None:
    now_ms = queue.context.clock.now_ms()
    if envelope.deadline_ms is not None and envelope.deadline_ms <= now_ms:
        return Why(
            WhyState.DEADLINE_PASSED,
            f"{name} is past its deadline of {_time(envelope.deadline_ms)}: it will be finished without delivery.",
            until_ms=envelope.deadline_ms,
        )
    if envelope.for_group is not None and envelope.for_group != queue.group:
        return Why(
            WhyState.FOR_ANOTHER_GROUP,
            f"{name} was redriven for group {envelope.for_group}: this group skips it.",
        )
    key = key_of(envelope)
    if key is not None and queue.keys.has(key, now_ms):
        return Why(
            WhyState.DUPLICATE,
            f"{name} has the idempotency key {key.key!r}, which the group has already acked: it is finished without delivery.",
        )
    if envelope.not_before_ms is not None and envelope.not_before_ms > now_ms:
        return Why(
            WhyState.DELAYED,
            f"{name} is delayed until {_time(envelope.not_before_ms)}: its producer set this delay.",
            until_ms=envelope.not_before_ms,
        )
    return None


def _ready(queue: Queue, part: QueuePartition, block: Block | None, name: str, offset: int) -> Why:
    attempts = 0 if block is None else block.attempts[offset & BLOCK_MASK]
    error = None if block is None else block.error(offset & BLOCK_MASK)
    again = f" to be delivered again (attempt {attempts} ended with: {error or 'no reason given'})" if attempts else ""
    workers = [taker for taker in queue.takers if isinstance(taker, Worker)]
    if part.damage is not None:
        sentence = f"{name} is blocked by earlier records that cannot be read: {part.damage}"
        return Why(WhyState.DAMAGED, sentence, attempts=attempts, last_error=error)
    if queue.leased >= queue.context.settings.in_flight_max:
        because = f"{queue.leased} records of the queue are in flight, which is the limit; ack some of them"
    elif not queue.takers:
        because = f"no worker is connected to {queue.topic} in group {queue.group}; start one"
    elif workers and all(taker.room() <= 0 for taker in queue.takers):
        because = (
            f"all {len(workers)} workers hold as many records as they can; ack some records, or start another worker"
        )
    else:
        ahead = offset - part.floor
        because = f"at most {ahead} records of the partition are ahead of it"
    return Why(WhyState.READY, f"{name} is ready{again} and waits: {because}.", attempts=attempts, last_error=error)


def _time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms after 1970"
