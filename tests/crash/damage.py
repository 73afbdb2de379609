"""Damage to a data directory that a broker must put right by itself without losing anything acknowledged.

Each function changes files of a broker that is not running.
"""

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from penstock.encryption.header import HEADER_BYTES
from penstock.runtime.disk import RealDisk
from tests.support.encrypted import ENCRYPTS, encrypted

HEAD_BYTES = HEADER_BYTES if ENCRYPTS else 0
"""Where the batches of a segment begin in its file."""


def partition_dirs(data_dir: Path) -> list[Path]:
    """The folders of all partitions."""
    return sorted({log.parent for log in data_dir.glob("topics/*/*/*.log")})


def segments(partition_dir: Path) -> list[Path]:
    """The log files of a partition, the active one last."""
    return sorted(partition_dir.glob("*.log"))


def content(path: Path) -> bytes:
    """The batches in a segment, decrypted if the tests run with encryption."""
    if not ENCRYPTS:
        return path.read_bytes()
    with closing(encrypted(RealDisk(), str(path.parents[3])).open(str(path))) as file:
        return file.pread(file.size(), 0)


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    """Turn over one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def tear_tail(data_dir: Path, rng: random.Random) -> None:
    """The start of a batch behind the last whole one: a write that the crash cut short."""
    for folder in partition_dirs(data_dir):
        active = segments(folder)[-1]
        # Zeros are left alone: a batch whose last record has no headers ends with one.
        data = active.read_bytes()
        piece = data[: rng.randrange(1, 200)] if len(data) > 200 else rng.randbytes(30)
        active.write_bytes(data + piece)


def zeros_at_the_tail(data_dir: Path, rng: random.Random) -> None:
    """A file that grew and was not written: what some file systems leave after a crash."""
    for folder in partition_dirs(data_dir):
        with segments(folder)[-1].open("ab") as file:
            file.write(bytes(rng.randrange(1, 5000)))


def noise_at_the_tail(data_dir: Path, rng: random.Random) -> None:
    """Bytes that never were a batch."""
    for folder in partition_dirs(data_dir):
        active = segments(folder)[-1]
        active.write_bytes(active.read_bytes() + rng.randbytes(rng.randrange(1, 5000)))


def _files(data_dir: Path, *patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in data_dir.glob(f"topics/*/*/{pattern}"))


def flip_in_derived_files(data_dir: Path, rng: random.Random) -> None:
    """A flipped bit in an index or a snapshot, which can be made again from the log."""
    for path in _files(data_dir, "*.index", "*.timeindex", "*.snapshot"):
        size = path.stat().st_size
        if size and rng.random() < 0.5:
            flip_bit(path, rng.randrange(size), rng.randrange(8))


def remove_derived_files(data_dir: Path, rng: random.Random) -> None:
    """Missing indexes and snapshots."""
    for path in _files(data_dir, "*.index", "*.timeindex", "*.snapshot"):
        if rng.random() < 0.5:
            path.unlink()


def cut_derived_files(data_dir: Path, rng: random.Random) -> None:
    """Indexes and snapshots cut short, down to nothing."""
    for path in _files(data_dir, "*.index", "*.timeindex", "*.snapshot"):
        if rng.random() < 0.5:
            data = path.read_bytes()
            path.write_bytes(data[: rng.randrange(len(data) + 1)])


def zero_derived_files(data_dir: Path, rng: random.Random) -> None:
    """Zeros of the right length: what a file system leaves of bytes that were written and never synced."""
    for path in _files(data_dir, "*.index", "*.timeindex", "*.snapshot"):
        if rng.random() < 0.8:
            path.write_bytes(bytes(path.stat().st_size))


def break_checkpoint(data_dir: Path, rng: random.Random) -> None:
    """A recovery checkpoint that is gone, empty, or noise."""
    path = data_dir / "recovery.checkpoint"
    match rng.randrange(3):
        case 0:
            path.unlink(missing_ok=True)
        case 1:
            path.write_bytes(b"")
        case _:
            path.write_bytes(rng.randbytes(100))


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    function.__name__: function
    for function in (
        tear_tail,
        zeros_at_the_tail,
        noise_at_the_tail,
        flip_in_derived_files,
        remove_derived_files,
        cut_derived_files,
        zero_derived_files,
        break_checkpoint,
    )
}
