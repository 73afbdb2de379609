"""The process that mounts the file system: ``python -m tests.support.powerfs.server IMAGE PATH``.

It prints ``mounted`` when it is, and takes orders as lines on its standard input, answered by one line each when done:

- ``cut SEED KIND COUNT SECONDS``: the power goes at the COUNTth operation of that kind from now (``any``, ``sync``, ``names``;
  0: at once), or after SECONDS without so many. From then on every operation fails with EIO. What survives is in IMAGE by the
  time of the answer, ``cut``.
- end of input: an orderly unmount, everything synced, unless the power was cut before. So nothing stays mounted when the test's
  process ends, however it ends.

A sync takes a random time, and its bytes are durable at the end of it and not before. A cut that comes meanwhile makes the sync
fail: no sync reports success for bytes that are lost.
"""

import contextlib
import errno
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import mfusepy

from tests.support.powerfs.state import DirectoryNode, State, failure
from tests.support.powerfs.survival import survivors

SYNC_SECONDS_MAX = 0.004
ROOM_BYTES = 1 << 40
BLOCK = 4096


class PowerCut:
    """The switch: counts operations, and goes off at the one that was ordered."""

    def __init__(self, state: State, image: Path) -> None:
        self.lock = threading.RLock()
        self.state = state
        self.is_cut = threading.Event()
        self.saved = threading.Event()
        self._image = image
        self._kind = ""
        self._left = 0
        self._seed = 0

    def arm(self, seed: int, kind: str, count: int) -> None:
        """Go off at the ``count``th operation of this kind from now; 0: at once."""
        with self.lock:
            self._seed, self._kind, self._left = seed, kind, count
            if count == 0 and not self.is_cut.is_set():
                self._cut()

    def pass_by(self, *kinds: str) -> None:
        """An operation of these kinds is about to happen; EIO when the power is gone. Called with the lock held."""
        if not self.is_cut.is_set() and self._kind in kinds:
            self._left -= 1
            if self._left == 0:
                self._cut()
        if self.is_cut.is_set():
            raise failure(errno.EIO)

    def _cut(self) -> None:
        self.is_cut.set()
        self.save(survivors(self.state, Random(self._seed)))
        self.saved.set()

    def save(self, state: State) -> None:
        """Replace the image."""
        with self._image.open("wb") as file:
            pickle.dump(state, file, pickle.HIGHEST_PROTOCOL)

    def unmounting(self) -> None:
        """An orderly end: all is synced first, if there is power."""
        with self.lock:
            if not self.is_cut.is_set():
                self.state.sync_all()
                self.save(survivors(self.state, Random(0)))


def operation(*kinds: str) -> Callable[[Any], Any]:
    """One operation at a time, and none without power."""

    def decorate(method: Any) -> Any:
        @wraps(method)
        def guarded(self: "PowerFs", *arguments: Any) -> Any:
            with self.power.lock:
                self.power.pass_by("any", *kinds)
                return method(self, *arguments)

        return guarded

    return decorate


class PowerFs(mfusepy.Operations):  # type: ignore[misc]
    """The calls of FUSE. A file handle is the number of the node, so a file that has lost its name is found all the same."""

    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, power: PowerCut) -> None:
        self.power = power
        self.state = power.state
        self._random = Random()

    def _node(self, path: str | None, handle: int | None) -> int:
        if handle:
            return handle
        assert path is not None
        return self.state.find(path)

    def init(self, path: str) -> None:
        print("mounted", flush=True)

    # Looking.

    @operation()
    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        number = self._node(path, fh)
        node = self.state.nodes[number]
        size = 0 if isinstance(node, DirectoryNode) else len(node.content)
        links = 2 if isinstance(node, DirectoryNode) else 1
        blocks = -(-size // 512)
        return {"st_mode": node.mode, "st_ino": number, "st_nlink": links, "st_size": size, "st_blocks": blocks}

    @operation()
    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        # Entries without a number would be taken for removed ones.
        here = [(".", fh), ("..", fh), *self.state.directory(fh).content.items()]
        return [(name, {"st_ino": number, "st_mode": self.state.nodes[number].mode}, 0) for name, number in here]

    @operation()
    def opendir(self, path: str) -> int:
        return self.state.find(path)

    @operation()
    def open(self, path: str, flags: int) -> int:
        number = self.state.find(path)
        if flags & os.O_TRUNC:
            self.state.truncate(number, 0)
        return number

    @operation()
    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self.state.read(fh, size, offset)

    @operation()
    def statfs(self, path: str) -> dict[str, int]:
        blocks = ROOM_BYTES // BLOCK
        return {"f_bsize": BLOCK, "f_frsize": BLOCK, "f_blocks": blocks, "f_bfree": blocks, "f_bavail": blocks}

    # Changing.

    @operation("names")
    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return self.state.create(path, mode)

    @operation("names")
    def mkdir(self, path: str, mode: int) -> int:
        self.state.make_directory(path, mode)
        return 0

    @operation("names")
    def unlink(self, path: str) -> int:
        self.state.unlink(path)
        return 0

    @operation("names")
    def rmdir(self, path: str) -> int:
        self.state.remove_directory(path)
        return 0

    @operation("names")
    def rename(self, old: str, new: str) -> int:
        self.state.rename(old, new)
        return 0

    @operation()
    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self.state.write(fh, data, offset)
        return len(data)

    @operation()
    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        self.state.truncate(self._node(path, fh), length)
        return 0

    @operation()
    def chmod(self, path: str, mode: int) -> int:
        return 0

    @operation()
    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    @operation()
    def utimens(self, path: str, times: Any = None) -> int:
        return 0

    # Syncing.

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        return self._sync(fh)

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        return self._sync(fh)

    def _sync(self, number: int) -> int:
        with self.power.lock:
            self.power.pass_by("any", "sync")
            covered = self.state.begin_sync()
        time.sleep(self._random.uniform(0, SYNC_SECONDS_MAX))
        with self.power.lock:
            self.power.pass_by()
            self.state.end_sync(number, covered)
        return 0


class Fuse(mfusepy.FUSE):  # type: ignore[misc]
    """Hands the file to a truncate by descriptor, which the binding forgets: the file may have no name any more."""

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        handle = fip.contents.fh if fip else None
        name = None if path is None else path.decode(self.encoding, self.errors)
        answer: int = self.operations.truncate(name, length, handle)
        return answer


def orders(power: PowerCut, path: str, lines: Iterator[str]) -> NoReturn:
    """Take orders until there are no more, then unmount and end the process."""
    for line in lines:
        _, seed, kind, count, seconds = line.split()
        power.arm(int(seed), kind, int(count))
        if not power.saved.wait(float(seconds)):
            power.arm(int(seed), "any", 0)
        with contextlib.suppress(BrokenPipeError):
            print("cut", flush=True)
    power.unmounting()
    subprocess.run(["umount", "--lazy", path], check=False, capture_output=True, timeout=60)
    # The image is written. FUSE would go on for as long as another mount namespace has a copy of the mount.
    os._exit(0)


def main(image: Path, path: str) -> None:
    """Serve until it is unmounted."""
    state = pickle.loads(image.read_bytes()) if image.exists() else State()
    power = PowerCut(state, image)
    threading.Thread(target=orders, args=(power, path, sys.stdin), daemon=True).start()
    Fuse(PowerFs(power), path, foreground=True, fsname="powerfs", hard_remove=True, use_ino=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
