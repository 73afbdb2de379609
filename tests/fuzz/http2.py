"""The first frames of a gRPC client, made by hand."""

import struct

from penstock.bench.gateways.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    enveloped,
    first_block,
    frame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is not added to the table."""
    return b"\0" + _text(name) + _text(value)


def _text(data: bytes) -> bytes:
    return _length(len(data)) + data


def _length(size: int) -> bytes:
    if size < 127:
        return bytes((size,))
    out, size = bytearray((127,)), size - 127
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out)


def opening() -> list[bytes]:
    """The frames after the preface."""
    return [
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20) + struct.pack(">HI", 3, 100)),
        frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 20)),
    ]


def call(stream: int, method: str, message: bytes, authorization: bytes | None) -> list[bytes]:
    """The frames of a call."""
    block = first_block(f"/mq.MessageQueueService/{method}", "127.0.0.1:1")
    if authorization is not None:
        block += literal(b"authorization", authorization)
    return [frame(HEADERS, END_HEADERS, stream, block), frame(DATA, END_STREAM, stream, enveloped(message))]


def ping() -> bytes:
    """A ping."""
    return frame(PING, 0, 0, bytes(8))
