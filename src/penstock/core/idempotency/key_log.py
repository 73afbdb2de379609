"""Writing produce keys to ``__idempotency``: what one turn of the loop brings is one batch for each partition."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final
from uuid import UUID

from penstock.core.coordinators.topic import InternalTopic
from penstock.core.idempotency.stored import Key, Note, encode_key, encode_note, keys_partition
from penstock.errors import PenstockError, Reason
from penstock.ports import Flusher, Report
from penstock.types import Buffer, TopicName

Stored = Callable[[Reason | None], None]


class KeyLog:
    """The keys of a topic lie in one partition, in one order."""

    def __init__(self, topic: InternalTopic, flusher: Flusher, report: Report) -> None:
        self.name: Final[TopicName] = topic.name
        self._topic = topic
        self._flusher = flusher
        self._report = report
        self._gathered: dict[int, list[tuple[bytes, bytes | None, Stored | None]]] = {}

    def partition_for(self, topic_id: UUID) -> int:
        """Where the keys of a topic are."""
        return keys_partition(topic_id, self._topic.partition_count)

    def store(self, key: Key, note: Note | None, stored: Stored | None = None) -> None:
        """Write at the end of this turn, with all else that the turn brings; None forgets the key."""
        if not self._gathered:
            self._flusher.gather(self._write)
        value = None if note is None else encode_note(note)
        self._gathered.setdefault(self.partition_for(key.topic_id), []).append((encode_key(key), value, stored))

    def drop(self, partition: int) -> None:
        """This node does not write to a partition any more: what was to be written in this turn is not. Nobody is told."""
        self._gathered.pop(partition, None)

    def replay(self, partition: int) -> Iterator[tuple[Buffer, Buffer | None]]:
        """Every committed record, oldest first."""
        return ((key, value) for key, value, _ in self._topic.replay(partition))

    def _write(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for partition, entries in gathered.items():
            waiting = [stored for _, _, stored in entries if stored is not None]
            tell = partial(_tell_all, waiting)
            try:
                next_offset = self._topic.append(partition, [(key, value) for key, value, _ in entries])
                if waiting:
                    self._topic.when_committed(partition, next_offset, tell)
            except PenstockError as error:
                self._report(f"idempotency keys were not stored: {error.text}")
                tell(error.reason)


def _tell_all(waiting: list[Stored], reason: Reason | None) -> None:
    for stored in waiting:
        stored(reason)
