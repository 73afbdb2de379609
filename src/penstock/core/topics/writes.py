"""Writes changes of topics to the metadata store. Each change is a transaction that compares revisions, so one of two concurrent changes wins.

When the answer of the store to a create or delete is lost, the outcome is unknown. The operation is sent once more; the topic's id
shows whether the topic is this one or another of the same name. If that answer is lost too, the caller gets an error, and a later
call for the same topic is answered as the first one would have been.

A store limits the operations of a transaction. Partition records are therefore written before their topic and deleted after it, so a
topic that is visible is complete. The controller removes what a crash leaves over.
"""

from collections.abc import Callable, Sequence
from typing import Final

from penstock.core.topics.records import (
    DeletedRecord,
    PartitionRecord,
    TopicRecord,
    decode_topic,
    deleted_key,
    encode,
    partition_key,
    topic_key,
)
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Delete, Entry, MetadataStore, Operation, Put, UnknownOutcomeError
from penstock.types import TopicId

_ATTEMPTS_MAX: Final = 100
"""How often a change is tried again because another client changed the topic: each time, one of them succeeded."""
_UNSURE_MAX: Final = 1_000


class TopicWrites:
    """Writes topics. ``is_known`` says whether a topic is visible in memory already."""

    def __init__(self, store: MetadataStore, is_known: Callable[[TopicId], bool]) -> None:
        self._store = store
        self._is_known = is_known
        self.notes_deletions = False
        """Whether other nodes must be able to distinguish a deleted topic from an unknown one."""
        self.unsure: Final[dict[str, TopicId]] = {}
        """Topics, by name, whose creation has an unknown outcome."""

    async def make(self, name: str, record: TopicRecord, partitions: Sequence[PartitionRecord]) -> TopicRecord:
        """Create a topic. Returns the record of the topic that has the name now, which may be one that was created concurrently."""
        operations = [
            Put(partition_key(record.id, index), encode(partition)) for index, partition in enumerate(partitions)
        ]
        excess, last = self._split(operations)
        await self._write(excess)
        if await self._put_new(name, record.id, [*last, Put(topic_key(name), encode(record))]):
            return record
        await self._write([Delete(put.key) for put in excess])
        winner = await self._store.get(topic_key(name))
        if winner is None:
            raise _changed_meanwhile(name)
        return decode_topic(winner)

    async def _put_new(self, name: str, topic_id: TopicId, made: Sequence[Operation]) -> bool:
        """Whether the topic of this name is this one."""
        key = topic_key(name)
        try:
            return await self._try_to_put(key, topic_id, made)
        except UnknownOutcomeError as error:
            unknown = error
        try:
            return await self._try_to_put(key, topic_id, made)
        except PenstockError:
            if len(self.unsure) >= _UNSURE_MAX:
                del self.unsure[next(iter(self.unsure))]
            self.unsure[name] = topic_id
            # Whatever the second outcome is, the first is unknown.
            raise unknown from None

    async def _try_to_put(self, key: str, topic_id: TopicId, made: Sequence[Operation]) -> bool:
        # If the answer is lost, this may happen at any later time: it must not restore the topic after its deletion.
        alive = [Compare(key, create_revision=0), Compare(deleted_key(topic_id), create_revision=0)]
        if (await self._store.txn(alive, made)).succeeded:
            return True
        return await self._is_own(key, topic_id)

    async def _is_own(self, key: str, topic_id: TopicId) -> bool:
        """Whether the name belongs to this topic, because the answer to its creation was lost. Then it is visible when this returns."""
        entry = await self._store.get(key)
        if entry is None or decode_topic(entry).id != topic_id:
            return False
        if not self._is_known(topic_id):
            # A change sees all changes that were made before it.
            await self._store.txn([Compare(key, mod_revision=entry.mod_revision)], [Put(key, entry.value)])
        return True

    async def delete(self, name: str, topic_id: TopicId, now_ms: int) -> None:
        """Remove a topic and its partitions."""
        is_sure = True
        rest: list[Operation] = []
        for _ in range(_ATTEMPTS_MAX):
            entry = await (self._before_change(name) if is_sure else self._store.get(topic_key(name)))
            record = None if entry is None else decode_topic(entry)
            if entry is None or record is None or record.id != topic_id:
                if is_sure:
                    raise _deleted_meanwhile(name)
                # The topic was deleted, and the answer was lost.
                await self._remove(rest)
                return
            gone: list[Operation] = [Delete(entry.key)]
            if self.notes_deletions:
                gone.append(Put(deleted_key(topic_id), encode(DeletedRecord(name, now_ms))))
            rest = [Delete(partition_key(topic_id, i)) for i in range(record.partitions)]
            room = self._store.operations_max - len(gone)
            compare = Compare(entry.key, mod_revision=entry.mod_revision)
            try:
                is_done = (await self._store.txn([compare], [*gone, *rest[:room]])).succeeded
            except UnknownOutcomeError:
                if not is_sure:
                    raise
                is_sure = False
                continue
            if is_done:
                await self._remove(rest[room:])
                return
        raise _changed_meanwhile(name)

    async def _remove(self, rest: list[Operation]) -> None:
        """Remove what belongs to a deleted topic. The controller removes later what cannot be removed now."""
        try:
            await self._write(rest)
        except PenstockError as error:
            if error.reason is not Reason.METADATA_UNAVAILABLE:
                raise

    async def change(
        self, name: str, topic_id: TopicId, change: Callable[[TopicRecord], tuple[TopicRecord, list[Operation]]]
    ) -> TopicRecord:
        """Replace the topic's record by the one that ``change`` returns, with further operations; returns the new record."""
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._before_change(name)
            record = None if entry is None else decode_topic(entry)
            if entry is None or record is None or record.id != topic_id:
                raise _deleted_meanwhile(name)
            changed, operations = change(record)
            if changed == record:
                return record
            compares = [Compare(entry.key, mod_revision=entry.mod_revision)]
            excess, last = self._split(operations)
            # With the topic's revision too: another call may have added the same partitions.
            if not await self._write(excess, compares):
                continue
            if (await self._store.txn(compares, [*last, Put(entry.key, encode(changed))])).succeeded:
                return changed
        raise _changed_meanwhile(name)

    def _split(self, operations: Sequence[Operation]) -> tuple[Sequence[Operation], Sequence[Operation]]:
        """Those that are written before the topic is visible, and the last ones, which fit into one transaction with the topic."""
        excess = max(0, len(operations) - (self._store.operations_max - 1))
        return operations[:excess], operations[excess:]

    async def _write(self, operations: Sequence[Operation], compares: Sequence[Compare] = ()) -> bool:
        """Write the operations; returns whether all were written. Each transaction has the same compares."""
        for first in range(0, len(operations), self._store.operations_max):
            batch = operations[first : first + self._store.operations_max]
            if not (await self._store.txn(compares, batch)).succeeded:
                return False
        return True

    async def _before_change(self, name: str) -> Entry | None:
        """The topic's entry before a change; an error says that nothing was changed."""
        try:
            return await self._store.get(topic_key(name))
        except PenstockError as error:
            if error.reason is not Reason.METADATA_UNAVAILABLE:
                raise
            raise PenstockError(
                error.reason, f"{error.text}. Nothing was changed: try again when it answers"
            ) from error


def _changed_meanwhile(name: str) -> PenstockError:
    return PenstockError(
        Reason.REQUEST_TIMED_OUT, f"Topic {name} was changed by other clients at the same time. Try again."
    )


def _deleted_meanwhile(name: str) -> PenstockError:
    return PenstockError(
        Reason.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} was deleted by another client at the same time"
    )
