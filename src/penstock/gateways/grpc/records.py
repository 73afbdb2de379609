"""From a publisher's message to a record. ``wire/mq/messages.py`` has the other direction.

A header's value is a string in the API and bytes in a record. One that is not UTF-8 is base64, and its name is in
``base64_headers``.
"""

from penstock.core.publish import NewRecord
from penstock.errors import PenstockError, Reason
from penstock.records.records import Headers
from penstock.text import BASE64, bytes_of
from penstock.wire.mq.mq_generated import PublishRequest


def new_record(request: PublishRequest) -> NewRecord:
    """The record that a publisher sent. PenstockError if it is invalid."""
    # Each access to a message takes a tenth of a microsecond, so rare fields are read only where they can matter.
    value: bytes | None = request.payload
    if not value and request.tombstone:
        value = None
    return NewRecord(
        request.key if request.HasField("key") else None,
        value,
        _headers_in(request) if request.headers else (),
        request.partition if request.HasField("partition") else None,
        request.timestamp_ms or None,
    )


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
        return bytes_of(value, BASE64)
    except ValueError:
        raise PenstockError(
            Reason.INVALID_RECORD, f"Header {name[:64]!r} is listed in base64_headers, but is not base64"
        ) from None
