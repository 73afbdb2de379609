"""Files and directories in memory, with written and synced kept apart.

Invariant: ``durable`` of a file or directory plus its ``pending`` changes, in order, is what programs see. A sync moves the
changes that were made before it began from ``pending`` to ``durable``; nothing else does. The content of a file becomes
durable by a sync of the file, its name by a sync of the directory that holds it. That is stricter than ext4, which also keeps
the name of a new file when the file is synced.
"""

import errno
import os
import stat
from dataclasses import dataclass, field

ROOT = 1


@dataclass(slots=True)
class Change:
    """A write at ``position``, or with ``data`` None a truncate to ``position``."""

    number: int
    position: int
    data: bytes | None


@dataclass(slots=True)
class Naming:
    """What one create, unlink, mkdir, rmdir or rename did to the names of a directory; None stands for no name."""

    number: int
    names: dict[str, int | None]


@dataclass(slots=True)
class FileNode:
    """A file."""

    mode: int
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def end_sync(self, number: int) -> None:
        """Everything up to change ``number`` is durable."""
        done = 0
        for change in self.pending:
            if change.number > number:
                break
            apply(self.durable, change)
            done += 1
        del self.pending[:done]


@dataclass(slots=True)
class DirectoryNode:
    """A directory: names and the nodes that they stand for."""

    mode: int
    content: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Naming] = field(default_factory=list)

    def end_sync(self, number: int) -> None:
        """Every name change up to ``number`` is durable."""
        done = 0
        for naming in self.pending:
            if naming.number > number:
                break
            rename_in(self.durable, naming)
            done += 1
        del self.pending[:done]


Node = FileNode | DirectoryNode


def apply(content: bytearray, change: Change) -> None:
    """Do a write or a truncate to these bytes."""
    data = change.data
    if data is None:
        resize(content, change.position)
        return
    if len(content) < change.position:
        resize(content, change.position)
    content[change.position : change.position + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Cut, or extend with zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def rename_in(names: dict[str, int], naming: Naming) -> None:
    """Do a change of names to these names."""
    for name, number in naming.names.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def failure(code: int) -> OSError:
    """The error that a system call would give."""
    return OSError(code, os.strerror(code))


class State:
    """All nodes. Paths begin with a slash; errors are the OSErrors of the system calls. Not safe for threads: callers lock."""

    def __init__(self, nodes: dict[int, Node] | None = None) -> None:
        """Empty, or with these nodes, all of which must be durable."""
        self.nodes: dict[int, Node] = nodes or {ROOT: DirectoryNode(stat.S_IFDIR | 0o755)}
        self._last_node = max(self.nodes)
        self._last_change = 0

    # Finding.

    def find(self, path: str) -> int:
        """The node of a path; ENOENT, ENOTDIR."""
        number = ROOT
        for name in path.split("/"):
            if name:
                try:
                    number = self.directory(number).content[name]
                except KeyError:
                    raise failure(errno.ENOENT) from None
        return number

    def file(self, number: int) -> FileNode:
        """A file by its node; EISDIR."""
        node = self.nodes[number]
        if isinstance(node, DirectoryNode):
            raise failure(errno.EISDIR)
        return node

    def directory(self, number: int) -> DirectoryNode:
        """A directory by its node; ENOTDIR."""
        node = self.nodes[number]
        if isinstance(node, FileNode):
            raise failure(errno.ENOTDIR)
        return node

    def _place(self, path: str) -> tuple[DirectoryNode, str]:
        folder, _, name = path.rpartition("/")
        return self.directory(self.find(folder)), name

    # Names.

    def create(self, path: str, mode: int) -> int:
        """A new, empty file; EEXIST."""
        return self._add(path, FileNode(stat.S_IFREG | stat.S_IMODE(mode)))

    def make_directory(self, path: str, mode: int) -> int:
        """A new, empty directory; EEXIST."""
        return self._add(path, DirectoryNode(stat.S_IFDIR | stat.S_IMODE(mode)))

    def _add(self, path: str, node: Node) -> int:
        folder, name = self._place(path)
        if name in folder.content:
            raise failure(errno.EEXIST)
        self._last_node += 1
        self.nodes[self._last_node] = node
        self._name(folder, {name: self._last_node})
        return self._last_node

    def unlink(self, path: str) -> None:
        """Remove the name of a file. Who has it open keeps it."""
        folder, name = self._place(path)
        self.file(self.find(path))
        self._name(folder, {name: None})

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; ENOTEMPTY."""
        folder, name = self._place(path)
        if self.directory(self.find(path)).content:
            raise failure(errno.ENOTEMPTY)
        self._name(folder, {name: None})

    def rename(self, source: str, target: str) -> None:
        """Rename within a directory, replacing the target; EXDEV into another directory, which the broker never does."""
        folder, old = self._place(source)
        other, new = self._place(target)
        moved = self.find(source)
        if other is not folder:
            raise failure(errno.EXDEV)
        if old == new:
            return
        if new in folder.content:
            self._check_replaced(self.nodes[moved], self.nodes[folder.content[new]])
        self._name(folder, {old: None, new: moved})

    def _check_replaced(self, moved: Node, replaced: Node) -> None:
        if isinstance(replaced, FileNode):
            if isinstance(moved, DirectoryNode):
                raise failure(errno.ENOTDIR)
        elif isinstance(moved, FileNode):
            raise failure(errno.EISDIR)
        elif replaced.content:
            raise failure(errno.ENOTEMPTY)

    def _name(self, folder: DirectoryNode, names: dict[str, int | None]) -> None:
        naming = Naming(self._next_change(), names)
        rename_in(folder.content, naming)
        folder.pending.append(naming)

    # Content.

    def read(self, number: int, size: int, position: int) -> bytes:
        """As programs see it."""
        return bytes(self.file(number).content[position : position + size])

    def write(self, number: int, data: bytes, position: int) -> None:
        """Put bytes where programs see them."""
        self._change(self.file(number), position, data)

    def truncate(self, number: int, size: int) -> None:
        """Cut, or extend with zeros."""
        self._change(self.file(number), size, None)

    def _change(self, file: FileNode, position: int, data: bytes | None) -> None:
        change = Change(self._next_change(), position, data)
        apply(file.content, change)
        file.pending.append(change)

    # Syncing.

    def begin_sync(self) -> int:
        """What a sync that begins now covers: every change up to this number."""
        return self._last_change

    def end_sync(self, number: int, covered: int) -> None:
        """The sync of a file or directory is done: it has nothing to lose of what was changed before it began."""
        self.nodes[number].end_sync(covered)

    def sync_all(self) -> None:
        """As an orderly unmount does."""
        for node in self.nodes.values():
            node.end_sync(self._last_change)

    def _next_change(self) -> int:
        self._last_change += 1
        return self._last_change
