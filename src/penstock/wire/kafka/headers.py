"""Request and response headers, and the frame: a four-byte length, a header, a body.

Header versions follow from the API and its version: flexible requests have header 2 and flexible responses header 1,
the others 1 and 0. There is one exception: an ApiVersions response has header 0, because the client that reads
it does not yet know what the broker speaks. And `client_id` is never compact, not even in header 2.
"""

from struct import Struct
from typing import Final

import msgspec

from penstock.types import Buffer
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import FLEXIBLE_FROM, FLEXIBLE_NEVER
from penstock.wire.kafka.primitives import DECODE_ERRORS, malformed, skip_tags, truncated

_unpack_request: Final = Struct(">hhih").unpack_from
_pack_request: Final = Struct(">ihhih").pack
_unpack_i32: Final = Struct(">i").unpack_from
_pack_response_v0: Final = Struct(">ii").pack
_pack_response_v1: Final = Struct(">iiB").pack


class RequestHeader(msgspec.Struct, gc=False):
    """Precedes every request body. The codec may not know the `api_key`."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(buf: Buffer, pos: int = 0) -> tuple[RequestHeader, int]:
    """Read a request header; return it and the position of the body.

    For an API key that the codec does not know the position is that of header 1: there is no body to read anyway.
    """
    try:
        api_key, api_version, correlation_id, client_id_len = _unpack_request(buf, pos)
        pos += 10
        client_id: str | None = None
        if client_id_len >= 0:
            stop = pos + client_id_len
            client_id = str(buf[pos:stop], "utf-8")
            pos = stop
        if api_version >= FLEXIBLE_FROM.get(api_key, FLEXIBLE_NEVER):
            tags = buf[pos]
            pos += 1
            if tags:
                pos = skip_tags(buf, pos, tags)
    except DECODE_ERRORS as error:
        raise malformed("RequestHeader", error) from None
    if pos > len(buf):
        raise truncated("RequestHeader")
    return RequestHeader(api_key, api_version, correlation_id, client_id), pos


def decode_response_header(buf: Buffer, pos: int, header_version: int) -> tuple[int, int]:
    """Read a response header of version 0 or 1; return the correlation id and the position of the body."""
    try:
        (correlation_id,) = _unpack_i32(buf, pos)
        pos += 4
        if header_version:
            tags = buf[pos]
            pos += 1
            if tags:
                pos = skip_tags(buf, pos, tags)
    except DECODE_ERRORS as error:
        raise malformed("ResponseHeader", error) from None
    if pos > len(buf):
        raise truncated("ResponseHeader")
    return correlation_id, pos


def frame(correlation_id: int, header_version: int, parts: list[Buffer]) -> list[Buffer]:
    """Put length and response header before an encoded response. Large records stay the buffers they were."""
    if header_version:
        prefix = _pack_response_v1(5 + sum(map(len, parts)), correlation_id, 0)
    else:
        prefix = _pack_response_v0(4 + sum(map(len, parts)), correlation_id)
    return [prefix + parts[0], *parts[1:]]


def frame_request(header: RequestHeader, parts: list[Buffer]) -> list[Buffer]:
    """Put length and request header before an encoded request."""
    client_id = b"" if header.client_id is None else header.client_id.encode()
    client_id_len = -1 if header.client_id is None else len(client_id)
    flexible = header.api_version >= FLEXIBLE_FROM.get(header.api_key, FLEXIBLE_NEVER)
    tail = client_id + b"\0" if flexible else client_id
    size = 10 + len(tail) + sum(map(len, parts))
    prefix = _pack_request(size, header.api_key, header.api_version, header.correlation_id, client_id_len)
    return [prefix + tail + parts[0], *parts[1:]]


def decode_frame_size(buf: Buffer, pos: int, frame_bytes_max: int) -> int:
    """Read a frame's length prefix and refuse one that is negative or over the limit of this connection."""
    (size,) = _unpack_i32(buf, pos)
    if not 0 <= size <= frame_bytes_max:
        raise ProtocolViolation(f"A frame declares {size} bytes; at most {frame_bytes_max} are accepted")
    return int(size)
