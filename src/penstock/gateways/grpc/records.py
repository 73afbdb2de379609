"""Records between the API and the core, both ways.

A header's value is bytes in a record and a string in the API. What is UTF-8 is given as it is; what is not is given as base64,
and its name stands in ``base64_headers``; the same is taken from a publisher. A null value is the empty string there. Of headers
with the same name, which Kafka's clients may send, the API has room for the last one.
"""

import binascii
from base64 import b64decode, b64encode
from typing import Final

from penstock.core.publish import NewRecord, record_id
from penstock.errors import PenstockError, Reason
from penstock.records.records import Headers, Record
from penstock.wire.mq.mq_generated import Message, PublishRequest

_MS: Final = 1000
_TIMESTAMP_MS_MIN: Final = 0


def new_record(request: PublishRequest) -> NewRecord:
    """What a publisher sent. PenstockError when it is no record."""
    # Most records are a payload and perhaps a key: each question to a message costs, so the rarer ones come last.
    return NewRecord(
        request.key if request.HasField("key") else None,
        _value(request),
        _headers_in(request) if request.headers or request.base64_headers else (),
        request.partition if request.HasField("partition") else None,
        _timestamp_ms(request) if request.HasField("timestamp_ms") else None,
    )


def _value(request: PublishRequest) -> bytes | None:
    if not request.tombstone:
        return request.payload
    if request.payload:
        raise PenstockError(Reason.INVALID_RECORD, "a tombstone has no payload: leave one of the two out")
    return None


def _timestamp_ms(request: PublishRequest) -> int:
    if request.timestamp_ms < _TIMESTAMP_MS_MIN:
        raise PenstockError(
            Reason.INVALID_TIMESTAMP,
            f"timestamp_ms is {request.timestamp_ms}; give milliseconds since 1970, or leave it out to have the time of arrival",
        )
    return request.timestamp_ms


def _headers_in(request: PublishRequest) -> Headers:
    encoded = frozenset(request.base64_headers)
    unknown = encoded.difference(request.headers)
    if unknown:
        raise PenstockError(
            Reason.INVALID_RECORD, f"base64_headers names {min(unknown)[:64]!r}, which is not among the headers"
        )
    return tuple(
        (name, _decoded(name, value) if name in encoded else value.encode()) for name, value in request.headers.items()
    )


def _decoded(name: str, value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise PenstockError(
            Reason.INVALID_RECORD, f"header {name[:64]!r} is not base64, though base64_headers says so"
        ) from None


def message(topic: str, partition: int, record: Record) -> Message:
    """What a subscriber is given."""
    offset, timestamp_ms, key, value, headers = record
    given = Message(
        id=record_id(topic, partition, offset),
        topic=topic,
        payload=value,
        timestamp=timestamp_ms // _MS,
        partition=partition,
        offset=offset,
        key=key,
        timestamp_ms=timestamp_ms,
    )
    if headers:
        add_headers(given, headers)
    if value is None:
        given.tombstone = True
    return given


def add_headers(given: Message, headers: Headers) -> None:
    """Put a record's headers into a message."""
    names, encoded = given.headers, []
    for name, value in dict(headers).items():
        if value is None:
            names[name] = ""
            continue
        try:
            names[name] = value.decode()
        except UnicodeDecodeError:
            names[name] = b64encode(value).decode()
            encoded.append(name)
    if encoded:
        given.base64_headers.extend(encoded)
