"""The head of an encrypted segment, in front of its content, in the same file.

In the same file, because a key in a file of its own could be lost, or be left behind by a rename, on its own. Two equal halves
of :data:`HALF_BYTES`, so that one damaged sector does not cost the segment, then a table of tags; numbers are big-endian:

* identity: magic (8 bytes), number of the key in the keyring (4), salt (32), MAC (16). The keys of the segment are derived from the
  salt and from the place of the segment (topic, partition, base offset), so a segment that is moved elsewhere cannot be read there;
* at :data:`SEAL_AT`, once the segment is closed: magic (8), size (8), seed (8), digest of the tags (16), MAC (16);
* from :data:`SPANS_AT` on, spans: first position (8), order (4), nonce (12), MAC (16);
* in the file at :data:`TAGS_AT`: the GMAC of each :data:`CHUNK_BYTES` of a closed segment, 16 bytes each.

A span says with which nonce the bytes from its first position on are encrypted. A new one replaces all that begin at its
position or later. It is noted before the first byte is written wherever another byte may have been written before.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

from penstock.encryption import crypto
from penstock.limits import KIB, SEGMENT_BYTES_MAX

HALF_BYTES: Final = 4 * KIB
SEAL_AT: Final = 512
SPANS_AT: Final = 1 * KIB
TAGS_AT: Final = 2 * HALF_BYTES
CHUNK_BYTES: Final = 256 * KIB
"""What one damaged byte of a closed segment costs; and what a reader of one record must check."""
CHUNKS_MAX: Final = -(-SEGMENT_BYTES_MAX // CHUNK_BYTES)
HEADER_BYTES: Final = TAGS_AT + CHUNKS_MAX * crypto.MAC_BYTES
"""Where the content begins. Mostly a hole, which takes no space."""

MAGIC: Final = b"\xf0PENSEG\x01"
"""No batch begins with it: offsets are not negative."""
_SEAL_MAGIC: Final = b"\xf0PENEND\x01"
_IDENTITY: Final = Struct(">8sI32s")
_SEAL: Final = Struct(">8sQ8s16s")
_SPAN: Final = Struct(">QI12s")
SALT_BYTES: Final = 32
SEED_BYTES: Final = crypto.NONCE_BYTES - 4
SPAN_BYTES: Final = _SPAN.size + crypto.MAC_BYTES
SPANS_MAX: Final = (HALF_BYTES - SPANS_AT) // SPAN_BYTES
NO_SEAL: Final = bytes(_SEAL.size + crypto.MAC_BYTES)

assert HEADER_BYTES % HALF_BYTES == 0
assert SPANS_MAX > 64


class Span(NamedTuple):
    """The bytes from ``start`` on are encrypted with ``nonce``."""

    start: int
    order: int
    nonce: bytes


class Seal(NamedTuple):
    """The segment is closed: its size, and what authenticates its chunks."""

    size: int
    seed: bytes
    tags_digest: bytes


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The keys of one segment."""

    number: int
    salt: bytes
    content: bytes
    mac: bytes
    chunks: bytes

    def __repr__(self) -> str:
        return f"SegmentKeys(number={self.number})"


def derive_keys(secret: bytes, number: int, salt: bytes, place: bytes) -> SegmentKeys:
    """The keys of the segment at ``place``. ``secret`` has this number in the keyring."""
    content, mac, chunks = (crypto.derive(secret, purpose, salt, place) for purpose in (b"content", b"mac", b"chunks"))
    return SegmentKeys(number, salt, content, mac, chunks)


def is_begun(half: bytes) -> bool:
    """Whether somebody has begun to write an identity here."""
    return half.startswith(MAGIC[:1])


def numbers_in(halves: Iterable[bytes]) -> set[int]:
    """The numbers of the keys that the halves name, unchecked. A half that a power failure has cut short names none."""
    ends = _IDENTITY.size, _IDENTITY.size + crypto.MAC_BYTES
    return {_IDENTITY.unpack_from(half)[1] for half in halves if half.startswith(MAGIC) and any(half[slice(*ends)])}


