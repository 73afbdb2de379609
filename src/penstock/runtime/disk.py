"""The real disk: POSIX calls, without caching, and with descriptors that no child process inherits."""
# A Path costs several times the call that it wraps, and ten thousand partitions make many calls.

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Sequence
from itertools import islice
from typing import Final

from penstock.types import Buffer

IOV_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
TEMPORARY_SUFFIX: Final = ".tmp"
"""Suffix of a file that :meth:`RealDisk.write_atomic` is writing; worthless after a crash."""

_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750
"""Not for others, even in a data directory that they can enter. The umask decides about the group."""
_fdatasync = getattr(os, "fdatasync", os.fsync)
_syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
_fstatfs = getattr(ctypes.CDLL(None), "fstatfs", None)
_STATFS_BYTES: Final = 256
"""More than the size of struct statfs on any Linux. Its first field is the magic number of the file system."""
_FUSE_MAGIC: Final = 0x65735546


class RealFile:
    """A :class:`penstock.ports.File` with one descriptor. It must not be closed while ``sync`` runs in another thread."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor, for calls such as sendfile."""
        return self._fd

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        # Short reads in the middle of a file are rare (signals, 2 GiB at once) but possible.
        parts = [data]
        have = len(data)
        while have < length:
            data = os.pread(self._fd, length - have, position + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        total = sum(map(len, buffers))
        if len(buffers) <= IOV_MAX:
            written = os.pwritev(self._fd, buffers, position)
            if written == total:
                return total
        else:
            written = 0
        return written + self._write_rest(buffers, position, written, total)

    def _write_rest(self, buffers: Sequence[Buffer], position: int, written: int, total: int) -> int:
        """Continue after the first ``written`` bytes until everything is written."""
        start = written
        rest = [memoryview(buffer).cast("B") for buffer in buffers]
        skip = written
        at = 0
        while written < total:
            while skip >= len(rest[at]):
                skip -= len(rest[at])
                at += 1
            rest[at] = rest[at][skip:]
            count = os.pwritev(self._fd, list(islice(rest, at, at + IOV_MAX)), position + written)
            if count == 0:
                raise OSError(errno.EIO, "The file accepts no more bytes")
            written += count
            skip = count
        return written - start

    def sync(self) -> None:
        """fdatasync: content and size, without the times."""
        _fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def seal(self) -> bool:
        return False

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The :class:`penstock.ports.Disk` of this machine."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        try:
            return RealFile(os.open(path, flags, _FILE_MODE))
        except OSError as error:
            if create or error.errno not in (errno.EROFS, errno.EACCES):
                raise
            # Reads still work on a read-only file system.
            return RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read_bytes(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return RealFile(fd).pread(os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Write a temporary file, sync it, rename it, sync the directory."""
        temporary = path + TEMPORARY_SUFFIX
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        file = RealFile(fd)
        try:
            file.pwritev((data,), 0)
            if sync:
                os.fsync(fd)
        except OSError:
            # An incomplete file would only use space that is scarce already.
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            file.close()
        os.replace(temporary, path)
        if sync:
            self.sync_dir(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_dirs(self, path: str, *, sync: bool = True, mode: int = _DIRECTORY_MODE) -> list[str]:
        changed: list[str] = []
        missing: list[str] = []
        directory = path
        while not os.path.exists(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for directory in reversed(missing):
            os.makedirs(directory, mode, exist_ok=True)
            changed.append(os.path.dirname(directory))
        if sync:
            for parent in changed:
                self.sync_dir(parent)
        return changed

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> bool:
        """With syncfs, which only Linux has. It waits until everything is on disk, and reports errors since Linux 5.8.

        Not on FUSE: there the kernel reports success without asking the file system.
        """
        if _syncfs is None:
            return False
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _is_fuse(fd) and bool(_syncfs(fd) == 0)
        finally:
            os.close(fd)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def _is_fuse(fd: int) -> bool:
    """Whether the file is on FUSE, or on an unknown file system."""
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if _fstatfs is None or _fstatfs(fd, status) != 0:
        return True
    return ctypes.c_long.from_buffer(status).value == _FUSE_MAGIC
