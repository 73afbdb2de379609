"""The few messages of `proto/mq.proto` that the rows send, packed by hand, and what is read of those that come back.

Invariant: field numbers are those of the proto file; a test holds them against it.
"""

from __future__ import annotations

import struct

from penstock.bench.faults import BenchError
from penstock.bench.frames import read_uvarint, uvarint

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")
_LEN = 2
FAILURES_FIELD = 3
"""In PublishFrameResponse: the records that were refused."""


def field_bytes(number: int, data: bytes) -> bytes:
    """A field that says its length: text, bytes, a message."""
    return uvarint(number << 3 | _LEN) + uvarint(len(data)) + data


def field_int(number: int, value: int) -> bytes:
    """A field with a whole number."""
    return uvarint(number << 3) + uvarint(value)


def publish_request(topic: str, payload: bytes) -> bytes:
    """PublishRequest."""
    return field_bytes(1, topic.encode()) + field_bytes(2, payload)


def publish_frame(topic: str, payloads: list[bytes], number: int) -> bytes:
    """PublishFrame: the topic stands once."""
    records = b"".join(field_bytes(2, field_bytes(2, payload)) for payload in payloads)
    return field_bytes(1, topic.encode()) + records + field_int(3, number)


def subscribe_request(topic: str, *, records_max: int = 0, batch_max: int = 0) -> bytes:
    """SubscribeRequest without a group: everything from the beginning, and nothing is committed."""
    out = field_bytes(1, topic.encode())
    if records_max:
        out += field_int(12, records_max)
    if batch_max:
        out += field_int(15, batch_max)
    return out


def enveloped(message: bytes) -> bytes:
    """A message as gRPC sends it: not compressed, with its length."""
    return _PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Cuts the data of one stream into messages."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now."""
        text = self._data + data if self._data else data
        messages = []
        at = 0
        while len(text) - at >= PREFIX_BYTES:
            compressed, length = _PREFIX.unpack_from(text, at)
            if compressed:
                raise BenchError("the broker compressed a message, which was not asked for")
            end = at + PREFIX_BYTES + length
            if end > len(text):
                break
            messages.append(text[at + PREFIX_BYTES : end])
            at = end
        self._data = text[at:]
        return messages


def find_field(message: bytes, wanted: int) -> bytes | None:
    """The first field `wanted` of those that say their length; None when there is none."""
    at = 0
    while at < len(message):
        tag, at = read_uvarint(message, at)
        value, at = read_uvarint(message, at)
        if tag & 7 == _LEN:
            if tag >> 3 == wanted:
                return message[at : at + value]
            at += value
        elif tag & 7:
            raise BenchError(f"an answer holds a field of a kind that the API does not have: tag {tag}")
    return None
