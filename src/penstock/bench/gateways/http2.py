"""The client's side of HTTP/2, as far as gRPC needs it: no sockets, bytes in and out.

Invariant: no more is sent than the server's flow-control windows and its limit on concurrent calls allow, every SETTINGS and PING is answered, and
the server always has room to send. Header blocks are made once: the first call on a connection fills the server's table, each later one is
six bytes. Of responses only the data and the end of a stream are read.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.address import Address
from penstock.bench.faults import BenchError

SERVICE = "/mq.MessageQueueService/"
HEAD_BYTES = 9
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
_MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 3, 4, 5
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW_DEFAULT = 65_535
_WINDOW_MAX = (1 << 31) - 1
_FRAME_BYTES_MAX = 16_384
_REFILL_BYTES = 1 << 28
_SETTING = struct.Struct(">HI")
_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">IBI")
_PREFIX = struct.Struct(">BI")
# Indexed in HPACK's table: POST, http, then the four entries that the first call added, oldest last.
_LATER_BLOCK = b"\x83\x86\xc1\xc0\xbf\xbe"


def enveloped(message: bytes) -> bytes:
    """A message as gRPC sends it: not compressed, with its length."""
    return _PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Splits the data of one stream into messages."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now."""
        text = self._data + data if self._data else data
        messages = []
        at = 0
        while len(text) - at >= _PREFIX.size:
            compressed, length = _PREFIX.unpack_from(text, at)
            if compressed:
                raise BenchError("The broker compressed a message without being asked to")
            end = at + _PREFIX.size + length
            if end > len(text):
                break
            messages.append(text[at + _PREFIX.size : end])
            at = end
        self._data = text[at:]
        return messages


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def _text(data: bytes) -> bytes:
    assert len(data) < 127, "longer text needs a longer length"
    return bytes((len(data),)) + data


def first_block(path: str, authority: str) -> bytes:
    """The header block of a connection's first call; its literals go into the server's table."""
    return (
        b"\x83\x86\x44"
        + _text(path.encode())
        + b"\x41"
        + _text(authority.encode())
        + b"\x5f"
        + _text(b"application/grpc")
        + b"\x40"
        + _text(b"te")
        + _text(b"trailers")
    )


@dataclass(slots=True)
class _Stream:
    window: int
    unsent: deque[bytes]
    ends: bool
    has_data: bool = False


