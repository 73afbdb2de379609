"""The file of the audit log: appended to, and rotated when it is large: ``audit.log``, ``audit.log.1`` (the last one before), ``audit.log.2`` ...

It is readable by its owner alone. Every method runs on a thread, one call at a time.
"""

import os
import sys
from typing import Final

_MODE: Final = 0o600
STDOUT: Final = "-"


def open_audit_file(path: str, bytes_max: int, files_max: int) -> "AuditFile | AuditStdout":
    """The file of the settings. OSError if it cannot be written."""
    file = AuditStdout() if path == STDOUT else AuditFile(path, bytes_max, files_max)
    file.append(b"")
    return file


class AuditFile:
    """One file and its predecessors; ``files_max`` in all."""

    def __init__(self, path: str, bytes_max: int, files_max: int) -> None:
        self._path: Final = path
        self._bytes_max: Final = bytes_max
        self._files_max: Final = files_max
        self._descriptor: int | None = None

    def append(self, data: bytes) -> None:
        """Append whole lines, and sync them. A file that was moved away is created again."""
        if self._descriptor is None or not self._is_there(self._descriptor):
            self._open()
        if self._size() and self._size() + len(data) > self._bytes_max:
            self._rotate()
        assert self._descriptor is not None
        start = self._size()
        try:
            _write_all(self._descriptor, data)
            os.fsync(self._descriptor)
        except OSError:
            # No half of a line stays in the file.
            os.ftruncate(self._descriptor, start)
            raise

    def close(self) -> None:
        """Close it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self.close()
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _is_there(self, descriptor: int) -> bool:
        try:
            found, opened = os.stat(self._path), os.fstat(descriptor)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)

    def _size(self) -> int:
        assert self._descriptor is not None
        return os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._files_max))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if os.path.exists(newer):
                os.replace(newer, older)
        if self._files_max == 1:
            os.unlink(self._path)
        self._open()


class AuditStdout:
    """Standard output, for containers whose platform collects it."""

    def append(self, data: bytes) -> None:
        """Write whole lines."""
        _write_all(sys.stdout.fileno(), data)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
