"""Secrets in a metadata store, unreadable without the master key: the values under some prefixes are sealed.

Every node that shares the store needs the master key. The store itself has the keyring, under ``security/keyring``, wrapped by
the master key. A sealed value: magic (8 bytes), number of the key (4), sealed content that is bound to its key in the store, so
that nobody can give one user the password of another. Keys in the store, and all other values, can be read without it.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from struct import Struct
from typing import Final

from penstock.encryption import crypto
from penstock.encryption.keyring import Keyring, decode, encode, new_keyring
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import (
    Compare,
    Entry,
    Event,
    MetadataStore,
    Operation,
    Put,
    Range,
    Subscriber,
    TxnResult,
    Unsubscribe,
)
from penstock.ports import Keys, Report

KEYRING_KEY: Final = "security/keyring"
SEALED_PREFIXES: Final = ("security/users/", "security/keys/")
MAGIC: Final = b"\0PENVAL\x01"
_HEAD: Final = Struct(">8sI")


class SealedStore:
    """A :class:`penstock.metadata.port.MetadataStore` in front of another; see the module."""

    def __init__(
        self, store: MetadataStore, keys: Keys, ring: Keyring, prefixes: tuple[str, ...], report: Report
    ) -> None:
        """Use :meth:`open`."""
        self._store: Final = store
        self._keys: Final = keys
        self._ring = ring
        self._prefixes: Final = prefixes
        self._report: Final = report

    @classmethod
    async def open(
        cls, store: MetadataStore, keys: Keys | None, report: Report, prefixes: tuple[str, ...] = SEALED_PREFIXES
    ) -> MetadataStore:
        """The store with sealed values; the store itself if it has none and there is no key. INVALID_CONFIG without the right key.

        Values that were stored before are sealed now, and the keyring is wrapped by the current master key.
        """
        entry = await store.get(KEYRING_KEY)
        if keys is None:
            if entry is None:
                return store
            raise PenstockError(
                Reason.INVALID_CONFIG,
                "The secrets in the metadata store are encrypted: set encryption.key_file (or PENSTOCK_ENCRYPTION_KEY) to their master key",
            )
        ring = await cls._keyring(store, keys)
        sealed = cls(store, keys, ring, prefixes, report)
        # Another node may rotate the keys; its event comes before the first value with a new one.
        store.subscribe(KEYRING_KEY, sealed._keyring_changed)
        await sealed._seal_old()
        return sealed

    @staticmethod
    async def _keyring(store: MetadataStore, keys: Keys) -> Keyring:
        while True:
            entry = await store.get(KEYRING_KEY)
            if entry is None:
                ring, revision = new_keyring(complete=True), 0
            else:
                ring, master = decode(entry.value, keys, KEYRING_KEY)
                revision = entry.mod_revision
                if master == keys.current:
                    return ring
                ring = ring.extended()
            put = Put(KEYRING_KEY, encode(ring, keys))
            # Another node may do the same at the same time: then its keyring is read.
            if (await store.txn([Compare(KEYRING_KEY, mod_revision=revision)], [put])).succeeded:
                return ring

    async def _seal_old(self) -> None:
        for prefix in self._prefixes:
            for entry in (await self._store.range(prefix)).entries:
                if not entry.value.startswith(MAGIC):
                    put = Put(entry.key, self._sealed(entry.key, entry.value), entry.lease)
                    # If another node changed it in the meantime, that node has sealed it.
                    await self._store.txn([Compare(entry.key, mod_revision=entry.mod_revision)], [put])

    @property
    def operations_max(self) -> int:
        return self._store.operations_max

    async def range(self, prefix: str) -> Range:
        found = await self._store.range(prefix)
        await self._learn(found.entries)
        return Range(found.revision, tuple(self._opened(entry) for entry in found.entries))

    async def get(self, key: str) -> Entry | None:
        entry = await self._store.get(key)
        if entry is None:
            return None
        await self._learn((entry,))
        return self._opened(entry)

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        return await self._store.txn(compares, [self._closed(operation) for operation in operations])

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        def deliver(events: list[Event]) -> None:
            subscriber([self._event(event) for event in events])

        return self._store.subscribe(prefix, deliver)

    async def close(self) -> None:
        await self._store.close()

    # Values.

    def _is_secret(self, key: str) -> bool:
        return key.startswith(self._prefixes)

    def _closed(self, operation: Operation) -> Operation:
        if isinstance(operation, Put) and self._is_secret(operation.key):
            return replace(operation, value=self._sealed(operation.key, operation.value))
        return operation

    def _sealed(self, key: str, value: bytes) -> bytes:
        number = self._ring.current
        head = _HEAD.pack(MAGIC, number)
        return head + crypto.seal(self._ring.keys[number], os.urandom(crypto.SALT_BYTES), value, head + key.encode())

    def _opened(self, entry: Entry) -> Entry:
        if not self._is_secret(entry.key) or not entry.value.startswith(MAGIC):
            return entry
        head, sealed = entry.value[: _HEAD.size], entry.value[_HEAD.size :]
        try:
            secret = self._ring.keys[_number_of(entry)]
            return replace(entry, value=crypto.unseal(secret, sealed, head + entry.key.encode()))
        except (KeyError, crypto.WrongKeyError) as error:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The value of {entry.key} in the metadata store was changed or belongs to another key; set it again",
            ) from error

    def _event(self, event: Event) -> Event:
        """A value that cannot be opened counts as deleted: a subscriber cannot be refused, and must not get anything else."""
        if event.entry is None:
            return event
        try:
            return replace(event, entry=self._opened(event.entry))
        except PenstockError as error:
            self._report(error.text)
            return replace(event, entry=None)

    # The keyring.

    async def _learn(self, entries: Sequence[Entry]) -> None:
        """Read the keyring again if another node has added a key."""
        unknown = any(
            self._is_secret(entry.key) and entry.value.startswith(MAGIC) and _number_of(entry) not in self._ring.keys
            for entry in entries
        )
        if unknown:
            entry = await self._store.get(KEYRING_KEY)
            if entry is not None:
                self._ring = decode(entry.value, self._keys, KEYRING_KEY)[0]

    def _keyring_changed(self, events: list[Event]) -> None:
        for event in events:
            if event.entry is not None and event.key == KEYRING_KEY:
                try:
                    self._ring = decode(event.entry.value, self._keys, KEYRING_KEY)[0]
                except PenstockError as error:
                    self._report(error.text)


def _number_of(entry: Entry) -> int:
    """The number of the key that sealed a value; 0, which no key has, if it is cut short."""
    number: int = _HEAD.unpack_from(entry.value)[1] if len(entry.value) >= _HEAD.size else 0
    return number