class Http2Client:
    """One connection that calls one method of the service. `outbox` is what has to be sent; `on_data` gets the data of every stream."""

    def __init__(self, method: str, address: Address, on_data: Callable[[bytes], None] | None = None) -> None:
        self._block = first_block(SERVICE + method, str(address))
        self._on_data = on_data
        self._window = _WINDOW_DEFAULT
        self._stream_window = _WINDOW_DEFAULT
        self._frame_bytes_max = _FRAME_BYTES_MAX
        self._streams: dict[int, _Stream] = {}
        self._streams_max = _WINDOW_MAX
        self._waiting: deque[tuple[int, bytes, bool]] = deque()
        self._next_stream = 1
        self._data = b""
        self._unrefilled = 0
        self._ended: list[int] = []
        settings = _SETTING.pack(_INITIAL_WINDOW_SIZE, _WINDOW_MAX)
        self.outbox = bytearray(_PREFACE + frame(SETTINGS, 0, 0, settings))
        self.outbox += frame(WINDOW_UPDATE, 0, 0, _U32.pack(_WINDOW_MAX - _WINDOW_DEFAULT))

    def call(self, message: bytes, *, ends: bool = True) -> int:
        """Begin a call with its first message (`ends`: its only one); now, or when the server accepts one more."""
        stream = self._next_stream
        self._next_stream += 2
        if len(self._streams) < self._streams_max:
            self._begin(stream, message, ends=ends)
        else:
            self._waiting.append((stream, message, ends))
        return stream

    def _begin(self, stream: int, message: bytes, *, ends: bool) -> None:
        self.outbox += frame(HEADERS, END_HEADERS, stream, self._block)
        self._block = _LATER_BLOCK
        self._streams[stream] = _Stream(self._stream_window, deque(), ends)
        self.send(stream, message)

    def send(self, stream: int, message: bytes) -> None:
        """One more message of a call; it waits when a window is full."""
        state = self._streams[stream]
        data = enveloped(message)
        if len(data) <= self._frame_bytes_max:
            state.unsent.append(data)
        else:
            step = self._frame_bytes_max
            state.unsent.extend(data[at : at + step] for at in range(0, len(data), step))
        self._flush(stream, state)

    def _flush(self, stream: int, state: _Stream) -> None:
        unsent = state.unsent
        while unsent:
            size = len(unsent[0])
            if size > self._window or size > state.window:
                return
            self._window -= size
            state.window -= size
            piece = unsent.popleft()
            flags = END_STREAM if state.ends and not unsent else 0
            self.outbox += _HEAD.pack(size << 8, flags, stream)
            self.outbox += piece

    def receive(self, data: memoryview) -> list[int]:
        """Take in what came: the streams that it ended well. What must be sent in return is in `outbox`."""
        text = self._data + data if self._data else bytes(data)
        at = 0
        end = len(text)
        while end - at >= HEAD_BYTES:
            head, flags, stream = _HEAD.unpack_from(text, at)
            payload_at = at + HEAD_BYTES
            at = payload_at + (head >> 8)
            if at > end:
                at = payload_at - HEAD_BYTES
                break
            kind = head & 0xFF
            if kind == DATA:
                self._take_data(text[payload_at:at], flags, stream)
            elif kind == HEADERS:
                if flags & END_STREAM:
                    self._end(stream, text[payload_at:at])
            else:
                self._take_other(kind, flags, stream, text[payload_at:at])
        self._data = text[at:]
        ended, self._ended = self._ended, []
        return ended

    def _take_data(self, payload: bytes, flags: int, stream: int) -> None:
        if flags & PADDED:
            raise BenchError("The broker padded a frame, which this client does not read")
        if flags & END_STREAM:
            raise BenchError("A call ended without a status")
        if payload:
            self._streams[stream].has_data = True
            self._unrefilled += len(payload)
            if self._on_data is not None:
                self._on_data(payload)
            if self._unrefilled >= _REFILL_BYTES:
                room = _U32.pack(self._unrefilled)
                # With several streams the others have more room than this; no row gets so much data on several streams of one connection.
                self.outbox += frame(WINDOW_UPDATE, 0, 0, room) + frame(WINDOW_UPDATE, 0, stream, room)
                self._unrefilled = 0

    def _end(self, stream: int, block: bytes) -> None:
        state = self._streams.pop(stream)
        if not state.has_data:
            # The status of a refused call is in a compressed block; its readable part is better than nothing.
            readable = "".join(chr(byte) for byte in block if 32 <= byte < 127)
            raise BenchError(f"The broker refused a call: {readable}")
        self._ended.append(stream)
        if self._waiting and len(self._streams) < self._streams_max:
            next_stream, message, ends = self._waiting.popleft()
            self._begin(next_stream, message, ends=ends)

    def _take_other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), _SETTING.size):
                name, value = _SETTING.unpack_from(payload, at)
                if name == _INITIAL_WINDOW_SIZE:
                    for state in self._streams.values():
                        state.window += value - self._stream_window
                    self._stream_window = value
                elif name == _MAX_CONCURRENT_STREAMS:
                    self._streams_max = value
                elif name == _MAX_FRAME_SIZE:
                    self._frame_bytes_max = min(value, _FRAME_BYTES_MAX)
            self.outbox += frame(SETTINGS, ACK, 0, b"")
            self._flush_all()
        elif kind == PING and not flags & ACK:
            self.outbox += frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE:
            (room,) = _U32.unpack(payload)
            if not stream:
                self._window += room
                self._flush_all()
            elif stream in self._streams:
                self._streams[stream].window += room
                self._flush(stream, self._streams[stream])
        elif kind in (RST_STREAM, GOAWAY):
            text = payload[8:].decode(errors="replace") if kind == GOAWAY else f"code {payload.hex()}"
            raise BenchError(
                f"The broker ended {'the connection' if kind == GOAWAY else 'a call'}: {text}; see its log"
            )

    def _flush_all(self) -> None:
        for stream, state in self._streams.items():
            if state.unsent:
                self._flush(stream, state)
