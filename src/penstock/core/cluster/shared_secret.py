"""The cluster's secret, with which nodes authenticate to each other: two generations of it, as last received from the metadata store.

``cluster``: ``{"id", "secret", "version", "created_ms", "generation", "previous", "rotated_ms"}``. The first node creates it
(``cluster/agreement.py``). A rotation makes a new secret and keeps the one before, because other nodes receive it a moment later. Each node
follows the entry. Two nodes use the newest generation that both know, and the next rotation makes the older one worthless.

Invariant: without the entry there is no secret, and no proof is right.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Entry, Event, MetadataStore, Put, Unsubscribe
from penstock.ports import Entropy

CLUSTER_KEY: Final = "cluster"
VERSION: Final = 1
_ATTEMPTS_MAX: Final = 20
"""How often a rotation is retried because another node rotated in between."""


class ClusterRecord(msgspec.Struct, frozen=True):
    """The value under ``cluster``."""

    id: str
    secret: bytes
    version: int = VERSION
    created_ms: int = 0
    generation: int = 1
    """How many secrets there have been."""
    previous: bytes = b""
    """The secret before; empty before the first rotation."""
    rotated_ms: int = 0

    def __repr__(self) -> str:
        return f"ClusterRecord(id={self.id!r}, version={self.version}, generation={self.generation})"


class SharedSecret:
    """What this node knows of the secret. ``repr`` does not show it."""

    def __init__(self, store: MetadataStore, report: Callable[[str], None] = lambda _text: None) -> None:
        self._store = store
        self._report = report
        self._known: dict[int, bytes] = {}
        """By generation, the newest last."""
        self._revision = 0
        self._unsubscribe: Unsubscribe = lambda: None
        self.on_changed: Final[list[Callable[[], None]]] = []
        """Called after the secret was rotated."""

    def __repr__(self) -> str:
        return f"SharedSecret(generation={self.generation})"

    async def load(self) -> None:
        """Read the entry, and follow it from there."""
        self._unsubscribe = self._store.subscribe(CLUSTER_KEY, self._take)
        entry = await self._store.get(CLUSTER_KEY)
        if entry is not None:
            self._put(entry)

    def close(self) -> None:
        """Follow the entry no more."""
        self._unsubscribe()

    @property
    def generation(self) -> int:
        """The newest generation; 0 if there is no secret."""
        return max(self._known, default=0)

    def of(self, generation: int) -> bytes | None:
        """The secret of a generation; None if it is not valid any more, or not known yet."""
        return self._known.get(generation)

    def is_valid(self, secret: bytes) -> bool:
        """Whether a secret with which another node proved itself is still one of the two."""
        return secret in self._known.values()

    async def rotate(self, entropy: Entropy, now_ms: int) -> int:
        """Replace the secret by a new one; returns its generation. The nodes follow by themselves."""
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(CLUSTER_KEY)
            if entry is None:
                raise PenstockError(
                    Reason.INVALID_REQUEST,
                    "A single broker has no secret to rotate: only the nodes of a cluster share one",
                )
            found = decode_record(entry)
            rotated = replace(
                found,
                secret=new_secret(entropy),
                previous=found.secret,
                generation=found.generation + 1,
                rotated_ms=now_ms,
            )
            compare = Compare(CLUSTER_KEY, mod_revision=entry.mod_revision)
            if (await self._store.txn([compare], [Put(CLUSTER_KEY, msgspec.json.encode(rotated))])).succeeded:
                return rotated.generation
        raise PenstockError(Reason.REQUEST_TIMED_OUT, "Other nodes rotated the secret at the same time; try again")

    def _take(self, events: list[Event]) -> None:
        for event in events:
            # If the entry is deleted, etcd was emptied: the nodes continue with what they know.
            if event.key == CLUSTER_KEY and event.entry is not None:
                try:
                    self._put(event.entry)
                except PenstockError as error:
                    self._report(error.text)

    def _put(self, entry: Entry) -> None:
        if entry.mod_revision <= self._revision:
            return
        record = decode_record(entry)
        self._revision = entry.mod_revision
        known = {record.generation - 1: record.previous} if record.previous else {}
        known[record.generation] = record.secret
        if known != self._known:
            self._known = known
            for hook in self.on_changed:
                hook()


def new_secret(entropy: Entropy) -> bytes:
    """A random secret."""
    return entropy.uuid().bytes + entropy.uuid().bytes


def decode_record(entry: Entry) -> ClusterRecord:
    """The record in an entry; STORAGE_ERROR if it is damaged."""
    try:
        record = msgspec.json.decode(entry.value, type=ClusterRecord)
    except msgspec.MsgspecError:
        record = None
    if record is None or not record.secret:
        raise PenstockError(
            Reason.STORAGE_ERROR,
            f"The entry {CLUSTER_KEY!r} of the metadata store cannot be read; restore the store from a backup",
        )
    return record
