"""The format of produce keys in the internal topic ``__idempotency``.

A record's key is ``version 1 byte | topic id 16 bytes | digest 20 bytes``, its value
``version | state (0 intended, 1 placed) | partition u32 | offset i64 | noted ms i64 | timestamp ms i64``, or null for a key whose window
is over. The digest is of tenant and key, so that keys of any length take the same space. In state 0, the offset is the partition's high
watermark before the append, in state 1 that of the record.
"""

from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from penstock.records.records import Headers
from penstock.types import NO_TIMESTAMP, Buffer

KEY_HEADER: Final = "penstock.idempotency_key"
TENANT_HEADER: Final = "penstock.tenant_id"

VERSION: Final = 1
DIGEST_BYTES: Final = 20

_KEY: Final = Struct(f">B16s{DIGEST_BYTES}s")
_VALUE: Final = Struct(">BBIqqq")


class Key(NamedTuple):
    """A produce key by its digest."""

    topic_id: UUID
    digest: bytes


class Note(NamedTuple):
    """What is stored about a key."""

    is_placed: bool
    """Whether ``offset`` is the record's own. If not, the record has this offset or a higher one, or was not appended."""
    partition: int
    offset: int
    noted_ms: int
    """The wall-clock time of the first use, when the window begins."""
    timestamp_ms: int = NO_TIMESTAMP
    """The timestamp of the record."""


def keys_partition(topic_id: UUID, partition_count: int) -> int:
    """The partition of ``__idempotency`` that has the keys of a topic."""
    return topic_id.int % partition_count


def digest_of(tenant: bytes, key: bytes) -> bytes:
    """The digest of a tenant and a key. The length distinguishes ("a", "bc") from ("ab", "c")."""
    return blake2b(b"%d:%b%b" % (len(tenant), tenant, key), digest_size=DIGEST_BYTES).digest()


def digest_in(headers: Headers) -> bytes | None:
    """The digest of a record's key; None if it has none."""
    tenant, key = b"", None
    for name, value in headers:
        if name == KEY_HEADER:
            key = value
        elif name == TENANT_HEADER:
            tenant = value or b""
    return None if key is None else digest_of(tenant, key)


def with_key(headers: Headers, tenant: bytes, key: bytes) -> Headers:
    """The headers of a record with this key in place of any other."""
    others = tuple(header for header in headers if header[0] not in (KEY_HEADER, TENANT_HEADER))
    return (*others, (KEY_HEADER, key), *(((TENANT_HEADER, tenant),) if tenant else ()))


def encode_key(key: Key) -> bytes:
    """The key of a stored record."""
    return _KEY.pack(VERSION, key.topic_id.bytes, key.digest)


def decode_key(data: Buffer) -> Key | None:
    """Decode the key of a stored record; None if a later version wrote it."""
    if len(data) != _KEY.size or data[0] != VERSION:
        return None
    _, topic_id, digest = _KEY.unpack(data)
    return Key(UUID(bytes=topic_id), digest)


def encode_note(note: Note) -> bytes:
    """The value of a stored record."""
    return _VALUE.pack(VERSION, note.is_placed, note.partition, note.offset, note.noted_ms, note.timestamp_ms)


def decode_note(data: Buffer) -> Note | None:
    """Decode the value of a stored record; None if a later version wrote it."""
    if len(data) != _VALUE.size or data[0] != VERSION:
        return None
    _, is_placed, partition, offset, noted_ms, timestamp_ms = _VALUE.unpack(data)
    return Note(bool(is_placed), partition, offset, noted_ms, timestamp_ms)
