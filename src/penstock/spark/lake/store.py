"""The files of one lake, through Arrow's file systems: a local folder, or any URI that Arrow supports (s3://, gs://, abfs://, hdfs://).

Paths are relative to the lake and have forward slashes. On a local disk, files are synced when :meth:`Store.sync` or
:meth:`Store.write_atomic` returns, because a broker deletes records that are here. In an object store, acknowledged writes are durable, and
a put is atomic.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.spark.lake.formats import LakeError

HIDDEN: Final = "_penstock"
"""Readers of Parquet folders ignore names that begin with an underscore."""
_PLAIN_IN_URI: Final = "/=:+@,;()'! "


class Store:
    """One lake's files."""

    __slots__ = ("_fs", "_is_local", "_root", "uri")

    def __init__(self, location: str) -> None:
        self.uri: Final = absolute(location)
        try:
            self._fs, self._root = pafs.FileSystem.from_uri(self.uri)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise LakeError(f"{location} cannot be used as a lake: {error}") from error
        self._root = self._root.rstrip("/")
        self._is_local = isinstance(self._fs, pafs.LocalFileSystem)

    @property
    def local_path(self) -> Path | None:
        """The folder, if it is local."""
        return Path(self._root) if self._is_local else None

    def uri_of(self, path: str) -> str:
        """The URI of a file for :func:`open_uri`."""
        return f"{self.uri}/{quote(path, safe=_PLAIN_IN_URI)}"

    def refuse(self, characters: str, who: str) -> None:
        """Raise if the folder's path contains one of these characters, which other programs interpret."""
        found = next((each for each in characters if each in self._root), None)
        if found is not None:
            raise LakeError(
                f"{self._root}: {who} does not support {found} in the path of a table; choose another place"
            )

    def full(self, path: str) -> str:
        """The path for Arrow's file system."""
        return f"{self._root}/{path}" if path else self._root

    def exists(self, path: str) -> bool:
        """Whether the file or folder exists."""
        return bool(self._fs.get_file_info(self.full(path)).type != pafs.FileType.NotFound)

    def files(self, folder: str) -> list[tuple[str, int, int]]:
        """Every file below, as (path, bytes, modification time in ms); empty if the folder does not exist."""
        selector = pafs.FileSelector(self.full(folder), recursive=True, allow_not_found=True)
        skip = len(self._root) + 1
        return sorted(
            (info.path[skip:], int(info.size), (info.mtime_ns or 0) // 1_000_000)
            for info in self._fs.get_file_info(selector)
            if info.type == pafs.FileType.File
        )

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder."""
        selector = pafs.FileSelector(self.full(folder), allow_not_found=True)
        return sorted(
            info.base_name for info in self._fs.get_file_info(selector) if info.type == pafs.FileType.Directory
        )

    def open_output(self, path: str) -> pa.NativeFile:
        """A new file to write."""
        self._make_folder(path)
        return self._fs.open_output_stream(self.full(path))

    def size(self, path: str) -> int:
        """In bytes."""
        return int(self._fs.get_file_info(self.full(path)).size)

    def read(self, path: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""
        try:
            with self._fs.open_input_stream(self.full(path)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write_atomic(self, path: str, data: bytes) -> None:
        """Write a file. If this fails, the previous content remains."""
        temporary = f"{path}.new"
        target = temporary if self._is_local else path
        with self.open_output(target) as file:
            file.write(data)
        if self._is_local:
            self.sync([temporary])
            self._fs.move(self.full(temporary), self.full(path))
            self._sync_folders([path])

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        """Rename files."""
        moved = []
        for source, target in moves:
            self._make_folder(target)
            try:
                self._fs.move(self.full(source), self.full(target))
            except FileNotFoundError:
                # An archive that was starting may have finished this commit already.
                if not self.exists(target):
                    raise
            moved.append(target)
        self._sync_folders(moved)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that exist."""
        for path in paths:
            with suppress(FileNotFoundError):
                self._fs.delete_file(self.full(path))

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its content, if it exists."""
        with suppress(FileNotFoundError):
            self._fs.delete_dir(self.full(folder))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for commits to a local folder. An object store has no lock."""
        if not self._is_local:
            yield
            return
        path = f"{HIDDEN}/lock"
        self._make_folder(path)
        with open(self.full(path), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def sync(self, paths: Iterable[str]) -> None:
        """Sync these files to disk."""
        for path in paths if self._is_local else ():
            _fsync(self.full(path), os.O_RDWR)

    def _sync_folders(self, paths: Iterable[str]) -> None:
        if not self._is_local:
            return
        # New folders of a file are entries in their own parents.
        found = {parent for path in paths for parent in Path(self.full(path)).parents}
        root = Path(self._root)
        for folder in sorted(each for each in found if each == root or root in each.parents):
            _fsync(str(folder), os.O_RDONLY)

    def _make_folder(self, path: str) -> None:
        if self._is_local:
            Path(self.full(path)).parent.mkdir(parents=True, exist_ok=True)


def absolute(location: str) -> str:
    """A location as a URI without a slash at its end. A plain path is local."""
    if not location.strip():
        raise LakeError("The place of the lake is missing: specify a folder or a URI")
    if "://" not in location:
        return Path(location).expanduser().absolute().as_uri().rstrip("/")
    return location.rstrip("/")


def local_path_of(uri: str) -> Path | None:
    """The local path of a file:// URI or a plain path; None for anything else."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(uri) if "://" not in uri else None


def path_in(uri: str) -> str:
    """The path in the file system of a URI."""
    return unquote(urlsplit(uri).path) if "://" in uri else uri


def open_uri(uri: str) -> pa.NativeFile:
    """Open any file by its URI, for random access."""
    path = local_path_of(uri)
    if path is not None:
        return pa.OSFile(str(path), "rb")
    fs, inner = pafs.FileSystem.from_uri(uri)
    return fs.open_input_file(inner)


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
