"""Answers, as lines: ``{"ok": true, "data": ...}`` or ``{"ok": false, "error": ...}``."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.publish import Placed
from penstock.gateways.tcp.requests import Request
from penstock.text import text_of

_encoder: Final = msgspec.json.Encoder()
_encode: Final = _encoder.encode
encode_lines: Final = _encoder.encode_lines


class LineRecord(msgspec.Struct, rename={"key_encoding": "keyEncoding"}, gc=False):
    """A record in an answer. Bytes that are not UTF-8 are base64, and an encoding field says so."""

    offset: int
    timestamp: str | None
    value: str | None
    key: str | None
    partition: int | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    key_encoding: str | UnsetType = UNSET


class SuccessLine(msgspec.Struct, gc=False):
    """The answer to a request that was carried out."""

    ok: bool
    data: object


class FailureLine(msgspec.Struct, gc=False):
    """The answer to a request that was refused."""

    ok: bool
    error: str


def failure(text: str) -> bytes:
    """The line of an error."""
    return _encode(FailureLine(False, text)) + b"\n"


def answer(data: object) -> bytes:
    """The line of a result."""
    return _encode(SuccessLine(True, data)) + b"\n"


def produced(request: Request, placed: Placed) -> SuccessLine:
    """The answer to a produce: the record. Its key and value are returned as they were sent."""
    partition, offset, timestamp_ms = placed
    time = iso_time(timestamp_ms)
    if request.encoding is None and request.key_encoding is None:
        return SuccessLine(True, LineRecord(offset, time, request.value, request.key, partition))
    encoding = UNSET if request.encoding is None else request.encoding
    key_encoding = UNSET if request.key_encoding is None or request.key is None else request.key_encoding
    return SuccessLine(True, LineRecord(offset, time, request.value, request.key, partition, encoding, key_encoding))


def record(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> LineRecord:
    """A record that was fetched."""
    value_text, encoding = text_of(value)
    key_text, key_encoding = text_of(key)
    return LineRecord(
        offset, iso_time(timestamp_ms), value_text, key_text, UNSET, encoding or UNSET, key_encoding or UNSET
    )


@lru_cache(maxsize=4096)
def iso_time(timestamp_ms: int) -> str | None:
    """A time in ISO 8601 and UTC; None if the record has no timestamp, or one that is out of range."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
