"""The file system under the tests of power loss: honest writers lose nothing on it, and careless ones are caught.

``CRASH_ROUNDS=200`` cuts 200 times.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.runtime.data_dir import DataDir
from penstock.runtime.disk import RealDisk
from tests.crash.conftest import ROUNDS
from tests.support.mounts import NotAllowed
from tests.support.powerfs.disk import REPOSITORY, PowerDisk
from tests.support.waiting import eventually

CUTS = max(12, ROUNDS)
CUTS_UNTIL_CAUGHT = 100
RECORD = 100
RECORDS_PER_FILE = 10

Note = Callable[[int], None]
Writer = Callable[[Path, Note], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    try:
        disk = PowerDisk(tmp_path)
    except NotAllowed as reason:
        pytest.skip(f"no file system of our own here: {reason}")
    yield disk
    disk.close()


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_numbers(folder: Path, note: Note, *, sync: bool = True, sync_names: bool = True) -> None:
    """Numbers in files of ten, each noted when it is durable; without ``sync`` or ``sync_names`` a bit too early."""
    folder.mkdir()
    sync_folder(folder.parent)
    number = 0
    while True:
        descriptor = os.open(folder / f"{number}", os.O_RDWR | os.O_CREAT)
        try:
            if sync_names:
                sync_folder(folder)
            for position in range(0, RECORDS_PER_FILE * RECORD, RECORD):
                os.pwrite(descriptor, b"%d" % number + bytes(RECORD - len(b"%d" % number)), position)
                if sync:
                    os.fdatasync(descriptor)
                note(number)
                number += 1
        finally:
            os.close(descriptor)


def read_numbers(folder: Path) -> set[int]:
    found: set[int] = set()
    for path in folder.iterdir():
        data = path.read_bytes()
        for position in range(0, len(data), RECORD):
            record = data[position : position + RECORD]
            text = record.rstrip(b"\0")
            if len(record) == RECORD and text.isdigit():
                found.add(int(text))
    return found


def commit_numbers(folder: Path, note: Note, *, synchronous: str = "FULL") -> None:
    folder.mkdir()
    sync_folder(folder.parent)
    database = sqlite3.connect(folder / "numbers", isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(f"PRAGMA synchronous={synchronous}")
        # Often, so that a cut meets pages on their way from the log to the database.
        database.execute("PRAGMA wal_autocheckpoint=8")
        database.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY, filler BLOB)")
        sync_folder(folder)
        number = 0
        while True:
            database.execute("INSERT INTO numbers VALUES (?, randomblob(1000))", (number,))
            note(number)
            number += 1
    except sqlite3.OperationalError as error:
        raise OSError(str(error)) from error
    finally:
        database.close()


def committed_numbers(folder: Path) -> set[int]:
    if not (folder / "numbers").exists():
        return set()
    database = sqlite3.connect(folder / "numbers", isolation_level=None)
    try:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return set()
        return {number for (number,) in database.execute("SELECT number FROM numbers")}
    except sqlite3.DatabaseError:
        return set()
    finally:
        database.close()


def lost_in_one_cut(
    disk: PowerDisk, writer: Writer, read: Callable[[Path], set[int]], rng: random.Random, name: str
) -> set[int]:
    """Run a writer until its power is cut, and tell what it had noted and is not there."""
    noted: set[int] = set()
    some = threading.Event()

    def note(number: int) -> None:
        noted.add(number)
        some.set()

    def run() -> None:
        with pytest.raises(OSError, match=r"."):
            writer(disk.path / name, note)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert some.wait(60)
    disk.cut_power(rng.randrange(2**32), rng.choice(["any", "sync", "names"]), rng.randrange(1, 15))
    thread.join(60)
    assert not thread.is_alive()
    disk.power_back()
    return noted - read(disk.path / name)


@pytest.mark.timeout(120 + 5 * CUTS)
@pytest.mark.parametrize(
    ("writer", "read"), [(write_numbers, read_numbers), (commit_numbers, committed_numbers)], ids=["files", "sqlite"]
)
def test_what_a_writer_synced_survives_every_cut(disk, writer, read) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for cut in range(CUTS):
        assert lost_in_one_cut(disk, writer, read, rng, f"{cut}") == set(), f"cut {cut}, seed {seed}"


def acknowledge_before_sync(folder: Path, note: Note) -> None:
    write_numbers(folder, note, sync=False)


def forget_the_directory(folder: Path, note: Note) -> None:
    write_numbers(folder, note, sync_names=False)


def commit_without_sync(folder: Path, note: Note) -> None:
    commit_numbers(folder, note, synchronous="OFF")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("writer", "read"),
    [
        (acknowledge_before_sync, read_numbers),
        (forget_the_directory, read_numbers),
        (commit_without_sync, committed_numbers),
    ],
)
def test_a_writer_that_acknowledges_too_early_is_caught(disk, writer, read) -> None:
    rng = random.Random(1)
    caught = False
    for cut in range(CUTS_UNTIL_CAUGHT):
        try:
            caught = bool(lost_in_one_cut(disk, writer, read, rng, f"{cut}"))
        except AssertionError:
            # SQLite found its database in pieces.
            caught = True
        if caught:
            break
    assert caught, f"{writer.__name__} lost nothing in {CUTS_UNTIL_CAUGHT} cuts"


def test_without_power_every_call_fails_and_a_sync_in_flight_does_not_succeed(disk) -> None:
    with (disk.path / "f").open("wb", buffering=0) as file:
        file.write(b"lost")
        disk.cut_power(0)
        for call in (
            lambda: os.fdatasync(file.fileno()),
            lambda: os.fsync(file.fileno()),
            lambda: file.write(b"x"),
            lambda: sync_folder(disk.path),
            lambda: (disk.path / "g").mkdir(),
            lambda: (disk.path / "f").rename(disk.path / "g"),
            lambda: os.listdir(disk.path),
        ):
            with pytest.raises(OSError, match="Input/output error"):
                call()


def test_an_orderly_unmount_keeps_everything(disk) -> None:
    (disk.path / "folder").mkdir()
    (disk.path / "folder" / "f").write_bytes(b"kept")
    disk.power_back()
    assert (disk.path / "folder" / "f").read_bytes() == b"kept"


def test_a_file_without_a_name_can_be_used_until_it_is_closed(disk) -> None:
    path = disk.path / "f"
    with path.open("w+b", buffering=0) as file:
        file.write(b"0123456789")
        path.unlink()
        assert os.listdir(disk.path) == []
        os.ftruncate(file.fileno(), 4)
        assert os.pread(file.fileno(), 10, 0) == b"0123"


def mounted(path: Path) -> bool:
    return f" {path} " in Path("/proc/mounts").read_text()


def test_nothing_stays_mounted_when_the_tests_are_killed(disk, tmp_path) -> None:
    program = f"""
