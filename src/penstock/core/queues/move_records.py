"""The copy of a moved record: its headers, the id of the move among them, and how it is found in the target."""

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.publish import record_id
from penstock.core.queues import envelope as names
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.stored import MoveIntent, MoveKind, QueueId
from penstock.records.records import Headers, Record

if TYPE_CHECKING:
    from penstock.core.queues.queue import Queue

_SEARCH_RECORDS: Final = 500


def move_id(queue: QueueId, partition: int, offset: int) -> bytes:
    """The id of a move, which is a header of the copy."""
    return f"{queue.group}/{queue.topic_id.hex}/{partition}@{offset}".encode("utf-8", "surrogatepass")


class MoveEntry(NamedTuple):
    """A move in progress."""

    queue: "Queue"
    part: QueuePartition
    offset: int
    move: MoveIntent

    @property
    def is_current(self) -> bool:
        """Whether the move is still wanted: no other commit has finished the record, and the state was not loaded again."""
        return self.queue.alive and self.part.moves.get(self.offset) is self.move


_LEFT_AWAY: Final = names.DEAD_LETTER_HEADERS | {names.FOR_GROUP}


def moved_headers(entry: MoveEntry, record: Record) -> Headers:
    """The headers of the copy."""
    queue, part, offset, move = entry
    # Any group may consume the dead letters, so the group of a redrive is not copied to them.
    kept = tuple(header for header in record.headers if header[0] not in _LEFT_AWAY)
    identity = (names.MOVE_ID, move_id(queue.queue_id, part.index, offset))
    if move.kind is MoveKind.REDRIVE:
        came_from = record_id(queue.topic, part.index, offset).encode()
        before = tuple(header for header in kept if header[0] != names.REDRIVEN_FROM)
        group = next((value for name, value in record.headers if name == names.ORIGINAL_GROUP), None)
        for_group = () if group is None else ((names.FOR_GROUP, group),)
        return (*before, (names.REDRIVEN_FROM, came_from), *for_group, identity)
    return (
        *kept,
        (names.ORIGINAL_TOPIC, queue.topic.encode()),
        (names.ORIGINAL_PARTITION, str(part.index).encode()),
        (names.ORIGINAL_OFFSET, str(offset).encode()),
        (names.ORIGINAL_GROUP, queue.group.encode("utf-8", "surrogatepass")),
        (names.ATTEMPTS, str(move.attempts).encode()),
        (names.LAST_ERROR, move.reason.encode("utf-8", "surrogatepass")),
        (names.ROUTED_AT_MS, str(move.since_ms).encode()),
        identity,
    )
