"""Small file systems of a test's own, where the machine allows to mount them; a sentence why not where it does not."""

import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
"""As if the power went: nothing more is written, not even the journal."""


class NotAllowed(Exception):
    """The machine does not let this test mount; the text says why."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise NotAllowed(f"{' '.join(command[:3])} failed: {done.stderr.strip() or done.returncode}")


def _check(*programs: str) -> None:
    if sys.platform != "linux":
        raise NotAllowed("mounting is done on Linux alone")
    if os.geteuid() != 0:
        raise NotAllowed("mounting needs root")
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise NotAllowed(f"not installed: {', '.join(missing)}")


class LoopDisk:
    """An ext4 in a file, whose power can be cut."""

    def __init__(self, folder: Path, size_mib: int = 256) -> None:
        _check("mkfs.ext4", "mount", "umount")
        self.image = folder / "disk.img"
        self.path = folder / "disk"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_mib * 1024 * 1024)
        _run("mkfs.ext4", "-q", "-F", str(self.image))
        self.mounted = False
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.path))
        self.mounted = True

    def unmount(self) -> None:
        if self.mounted:
            _run("umount", str(self.path))
            self.mounted = False

    def cut_power(self) -> None:
        """From here on no write reaches the disk, and what was not synced is gone after the next mount."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        except OSError as error:
            raise NotAllowed(f"the kernel does not let the power be cut: {error}") from error
        finally:
            os.close(descriptor)

    def power_back(self) -> None:
        """Mount again; the journal is replayed."""
        self.unmount()
        self.mount()


@contextmanager
def small_tmpfs(folder: Path, size_mib: int) -> Iterator[Path]:
    """A file system in memory of this size."""
    _check("mount", "umount")
    path = folder / "small"
    path.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path))
    try:
        yield path
    finally:
        _run("umount", "-l", str(path))