def salt_in(half: bytes, number: int) -> bytes | None:
    """The salt in a half whose key has this number."""
    if len(half) < _IDENTITY.size + crypto.MAC_BYTES or not half.startswith(MAGIC):
        return None
    _, named, salt = _IDENTITY.unpack_from(half)
    return salt if named == number else None


def identity(keys: SegmentKeys) -> bytes:
    """The identity of a segment."""
    body = _IDENTITY.pack(MAGIC, keys.number, keys.salt)
    return body + crypto.mac(keys.mac, b"identity" + body)


def is_identity(half: bytes, keys: SegmentKeys) -> bool:
    """Whether the half belongs to these keys."""
    wanted = identity(keys)
    return crypto.same(half[: len(wanted)], wanted)


def encode_span(span: Span, keys: SegmentKeys) -> bytes:
    """A span as it is stored."""
    body = _SPAN.pack(*span)
    return body + crypto.mac(keys.mac, b"span" + body)


def spans_in(halves: Iterable[bytes], keys: SegmentKeys) -> tuple[Span, ...]:
    """The spans that count, by their first positions. A span that is damaged in both halves is missing."""
    found: dict[int, Span] = {}
    for half in halves:
        for at in range(SPANS_AT, len(half) - SPAN_BYTES + 1, SPAN_BYTES):
            body, mac = half[at : at + _SPAN.size], half[at + _SPAN.size : at + SPAN_BYTES]
            if any(mac) and crypto.same(mac, crypto.mac(keys.mac, b"span" + body)):
                span = Span(*_SPAN.unpack(body))
                found[span.order] = span
    spans: list[Span] = []
    for order in sorted(found):
        spans = [*before(spans, found[order].start), found[order]]
    return tuple(spans)


def before(spans: Iterable[Span], position: int) -> list[Span]:
    """The spans that begin before ``position``."""
    return [span for span in spans if span.start < position]


def encode_seal(seal: Seal, spans: tuple[Span, ...], keys: SegmentKeys) -> bytes:
    """The seal as it is stored; it also covers the spans of its content."""
    body = _SEAL.pack(_SEAL_MAGIC, *seal)
    return body + _seal_mac(body, seal.size, spans, keys)


def seal_in(halves: Iterable[bytes], spans: tuple[Span, ...], keys: SegmentKeys) -> Seal | None:
    """The seal; None if there is none that matches the spans."""
    for half in halves:
        body = half[SEAL_AT : SEAL_AT + _SEAL.size]
        found = half[SEAL_AT + _SEAL.size : SEAL_AT + len(NO_SEAL)]
        if len(body) == _SEAL.size and body.startswith(_SEAL_MAGIC):
            seal = Seal(*_SEAL.unpack(body)[1:])
            if crypto.same(found, _seal_mac(body, seal.size, spans, keys)):
                return seal
    return None


def _seal_mac(body: bytes, size: int, spans: tuple[Span, ...], keys: SegmentKeys) -> bytes:
    # A span after the content may be known here and not on disk: its write failed.
    of_content = b"".join(encode_span(span, keys) for span in before(spans, size))
    return crypto.mac(keys.mac, b"seal" + body + of_content)


def tags_digest(tags: bytes) -> bytes:
    """What the seal notes of the table of tags."""
    return sha256(tags).digest()[: crypto.MAC_BYTES]


def decrypt(keys: SegmentKeys, spans: tuple[Span, ...], data: bytes, position: int) -> bytes:
    """The content of the encrypted bytes ``data`` at ``position``. Bytes without a span are zeros."""
    end = position + len(data)
    number = bisect_right(spans, position, key=_start_of) - 1
    if number >= 0 and (number + 1 == len(spans) or spans[number + 1].start >= end):
        return crypto.decrypt_at(keys.content, spans[number].nonce, position, data)
    parts: list[bytes] = []
    while position < end:
        until = min(end, spans[number + 1].start) if number + 1 < len(spans) else end
        at = position - (end - len(data))
        piece = data[at : at + until - position]
        if number < 0:
            parts.append(bytes(len(piece)))
        else:
            parts.append(crypto.decrypt_at(keys.content, spans[number].nonce, position, piece))
        position = until
        number += 1
    return b"".join(parts)


def _start_of(span: Span) -> int:
    return span.start
