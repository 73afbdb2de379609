"""A record as JSON, both ways: what ``consume -o ndjson`` writes, ``produce --input ndjson`` reads.

Text is text; bytes that are not UTF-8 are base64, with ``"encoding": "base64"`` beside a value and
``"key_encoding": "base64"`` beside a key. Headers are a list, since a name may occur twice.
"""

from typing import TYPE_CHECKING

import msgspec

from penstock.cli.output import Row, key_and_value
from penstock.text import BASE64, bytes_of, text_of

if TYPE_CHECKING:
    from penstock.client import ConsumerRecord


class JsonRecord(msgspec.Struct, frozen=True):
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None


class _Header(msgspec.Struct, frozen=True):
    key: str
    value: str | None = None
    encoding: str | None = None


class _Line(msgspec.Struct, frozen=True):
    value: str | None
    encoding: str | None = None
    key: str | None = None
    key_encoding: str | None = None
    headers: list[_Header] = []
    timestamp: int | None = None


def encode_record(record: "ConsumerRecord") -> Row:
    """A record as a JSON object."""
    headers: list[Row] = []
    for name, data in record.headers:
        text, header_encoding = text_of(data)
        header: Row = {"key": name, "value": text}
        headers.append({**header, "encoding": header_encoding} if header_encoding else header)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": record.timestamp_type.value,
        **key_and_value(*text_of(record.key), *text_of(record.value)),
        "headers": headers,
    }


def decode_record(line: bytes) -> JsonRecord:
    """Parse a line as a record; ValueError or msgspec.DecodeError if it is not one. Its topic, partition and offset are ignored."""
    found = msgspec.json.decode(line, type=_Line)
    return JsonRecord(
        _to_bytes(found.key, found.key_encoding),
        _to_bytes(found.value, found.encoding),
        [(header.key, _to_bytes(header.value, header.encoding)) for header in found.headers],
        found.timestamp,
    )


def _to_bytes(text: str | None, encoding: str | None) -> bytes | None:
    if text is None:
        return None
    if encoding not in (None, BASE64):
        raise ValueError(f"Unknown encoding {encoding!r}; use base64 or leave it out")
    return bytes_of(text, encoding)
