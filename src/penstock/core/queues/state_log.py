"""Writes changes in memory to the state topic: once per turn, one batch for each partition.

A caller marks the blocks that it changes, and may wait here until a change is written or committed. The order within a turn is facts,
blocks, tombstones. So wherever a turn is split into batches or interrupted by a crash, the intent of a move is stored before its record
is "moving", and removed after the record is finished.

Invariant: memory is never ahead of the log for longer than a turn. After a failed append, all waiting callers get an error and
``Upkeep.lose`` loads the partition again, without the failed changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.topic import InternalTopic, StateRecord, StoredDone
from penstock.errors import PenstockError, Reason
from penstock.limits import KIB

if TYPE_CHECKING:
    from penstock.core.queues.context import Context
    from penstock.core.queues.partition import QueuePartition

_BATCH_BYTES_MAX: Final = 512 * KIB
_ENDS: Final = frozenset({Reason.SHUTTING_DOWN, Reason.UNKNOWN_TOPIC_OR_PARTITION})
"""The broker stops: nothing is loaded again."""
LED_ELSEWHERE: Final = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE, Reason.NOT_COORDINATOR})
"""Another node writes the state now, and this node is about to unload it. The log shows which of the last changes were stored."""


@dataclass(slots=True)
class _Pending:
    """The changes of one turn in one partition of the state topic, and the callers that wait for them."""

    facts: dict[bytes, bytes] = field(default_factory=dict)
    blocks: dict[tuple["QueuePartition", int], None] = field(default_factory=dict)
    tombstones: dict[bytes, None] = field(default_factory=dict)
    written: list[StoredDone] = field(default_factory=list)
    committed: list[StoredDone] = field(default_factory=list)


class StateLog:
    """Writes the state topic."""

    def __init__(self, context: "Context", topic: InternalTopic) -> None:
        self._context = context
        self._topic = topic
        self._pending: dict[int, _Pending] = {}

    def partition_for(self, group: str) -> int:
        """The partition of the state topic with all records of a group."""
        return self._topic.partition_for(group)

    # -- changes of this turn

    def mark(self, partition: "QueuePartition", number: int) -> None:
        """Write a changed block."""
        pending = self._turn(partition.state_partition)
        pending.blocks[partition, number] = None
        if pending.tombstones:
            pending.tombstones.pop(partition.key_of(number), None)

    def put(self, state_partition: int, key: bytes, value: bytes) -> None:
        """Write another record than a block."""
        pending = self._turn(state_partition)
        pending.facts[key] = value
        pending.tombstones.pop(key, None)

    def remove(self, state_partition: int, key: bytes) -> None:
        """Remove a record."""
        pending = self._turn(state_partition)
        pending.facts.pop(key, None)
        pending.tombstones[key] = None

    def when_written(self, state_partition: int, done: StoredDone) -> None:
        """Call ``done`` once all changes up to now would survive the end of the process."""
        self._turn(state_partition).written.append(done)

    def when_committed(self, state_partition: int, done: StoredDone) -> None:
        """Call ``done`` once all changes up to now are committed."""
        self._turn(state_partition).committed.append(done)

    def _turn(self, state_partition: int) -> _Pending:
        pending = self._pending.get(state_partition)
        if pending is None:
            pending = self._pending[state_partition] = _Pending()
            self._context.schedule()
        return pending

    # -- the end of the turn

    def flush(self) -> None:
        """Append the changes of this turn."""
        while self._pending:
            state_partition, pending = self._pending.popitem()
            try:
                # A lease only has to be written before its record is sent; changes that a caller waits for are synced.
                hurried = bool(pending.committed)
                if not self._append(state_partition, pending, hurried=hurried) and hurried:
                    self._topic.hurry(state_partition)
                # Callers that wait for a change without an append wait for the previous one.
                end = self._topic.next_offset(state_partition)
            except PenstockError as error:
                self._context.report(f"the state of queues was not stored: {error.text}")
                self._settle([*pending.written, *pending.committed], state_partition, error.reason)
                continue
            if pending.written:
                done = partial(self._settle, pending.written, state_partition)
                self._topic.when_written(state_partition, end, done)
            # Always, so that a failure is noticed even if no caller waits.
            self._topic.when_committed(state_partition, end, partial(self._settle, pending.committed, state_partition))

    def _append(self, state_partition: int, pending: _Pending, *, hurried: bool) -> bool:
        """Append the changes; returns whether there were any."""
        batch: list[StateRecord] = []
        size = 0
        is_any = False
        for key, value in _records(pending):
            is_any = True
            batch.append((key, value))
            size += len(key) + len(value or b"")
            if size >= _BATCH_BYTES_MAX:
                self._topic.append(state_partition, batch, hurried=hurried)
                batch, size = [], 0
        if batch:
            self._topic.append(state_partition, batch, hurried=hurried)
        return is_any

    def _settle(self, waiting: list[StoredDone], state_partition: int, reason: Reason | None) -> None:
        if reason in LED_ELSEWHERE:
            reason = Reason.NOT_COORDINATOR
        elif reason is not None and reason not in _ENDS:
            self._context.upkeep.lose(state_partition)
            reason = Reason.STORAGE_ERROR
        for done in waiting:
            done(reason)

    def refuse(self, state_partition: int, reason: Reason = Reason.STORAGE_ERROR) -> None:
        """Drop the changes of this turn: they are based on state that was lost."""
        pending = self._pending.pop(state_partition, None)
        if pending is not None:
            for done in (*pending.written, *pending.committed):
                done(reason)


def _records(pending: _Pending) -> Iterator[StateRecord]:
    yield from pending.facts.items()
    for partition, number in pending.blocks:
        record = partition.encode(number)
        if record is not None:
            yield record
    for key in pending.tombstones:
        yield key, None
