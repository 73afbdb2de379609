"""Hand-written encoders for ``Message`` and ``MessageFrame``: a subscriber gets many of them, and these take a third of the time of the generated code.

The output is the same as that of the generated code, byte for byte (a test checks it): fields in the order of their numbers,
without those that have their default value.

A header's value is bytes in a record and a string in the API. A value that is not UTF-8 is encoded as base64, and its name is
listed in ``base64_headers``. A null value is the empty string. Of several headers with the same name, which Kafka's clients may
send, the API has the last one.
"""

from base64 import b64encode
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from penstock.wire.mq.ids import USUAL_OFFSETS, MessageIds

_ID: Final = b"\x0a\x24"
"""With its length: an id is always 36 characters."""
_TOPIC: Final = b"\x12"
_PAYLOAD: Final = b"\x1a"
_TIMESTAMP: Final = b"\x20"
_HEADERS: Final = b"\x2a"
_PARTITION: Final = b"\x50"
_OFFSET: Final = b"\x58"
_KEY: Final = b"\x62"
_TIMESTAMP_MS: Final = b"\x68"
_BASE64_HEADERS: Final = b"\x72"
_TOMBSTONE: Final = b"\x78\x01"
_ATTEMPTS: Final = b"\x80\x01"
_LEASE_UNTIL_MS: Final = b"\x88\x01"
_LAST_ERROR: Final = b"\x92\x01"
_FRAME_MESSAGE: Final = b"\x0a"
_ENTRY_KEY: Final = b"\x0a"
_ENTRY_VALUE: Final = b"\x12"

_MS: Final = 1000
_BITS: Final = 7
_MORE: Final = 0x80
_LOW: Final = 0x7F
_UNSIGNED: Final = 2**64 - 1
_SHORT_MAX: Final = 1 << 14
_SHORT: Final = tuple(
    bytes((number,)) if number < _MORE else bytes((number & _LOW | _MORE, number >> _BITS))
    for number in range(_SHORT_MAX)
)
"""What most lengths are: one or two bytes."""

Headers = tuple[tuple[str, bytes | None], ...]


def varint(number: int) -> bytes:
    """A 64-bit number in groups of seven bits, lowest first; a negative one as its two's complement."""
    if 0 <= number < _SHORT_MAX:
        return _SHORT[number]
    number &= _UNSIGNED
    groups = bytearray()
    while number >= _MORE:
        groups.append(number & _LOW | _MORE)
        number >>= _BITS
    groups.append(number)
    return bytes(groups)


class MessageEncoder:
    """For the records of one partition."""

    __slots__ = (
        "_before_offset",
        "_before_payload",
        "_id_prefix",
        "_ids",
        "_partition",
        "_second_field",
        "_stamp_field",
        "_stamp_ms",
        "_topic",
    )

    def __init__(self, topic: str, topic_id: UUID, partition: int) -> None:
        name = topic.encode()
        self._ids = MessageIds(topic_id, partition)
        self._id_prefix = _ID + self._ids.usual_prefix
        self._topic = _TOPIC + varint(len(name)) + name
        self._before_payload = self._topic + _PAYLOAD
        self._partition = _PARTITION + varint(partition) if partition else b""
        self._stamp(0)

    def encode(
        self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> bytes:
        """One ``Message``."""
        # Records that come together have the same time, or nearly.
        if timestamp_ms != self._stamp_ms:
            self._stamp(timestamp_ms)
        name = b"%b%012x" % (self._id_prefix, offset) if offset < USUAL_OFFSETS else _ID + self._ids.of(offset)
        if headers or key is not None or not value or not offset or len(value) >= _SHORT_MAX:
            return self._encode(name, offset, key, value, headers)
        # The usual record, with as little done as can be.
        return b"".join(
            (
                name,
                self._before_payload,
                _SHORT[len(value)],
                value,
                self._before_offset,
                _SHORT[offset] if offset < _SHORT_MAX else varint(offset),
                self._stamp_field,
            )
        )

    def _encode(self, name: bytes, offset: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
        """Any other record."""
        parts = [name, self._topic]
        if value:
            parts += (_PAYLOAD, varint(len(value)), value)
        parts.append(self._second_field)
        encoded = _add_headers(parts, headers) if headers else ()
        parts.append(self._partition)
        if offset:
            parts += (_OFFSET, varint(offset))
        if key is not None:
            parts += (_KEY, varint(len(key)), key)
        parts.append(self._stamp_field)
        for header in encoded:
            parts += (_BASE64_HEADERS, varint(len(header)), header)
        if value is None:
            parts.append(_TOMBSTONE)
        return b"".join(parts)

    def _stamp(self, timestamp_ms: int) -> None:
        self._stamp_ms = timestamp_ms
        self._stamp_field = _TIMESTAMP_MS + varint(timestamp_ms) if timestamp_ms else b""
        second = timestamp_ms // _MS
        self._second_field = _TIMESTAMP + varint(second) if second else b""
        self._before_offset = self._second_field + self._partition + _OFFSET


def _add_headers(parts: list[bytes], headers: Headers) -> list[bytes]:
    """The entries of the map; gives back the names of those whose values are base64."""
    encoded = []
    for text, content in dict(headers).items():
        name, value = text.encode(), content or b""
        if not value.isascii() and not _is_utf8(value):
            value = b64encode(value)
            encoded.append(name)
        entry = b"".join((_ENTRY_KEY, varint(len(name)), name, _ENTRY_VALUE, varint(len(value)), value))
        parts += (_HEADERS, varint(len(entry)), entry)
    return encoded


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_lease(attempts: int, lease_until_ms: int, last_error: str | None) -> bytes:
    """What a leased record has besides; it goes behind the ``Message``."""
    parts = [_ATTEMPTS, varint(attempts), _LEASE_UNTIL_MS, varint(lease_until_ms)]
    if last_error:
        text = last_error.encode()
        parts += (_LAST_ERROR, varint(len(text)), text)
    return b"".join(parts)


def encode_frame(messages: Iterable[bytes]) -> bytes:
    """A ``MessageFrame`` of encoded messages."""
    parts: list[bytes] = []
    for message in messages:
        parts += (_FRAME_MESSAGE, varint(len(message)), message)
    return b"".join(parts)