import sys
from pathlib import Path
from tests.support.powerfs.disk import PowerDisk

disk = PowerDisk(Path({str(tmp_path)!r}), "other")
print("there", flush=True)
sys.stdin.read()
"""
    other = tmp_path / "other"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert mounted(other)
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not mounted(other), 30, "the file system is unmounted")


def test_a_copy_of_the_mount_in_another_namespace_does_not_hold_up_the_disk(disk) -> None:
    command = ["unshare", "--mount", "--propagation", "private", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(b"there\n")
        other.stdin.flush()
        assert other.stdout.readline() == b"there\n"
        (disk.path / "f").write_bytes(b"kept")
        disk.power_back()
        assert (disk.path / "f").read_bytes() == b"kept"


def test_a_new_data_directory_survives_with_its_parents(disk) -> None:
    for cut in range(8):
        path = disk.path / str(cut) / "data"
        data = DataDir(str(path))
        data.own()
        data.release()
        disk.cut_power(cut)
        disk.power_back()
        assert path.is_dir(), f"cut {cut}"


def test_all_that_a_sync_of_the_whole_disk_reports_as_synced_survives(disk) -> None:
    """The kernel does not pass syncfs on to a FUSE file system, and reports success all the same."""
    files = [disk.path / str(number) for number in range(20)]
    for file in files:
        file.write_bytes(b"kept")
    if RealDisk().sync_all(str(disk.path)):
        disk.cut_power(1)
        disk.power_back()
        assert [file.read_bytes() for file in files] == [b"kept"] * len(files)
