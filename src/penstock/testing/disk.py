"""A disk in memory with power failures.

It distinguishes what a process sees from what would survive: the bytes of a file survive after ``sync`` of the file, the names
in a directory after ``sync_dir``. :meth:`SimulatedDisk.lose_power` restores what survives, and keeps a random part of the rest,
as real disks do: some of the unsynced writes, the last of them incomplete, sometimes the new size with zeros instead of the
bytes, and of the unsynced changes of names the first few or any, because POSIX guarantees no order.

Faults can be scheduled: a capacity (ENOSPC), a maximum file size (EFBIG, as RLIMIT_FSIZE), a failure of the next call of a kind.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from penstock.types import Buffer


@dataclass(slots=True)
class _Inode:
    """The content of a file."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    # Since the last sync: (position, bytes) of a write, (size, None) of a truncate.
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)


@dataclass(slots=True)
class _Directory:
    """The names in a directory: files, and directories (None)."""

    names: dict[str, _Inode | None] = field(default_factory=dict)
    synced: dict[str, _Inode | None] = field(default_factory=dict)
    # Names after each change since the last sync, oldest first.
    pending: list[dict[str, _Inode | None]] = field(default_factory=list)

    def changed(self) -> None:
        self.pending.append(dict(self.names))


class SimulatedFile:
    """A :class:`penstock.ports.File` of a :class:`SimulatedDisk`."""

    __slots__ = ("_boot", "_disk", "_inode", "_open")

    def __init__(self, disk: "SimulatedDisk", inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._boot = disk.boots
        self._open = True
        disk.open_files += 1

    def _alive(self) -> _Inode:
        if not self._open or self._boot != self._disk.boots:
            raise OSError(errno.EBADF, "The file is closed, or from before the power failed")
        return self._inode

    def pread(self, length: int, position: int) -> bytes:
        inode = self._alive()
        self._disk.meet_fault("pread")
        return bytes(inode.data[position : position + length])

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Without enough space, a part is written before the error, as on a real disk."""
        inode = self._alive()
        self._disk.meet_fault("pwritev")
        data = b"".join(bytes(buffer) for buffer in buffers)
        fits = self._disk.bytes_that_fit(inode, position, len(data))
        self._disk.write(inode, position, data[:fits])
        if fits < len(data):
            over_file = self._disk.file_bytes_max is not None and position + len(data) > self._disk.file_bytes_max
            code = errno.EFBIG if over_file else errno.ENOSPC
            raise OSError(code, os.strerror(code))
        return len(data)

    def sync(self) -> None:
        inode = self._alive()
        self._disk.meet_fault("sync")
        inode.synced = bytes(inode.data)
        inode.pending.clear()

    def truncate(self, size: int) -> None:
        inode = self._alive()
        self._disk.meet_fault("truncate")
        _resize(inode.data, size)
        inode.pending.append((size, None))

    def size(self) -> int:
        return len(self._alive().data)

    def seal(self) -> bool:
        return False

    def close(self) -> None:
        if self._open and self._boot == self._disk.boots:
            self._disk.open_files -= 1
        self._open = False


class SimulatedDisk:
    """A :class:`penstock.ports.Disk` in memory; see the module."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self._directories: dict[str, _Directory] = {"/": _Directory()}
        self._faults: dict[str, list[int]] = {}
        self.boots = 0
        """Increases whenever the process ends or the power fails; files opened before are invalid."""
        self.open_files = 0
        self.capacity_bytes: int | None = None
        """Space for all files together; None for no limit."""
        self.file_bytes_max: int | None = None
        """Maximum size of a file; None for no limit."""

    # Faults.

    def fail_next(self, operation: str, code: int = errno.EIO, count: int = 1) -> None:
        """The next ``count`` calls of ``operation`` (the name of a method of Disk or File) raise this error."""
        self._faults.setdefault(operation, []).extend([code] * count)

    def meet_fault(self, operation: str) -> None:
        """Raise the next scheduled error of this operation."""
        codes = self._faults.get(operation)
        if codes:
            code = codes.pop(0)
            raise OSError(code, os.strerror(code))

    def clear_faults(self) -> None:
        """Cancel all scheduled errors and limits."""
        self._faults.clear()
        self.capacity_bytes = self.file_bytes_max = None

    def end_process(self) -> None:
        """The process that used the disk is killed: its files are closed, written bytes stay."""
        self.boots += 1
        self.open_files = 0

    def lose_power(self, *, torn: bool = True) -> None:
        """Restore what survives. With ``torn`` a random part of what was not synced survives too."""
        self.end_process()
        for directory in self._directories.values():
            names = self._surviving_names(directory) if torn else directory.synced
            directory.names = dict(names)
            directory.synced = dict(names)
            directory.pending.clear()
        self._drop_unreachable()
        for inode in self._inodes():
            content = self._torn(inode) if torn else inode.synced
            inode.data = bytearray(content)
            inode.synced = bytes(content)
            inode.pending.clear()

    def _surviving_names(self, directory: _Directory) -> dict[str, _Inode | None]:
        """The names after the first few of the changes, or after any of them that do not depend on a lost one."""
        steps = self._random.randint(0, len(directory.pending))
        if self._random.random() < 0.5:
            return directory.pending[steps - 1] if steps else directory.synced
        names, before = dict(directory.synced), directory.synced
        lost: set[str] = set()
        for after in directory.pending:
            changed = _changed_names(before, after)
            if lost.isdisjoint(changed) and self._random.random() < 0.5:
                for name in changed:
                    names.pop(name, None)
                names.update((name, after[name]) for name in changed if name in after)
            else:
                lost.update(changed)
            before = after
        return names

    def _torn(self, inode: _Inode) -> bytes:
        data = bytearray(inode.synced)
        if not inode.pending:
            return bytes(data)
        survivors = self._random.randint(0, len(inode.pending))
        for position, written in inode.pending[:survivors]:
            _apply(data, position, written)
        if survivors < len(inode.pending):
            position, written = inode.pending[survivors]
            if written:
                kept = self._random.randint(0, len(written))
                _apply(data, position, written[:kept])
                if self._random.random() < 0.5:
                    # Only the size was written.
                    _resize(data, max(len(data), position + len(written)))
        return bytes(data)

    def _inodes(self) -> list[_Inode]:
        found = {
            id(inode): inode
            for directory in self._directories.values()
            for inode in directory.names.values()
            if inode is not None
        }
        return list(found.values())

    def _drop_unreachable(self) -> None:
        """Drop directories whose own name did not survive, with their contents."""
        for path in sorted(self._directories):
            if path == "/":
                continue
            parent, name = _split(path)
            directory = self._directories.get(parent)
            if directory is None or name not in directory.names:
                del self._directories[path]
        for path, directory in self._directories.items():
            for name, inode in list(directory.names.items()):
                if inode is None and _join(path, name) not in self._directories:
                    self._directories[_join(path, name)] = _Directory()

    # Space.

    def bytes_that_fit(self, inode: _Inode, position: int, length: int) -> int:
        """How many of ``length`` bytes at ``position`` can be written."""
        fits = length
        if self.file_bytes_max is not None:
            fits = min(fits, max(self.file_bytes_max - position, 0))
        if self.capacity_bytes is not None:
            # Overwriting existing bytes takes no space.
            free = self.capacity_bytes - sum(len(other.data) for other in self._inodes())
            fits = min(fits, max(len(inode.data) - position, 0) + max(free, 0))
        return fits

    def write(self, inode: _Inode, position: int, data: bytes) -> None:
        if data:
            _apply(inode.data, position, data)
            inode.pending.append((position, data))

    # The port.

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.meet_fault("open")
        directory, name = self._parent(path)
        inode = directory.names.get(name)
        if inode is None:
            if name in directory.names:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = directory.names[name] = _Inode()
            directory.changed()
        return SimulatedFile(self, inode)

    def read_bytes(self, path: str) -> bytes:
        self.meet_fault("read_bytes")
        return bytes(self._inode(path).data)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.meet_fault("write_atomic")
        directory, name = self._parent(path)
        inode = _Inode()
        if self.bytes_that_fit(inode, 0, len(data)) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.write(inode, 0, bytes(data))
        directory.names[name] = inode
        directory.changed()
        if sync:
            inode.synced = bytes(inode.data)
            inode.pending.clear()
            self._sync(directory)

    def exists(self, path: str) -> bool:
        parent, name = _split(path)
        directory = self._directories.get(parent)
        return path == "/" or (directory is not None and name in directory.names)

    def listdir(self, path: str) -> list[str]:
        directory = self._directories.get(path)
        return [] if directory is None else sorted(directory.names)

    def make_dirs(self, path: str, *, sync: bool = True) -> list[str]:
        if self.exists(path):
            return []
        self.meet_fault("make_dirs")
        parent, name = _split(path)
        changed = self.make_dirs(parent, sync=sync)
        directory = self._directories[parent]
        directory.names[name] = None
        directory.changed()
        # A removed or renamed one may still exist, because a power failure before the next sync restores it.
        self._directories.setdefault(path, _Directory())
        if sync:
            self._sync(directory)
        return [*changed, parent]

    def rename(self, source: str, target: str) -> None:
        self.meet_fault("rename")
        from_directory, from_name = self._parent(source)
        to_directory, to_name = self._parent(target)
        if from_name not in from_directory.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        inode = from_directory.names.pop(from_name)
        to_directory.names[to_name] = inode
        from_directory.changed()
        if to_directory is not from_directory:
            to_directory.changed()
        if inode is None:
            moved = {path: directory for path, directory in self._directories.items() if _is_within(path, source)}
            for path, directory in moved.items():
                # The old name must still exist if the rename does not survive.
                self._directories[target + path[len(source) :]] = directory
                self._directories[path] = _Directory(synced=dict(directory.synced), names={}, pending=[])

    def remove(self, path: str) -> None:
        self.meet_fault("remove")
        parent, name = _split(path)
        directory = self._directories.get(parent)
        if directory is not None and directory.names.pop(name, None) is not None:
            directory.changed()

    def remove_tree(self, path: str) -> None:
        self.meet_fault("remove_tree")
        for directory_path in [found for found in self._directories if _is_within(found, path)]:
            self._directories[directory_path].names.clear()
            self._directories[directory_path].changed()
        parent, name = _split(path)
        directory = self._directories.get(parent)
        if directory is not None and name in directory.names:
            del directory.names[name]
            directory.changed()

    def sync_dir(self, path: str) -> None:
        self.meet_fault("sync_dir")
        directory = self._directories.get(path)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._sync(directory)

    def sync_all(self, path: str) -> bool:
        try:
            self.meet_fault("sync_all")
        except OSError:
            return False
        if not self.exists(path):
            return False
        for inode in self._inodes():
            inode.synced = bytes(inode.data)
            inode.pending.clear()
        for directory in self._directories.values():
            self._sync(directory)
        return True

    def size(self, path: str) -> int:
        return len(self._inode(path).data)

    def free_bytes(self, path: str) -> int:  # noqa: ARG002 - there is one file system
        if self.capacity_bytes is None:
            return 2**62
        return max(self.capacity_bytes - sum(len(inode.data) for inode in self._inodes()), 0)

    def change(self, path: str, how: Callable[[bytearray], None]) -> None:
        """Damage a file: ``how`` changes its bytes, which are then durable."""
        inode = self._inode(path)
        how(inode.data)
        inode.synced = bytes(inode.data)
        inode.pending.clear()

    def _sync(self, directory: _Directory) -> None:
        directory.synced = dict(directory.names)
        directory.pending.clear()

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, name = _split(path)
        directory = self._directories.get(parent)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory, name

    def _inode(self, path: str) -> _Inode:
        directory, name = self._parent(path)
        inode = directory.names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode


def _changed_names(before: dict[str, _Inode | None], after: dict[str, _Inode | None]) -> list[str]:
    kept = {name for name, inode in after.items() if name in before and before[name] is inode}
    return sorted(name for name in {*before, *after} if name not in kept)


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _is_within(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(ancestor + "/")


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _apply(data: bytearray, position: int, written: bytes | None) -> None:
    """Apply a write, or a truncation (``written`` is None, ``position`` the size)."""
    if written is None:
        _resize(data, position)
        return
    if len(data) < position:
        _resize(data, position)
    data[position : position + len(written)] = written
