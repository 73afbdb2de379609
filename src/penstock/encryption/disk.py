"""A disk that encrypts what another disk stores. Names, sizes and positions are those of the content.

Segments are encrypted position by position (:mod:`penstock.encryption.file`); small files that are written with ``write_atomic`` are
sealed as a whole: magic (8 bytes), number of the key (4), sealed content. Other files, which are the indexes, are passed through.
A small file that does not match its seal reads as empty, which every reader of such a file takes for damage.

Files that were written before encryption was turned on are read as they are, until the keyring says that none is left.
"""

import errno
import os
import threading
from struct import Struct
from typing import Final

from penstock.encryption import crypto, header
from penstock.encryption.file import Random, SegmentFile, Tools, read_state
from penstock.encryption.header import CHUNK_BYTES, SegmentKeys
from penstock.encryption.keyring import Keyring
from penstock.encryption.places import is_segment, segment_place, small_place
from penstock.encryption.state import Kind, SegmentState
from penstock.limits import ENCRYPTED_FILES_REMEMBERED_MAX
from penstock.log.names import TEMPORARY
from penstock.ports import Disk, File, Report
from penstock.types import Buffer

SMALL_MAGIC: Final = b"\xf0PENBOX\x01"
DAMAGED: Final = b""
"""Instead of a small file that was damaged or changed. A power failure may do that to a snapshot, so its reader decides what to report."""
_SMALL: Final = Struct(">8sI")


