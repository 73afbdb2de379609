"""One open segment of an :class:`penstock.encryption.disk.EncryptedDisk`.

Positions and sizes are those of the content: the header in front of it (:mod:`penstock.encryption.header`) is not visible.
:class:`SegmentFile` is what the log uses; the rules of nonces are in :mod:`penstock.encryption.state`.

A closed segment is sealed by the sync after :meth:`SegmentFile.seal`: only after its bytes are durable, so that a seal never
covers bytes that a power failure takes. From then on each chunk is checked before its first use. A chunk that does not match reads
as zeros, which the log refuses as damage.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.encryption import crypto, header
from penstock.encryption.header import CHUNK_BYTES, HALF_BYTES, HEADER_BYTES, TAGS_AT, Seal, SegmentKeys, Span
from penstock.encryption.state import Kind, SegmentState
from penstock.ports import File, Report
from penstock.types import Buffer

Random = Callable[[int], bytes]
_HEAD_BYTES = 2 * HALF_BYTES


@dataclass(frozen=True, slots=True)
class Tools:
    """What all files of a disk share."""

    secret: Callable[[int], bytes]
    """The key with this number; raises OSError if the keyring does not have it."""
    new_keys: Callable[[bytes], SegmentKeys]
    """Fresh keys for the segment at this place."""
    accepts_clear: Callable[[], bool]
    """Whether data in the clear may exist."""
    random: Random
    report: Report
    replace: Callable[[SegmentState, File], File]
    """Write the segment again with a fresh key, in the place of the old file."""


def read_state(state: SegmentState, file: File, tools: Tools) -> None:
    """Find out what is in a file that this process has not written."""
    head = file.pread(_HEAD_BYTES, 0)
    halves = head[:HALF_BYTES], head[HALF_BYTES:]
    if not head:
        return
    numbers = header.numbers_in(halves)
    keys = _keys_in(halves, numbers, state.place, tools)
    is_begun = any(map(header.is_begun, halves)) or not any(head)
    if keys is not None:
        spans = header.spans_in(halves, keys)
        state.become(keys, spans, -1)
        state.seal = header.seal_in(halves, spans, keys)
    elif not numbers and tools.accepts_clear() and not header.is_begun(head):
        state.kind = Kind.CLEAR
    elif is_begun and file.size() <= HEADER_BYTES:
        # A power failure left a part of a header, and no content.
        state.kind = Kind.EMPTY
    else:
        state.kind = Kind.UNREADABLE
    if state.kind is Kind.UNREADABLE:
        tools.report(f"{state.path}: the header is damaged or belongs to another file; its records cannot be read")


def _keys_in(halves: Sequence[bytes], numbers: set[int], place: bytes, tools: Tools) -> SegmentKeys | None:
    """The keys of the segment, by the first half that is sound."""
    missing: OSError | None = None
    for number in sorted(numbers):
        try:
            secret = tools.secret(number)
        except OSError as error:
            missing = error
            continue
        for half in halves:
            salt = header.salt_in(half, number)
            if salt is not None:
                keys = header.derive_keys(secret, number, salt, place)
                if header.is_identity(half, keys):
                    return keys
    if missing is not None:
        raise missing
    return None


class SegmentFile:
    """A :class:`penstock.ports.File`; see the module."""

    __slots__ = ("_checked", "_file", "_is_open", "_state", "_tools")

    def __init__(self, file: File, state: SegmentState, tools: Tools) -> None:
        self._file = file
        self._state = state
        self._tools = tools
        self._checked: dict[int, bool] = {}
        """Whether a chunk of a sealed segment matches its tag, by its number."""
        self._is_open = True
        state.enter()

    # Reading.

    def pread(self, length: int, position: int) -> bytes:
        state = self._state
        if state.kind is Kind.CLEAR:
            return self._file.pread(length, position)
        if state.kind is Kind.EMPTY:
            return b""
        if state.seal is not None:
            return self._pread_sealed(state.seal, length, position)
        data = self._file.pread(length, HEADER_BYTES + position)
        return bytes(len(data)) if state.kind is Kind.UNREADABLE else state.decrypt(data, position)

    def _pread_sealed(self, seal: Seal, length: int, position: int) -> bytes:
        length = max(0, min(length, seal.size - position))
        data = self._file.pread(length, HEADER_BYTES + position)
        content = self._state.decrypt(data, position)
        numbers = range(position // CHUNK_BYTES, -(-(position + length) // CHUNK_BYTES))
        if len(content) == length and all(self._is_sound(number, seal) for number in numbers):
            return content
        whole = bytearray(content + bytes(length - len(content)))
        for number in numbers:
            if not self._is_sound(number, seal):
                start = max(number * CHUNK_BYTES - position, 0)
                end = min((number + 1) * CHUNK_BYTES - position, length)
                whole[start:end] = bytes(end - start)
        return bytes(whole)

    def _is_sound(self, number: int, seal: Seal) -> bool:
        """Whether a chunk of a sealed segment is as it was when it was sealed."""
        known = self._checked.get(number)
        if known is None:
            keys = self._state.keys
            assert keys is not None
            tags = self._tags(seal)
            tag = tags[number * crypto.MAC_BYTES : (number + 1) * crypto.MAC_BYTES]
            known = bool(tag) and crypto.same(
                tag, self._tag_of(number, crypto.ChunkMac(keys.chunks, seal.seed), seal.size)
            )
            if not known:
                self._tools.report(
                    f"{self._state.path}: bytes {number * CHUNK_BYTES} to {min((number + 1) * CHUNK_BYTES, seal.size) - 1} "
                    "were changed after the segment was closed; their records cannot be read"
                )
            self._checked[number] = known
        return known

    def _tags(self, seal: Seal) -> bytes:
        """The tags that the seal covers; empty if neither the table nor the content matches it."""
        state = self._state
        if state.tags is None:
            count = -(-seal.size // CHUNK_BYTES)
            tags = self._file.pread(count * crypto.MAC_BYTES, TAGS_AT)
            if not crypto.same(header.tags_digest(tags), seal.tags_digest):
                # The table is damaged, or there was no space for it.
                tags = self._make_tags(seal.seed, seal.size)
            state.tags = tags if crypto.same(header.tags_digest(tags), seal.tags_digest) else b""
        return state.tags

    def _make_tags(self, seed: bytes, size: int) -> bytes:
        keys = self._state.keys
        assert keys is not None
        mac = crypto.ChunkMac(keys.chunks, seed)
        return b"".join(self._tag_of(number, mac, size) for number in range(-(-size // CHUNK_BYTES)))

    def _tag_of(self, number: int, mac: crypto.ChunkMac, size: int) -> bytes:
        start = number * CHUNK_BYTES
        return mac.tag(number, self._file.pread(min(CHUNK_BYTES, size - start), HEADER_BYTES + start))

    def size(self) -> int:
        state = self._state
        if state.kind is Kind.EMPTY:
            return 0
        if state.seal is not None:
            return state.seal.size
        size = self._file.size()
        return size if state.kind is Kind.CLEAR else max(0, size - HEADER_BYTES)

    # Writing.

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """At the end only: what is after the written bytes is lost."""
        total = sum(map(len, buffers))
        if not total:
            return 0
        state = self._state
        stream = state.stream
        if stream is None or position != state.stream_at:
            stream = self._begin(position)
        # Noted first: a failed write may have written any part.
        state.high = state.stream_at = position + total
        encrypted = [stream.update(buffer) for buffer in buffers]
        self._file.pwritev(encrypted, HEADER_BYTES + position)
        return total

    def _begin(self, position: int) -> crypto.Stream:
        """The stream for a write at ``position``: the last one, or a new one if a byte there may have been written before."""
        state = self._state
        self._reopen()
        if state.kind is Kind.UNREADABLE and position:
            raise OSError(errno.EIO, "The header of the segment is damaged, so nothing can be added to it", state.path)
        if position == 0 or state.kind is Kind.EMPTY:
            self._write_header(position)
        elif state.kind is Kind.CLEAR or len(header.before(state.spans, position)) >= header.SPANS_MAX:
            with state.lock:
                self._file = self._tools.replace(state, self._file)
        if not 0 <= state.high <= position:
            self._add_span(position)
        keys = state.keys
        assert keys is not None
        state.stream = crypto.encryptor_at(keys.content, state.spans[-1].nonce, position)
        return state.stream

    def _write_header(self, position: int) -> None:
        """A fresh key, and a first span."""
        state = self._state
        if self._file.size():
            self._file.truncate(0)
        keys = self._tools.new_keys(state.place)
        spans = (Span(0, 0, self._tools.random(crypto.NONCE_BYTES)),)
        _write_header(self._file, keys, spans)
        state.become(keys, spans, position)

    def _add_span(self, position: int) -> None:
        state = self._state
        assert state.keys is not None
        spans = header.before(state.spans, position)
        order = max((span.order for span in state.spans), default=-1) + 1
        span = Span(position, order, self._tools.random(crypto.NONCE_BYTES))
        # Until it is written, no stream: after an error the next write makes another one.
        state.spans, state.high = (*spans, span), -1
        data = header.encode_span(span, state.keys)
        for half in (0, HALF_BYTES):
            self._file.pwritev((data,), half + header.SPANS_AT + len(spans) * header.SPAN_BYTES)
        state.high = position

    def truncate(self, size: int) -> None:
        state = self._state
        if state.kind is Kind.CLEAR and size:
            self._file.truncate(size)
            return
        self._reopen()
        state.end_stream()
        if size == 0:
            self._file.truncate(0)
            state.become_empty()
        elif size <= self.size():
            self._file.truncate(HEADER_BYTES + size)
        else:
            more = size - self.size()
            for start in range(0, more, CHUNK_BYTES):
                self.pwritev((bytes(min(CHUNK_BYTES, more - start)),), self.size())

    # Closing.

    def seal(self) -> bool:
        state = self._state
        if state.kind is not Kind.ENCRYPTED or state.seal is not None or not self.size():
            return False
        state.end_stream()
        state.closing = True
        return True

    def _reopen(self) -> None:
        """It changes again: remove the seal. Durable before the content changes, or the seal would not match it."""
        state = self._state
        if not state.closing and state.seal is None:
            return
        with state.lock:
            state.closing = False
            if state.seal is not None:
                for half in (0, HALF_BYTES):
                    self._file.pwritev((header.NO_SEAL,), half + header.SEAL_AT)
                self._file.sync()
                state.seal = state.tags = None
        self._checked.clear()

    def sync(self) -> None:
        state = self._state
        with state.lock:
            self._file.sync()
            if state.closing:
                self._write_seal()
                self._file.sync()

    def _write_seal(self) -> None:
        """Authenticate the content as it is on disk."""
        state = self._state
        keys = state.keys
        assert keys is not None
        seed = self._tools.random(header.SEED_BYTES)
        size = self.size()
        tags = self._make_tags(seed, size)
        # Without space for the table, readers compute it from the content.
        with suppress(OSError):
            self._file.pwritev((tags,), TAGS_AT)
        seal = Seal(size, seed, header.tags_digest(tags))
        data = header.encode_seal(seal, state.spans, keys)
        for half in (0, HALF_BYTES):
            self._file.pwritev((data,), half + header.SEAL_AT)
        state.closing = False
        state.tags = tags
        state.seal = seal

    def close(self) -> None:
        self.leave()
        self._file.close()

    def leave(self) -> None:
        """Close it, but not the file that it was given."""
        if self._is_open:
            self._is_open = False
            self._state.leave()


def _write_header(file: File, keys: SegmentKeys, spans: tuple[Span, ...]) -> None:
    """The header of a file that has none."""
    head = header.identity(keys).ljust(header.SPANS_AT, b"\0")
    half = head + b"".join(header.encode_span(span, keys) for span in spans)
    for at in (0, HALF_BYTES):
        file.pwritev((half,), at)