class EncryptedDisk:
    """A :class:`penstock.ports.Disk`; see the module."""

    def __init__(self, disk: Disk, root: str, ring: Keyring, report: Report, *, random: Random = os.urandom) -> None:
        """``root`` is the data directory, and ``disk`` stores it."""
        self._disk: Final = disk
        self._root: Final = root
        self._random: Final = random
        self.ring = ring
        """Replace it when its keys change."""
        self._states: dict[str, SegmentState] = {}
        self._distrusted: set[str] = set()
        self._lock: Final = threading.Lock()
        """Compaction opens files in another thread."""
        self._tools: Final = Tools(
            secret=self._secret,
            new_keys=self._new_keys,
            accepts_clear=lambda: not self.ring.complete,
            random=random,
            report=report,
            replace=self._replace,
        )

    # Keys.

    def _secret(self, number: int) -> bytes:
        secret = self.ring.keys.get(number)
        if secret is None:
            raise OSError(
                errno.EIO,
                f"The keyring of {self._root} has no key {number}: restore its newest copy, which belongs to this data",
            )
        return secret

    def _new_keys(self, place: bytes) -> SegmentKeys:
        number = self.ring.current
        return header.derive_keys(self._secret(number), number, self._random(header.SALT_BYTES), place)

    # Segments.

    def open(self, path: str, *, create: bool = False) -> File:
        if not is_segment(path):
            return self._disk.open(path, create=create)
        file = self._disk.open(path, create=create)
        try:
            return SegmentFile(file, self._state_of(path, file), self._tools)
        except BaseException:
            file.close()
            raise

    def _state_of(self, path: str, file: File) -> SegmentState:
        """What is known of the segment; read from the file if this process has not written it."""
        with self._lock:
            state = self._states.pop(path, None)
            if state is None:
                state = SegmentState(path, segment_place(path))
                if path in self._distrusted:
                    state.kind = Kind.UNREADABLE
                else:
                    read_state(state, file, self._tools)
            self._states[path] = state
            if len(self._states) > ENCRYPTED_FILES_REMEMBERED_MAX:
                self._forget_oldest()
            return state

    def _forget_oldest(self) -> None:
        """Forget those that are not open; the next append to one begins a new span. One that waits for its seal is kept."""
        surplus = len(self._states) - ENCRYPTED_FILES_REMEMBERED_MAX * 7 // 8
        idle = [path for path, state in self._states.items() if not state.users and not state.closing]
        for path in idle[:surplus]:
            del self._states[path]

    def _replace(self, state: SegmentState, file: File, *, closed: bool = False) -> File:
        """Copy the content into a new file with a fresh key, which replaces the old one. Durable when this returns."""
        temporary = state.path + TEMPORARY
        self._disk.remove(temporary)
        copy = SegmentState(temporary, state.place)
        new = self._disk.open(temporary, create=True)
        source, target = SegmentFile(file, state, self._tools), SegmentFile(new, copy, self._tools)
        try:
            size = source.size()
            for at in range(0, size, CHUNK_BYTES):
                target.pwritev((source.pread(min(CHUNK_BYTES, size - at), at),), at)
            if closed:
                target.seal()
            target.sync()
            self._disk.rename(temporary, state.path)
            self._disk.sync_dir(os.path.dirname(state.path))
        except BaseException:
            new.close()
            raise
        finally:
            source.leave()
        file.close()
        state.take(copy)
        return new

    def encrypt_segment(self, path: str, *, closed: bool) -> bool:
        """Encrypt a segment that was written in the clear; whether it was one. Durable when this returns."""
        file = self._disk.open(path)
        try:
            state = self._state_of(path, file)
            if state.kind is not Kind.CLEAR:
                return False
            file = self._replace(state, file, closed=closed)
            return True
        finally:
            file.close()

    def distrust(self, path: str) -> None:
        """Somebody has changed a segment: it cannot be read any more."""
        with self._lock:
            self._distrusted.add(path)
            self._states.pop(path, None)

    def state_of(self, path: str) -> SegmentState:
        """What is in a segment, without keeping it open."""
        file = self._disk.open(path)
        try:
            return self._state_of(path, file)
        finally:
            file.close()

    def size(self, path: str) -> int:
        if not is_segment(path):
            return self._disk.size(path)
        file = self.open(path)
        try:
            return file.size()
        finally:
            file.close()

    # Small files.

    def read_bytes(self, path: str) -> bytes:
        data = self._disk.read_bytes(path)
        if not data.startswith(SMALL_MAGIC):
            return DAMAGED if self.ring.complete else data
        if len(data) < _SMALL.size:
            return DAMAGED
        number = _SMALL.unpack_from(data)[1]
        try:
            return crypto.unseal(
                self._secret(number), data[_SMALL.size :], data[: _SMALL.size] + small_place(path, self._root)
            )
        except (crypto.WrongKeyError, OSError):
            return DAMAGED

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        number = self.ring.current
        head = _SMALL.pack(SMALL_MAGIC, number)
        salt = self._random(crypto.SALT_BYTES)
        sealed = crypto.seal(self._secret(number), salt, data, head + small_place(path, self._root))
        self._disk.write_atomic(path, head + sealed, sync=sync)

    def is_sealed(self, path: str) -> bool:
        """Whether a small file is sealed."""
        return self._disk.read_bytes(path).startswith(SMALL_MAGIC)

    # Names.

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)
        with self._lock:
            self._forget_within(target)
            state = self._states.pop(source, None)
            if state is not None and is_segment(target) and segment_place(target) == state.place:
                state.path = target
                self._states[target] = state
            if not is_segment(source):
                self._forget_within(source)

    def remove(self, path: str) -> None:
        self._disk.remove(path)
        with self._lock:
            self._states.pop(path, None)
            self._distrusted.discard(path)

    def remove_tree(self, path: str) -> None:
        self._disk.remove_tree(path)
        with self._lock:
            self._forget_within(path)

    def _forget_within(self, path: str) -> None:
        """Forget a file, or all files in a directory."""
        if is_segment(path):
            self._states.pop(path, None)
            self._distrusted.discard(path)
            return
        for held in [held for held in self._states if held.startswith(path + "/")]:
            del self._states[held]

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def listdir(self, path: str) -> list[str]:
        return self._disk.listdir(path)

    def make_dirs(self, path: str, *, sync: bool = True) -> list[str]:
        return self._disk.make_dirs(path, sync=sync)

    def sync_dir(self, path: str) -> None:
        self._disk.sync_dir(path)

    def sync_all(self, path: str) -> bool:
        return self._disk.sync_all(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)
