"""A data directory with and without its key: what is refused, what is encrypted when, and what somebody else has changed."""

import contextlib
from uuid import UUID

import pytest

import penstock.encryption.disk as disk_module
from penstock.encryption import header
from penstock.encryption.directory import KEYRING, convert, count, open_encrypted, prepare, rotate, unsealed
from penstock.encryption.keyring import decode
from penstock.encryption.keys import MasterKeys
from penstock.errors import PenstockError, Reason
from penstock.log.config import CleanupPolicy, LogConfig
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.testing.disk import SimulatedDisk
from tests.support.encrypted import KEYS
from tests.unit.log.kit import FakeClock, fill, read_all

ROOT = "/data"
TOPIC = UUID(int=7)
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)
NEW = MasterKeys([b"n" * 32, bytes(range(32))])
"""The key file after a rotation: the new key first."""
NEW_ALONE = MasterKeys([b"n" * 32])


@pytest.fixture
def disk():
    disk = SimulatedDisk(seed=3)
    disk.make_dirs(ROOT)
    return disk


class Process:
    """A node that starts on what the disk has."""

    def __init__(self, disk, keys=KEYS, *, was_encrypted=False) -> None:
        self.reports: list[str] = []
        opened = prepare(disk, ROOT, keys, self.reports.append, was_encrypted=was_encrypted)
        self.disk = disk if opened is None else opened
        self.manager = LogManager(self.disk, ROOT, FakeClock(), self.reports.append)
        self.manager.open_all()

    def log(self) -> Log:
        return self.manager.log(TOPIC, 0, CONFIG)

    def stop(self) -> None:
        self.manager.close()


def run(disk, keys=KEYS, records=30) -> list[tuple[int, bytes]]:
    """Start, append, stop; what the log then has."""
    process = Process(disk, keys)
    fill(process.log(), records)
    found = read_all(process.log())
    process.stop()
    return found


def raw(disk) -> bytes:
    return b"".join(bytes(inode.data) for inode in disk._inodes())


def test_a_directory_with_its_key_is_as_it_was_and_unreadable_below(disk) -> None:
    found = run(disk)
    assert len(found) == 30
    assert b"xxxxxxxx" not in raw(disk)
    process = Process(disk)
    assert read_all(process.log()) == found
    assert process.reports == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [(None, "set encryption.key_file"), (MasterKeys([b"w" * 32]), "add the missing key")],
    ids=["missing", "wrong"],
)
def test_a_missing_or_wrong_key_stops_the_start_and_changes_nothing(disk, keys, words) -> None:
    run(disk)
    before = raw(disk)
    with pytest.raises(PenstockError, match=words) as refused:
        Process(disk, keys)
    assert refused.value.reason is Reason.INVALID_CONFIG
    assert raw(disk) == before


@pytest.mark.parametrize("keys", [None, KEYS], ids=["no key", "the key"])
def test_a_lost_keyring_stops_the_start(disk, keys) -> None:
    run(disk)
    disk.remove(f"{ROOT}/{KEYRING}")
    with pytest.raises(PenstockError, match="restore that file from a backup"):
        Process(disk, keys, was_encrypted=True)


def test_an_older_keyring_stops_the_start_rather_than_cutting_logs(disk) -> None:
    run(disk)
    old = disk.read_bytes(f"{ROOT}/{KEYRING}")
    run(disk, NEW)
    run(disk, NEW)
    disk.write_atomic(f"{ROOT}/{KEYRING}", old)
    with pytest.raises(OSError, match="no key 2: restore its newest copy"):
        Process(disk)


def test_a_directory_in_the_clear_is_encrypted_from_the_start_with_a_key_on(disk) -> None:
    in_the_clear = run(disk, None)
    process = Process(disk)
    counts = count(process.disk, ROOT)
    assert (counts.encrypted, counts.unreadable) == (1, 0)
    assert counts.clear >= 2
    assert f"{counts.clear} closed segments are not encrypted" in process.reports[-1]
    assert read_all(process.log()) == in_the_clear
    fill(process.log(), 10)
    everything = read_all(process.log())
    process.stop()
    assert count(Process(disk).disk, ROOT).clear == counts.clear

    assert convert(disk, ROOT, KEYS, lambda _: None) == counts.clear
    assert b"xxxxxxxx" not in raw(disk)
    process = Process(disk)
    assert process.disk.ring.complete
    assert process.reports == []
    assert read_all(process.log()) == everything


def test_retention_ends_what_is_in_the_clear(disk) -> None:
    run(disk, None)
    process = Process(disk)
    log = process.log()
    fill(log, 10)
    log.delete_before(log.next_offset)
    for task in log.retire(0):
        task.run()
    process.stop()
    assert Process(disk).disk.ring.complete


@pytest.mark.parametrize("fault_at", range(1, 14))
def test_turning_encryption_on_survives_a_power_failure_at_any_step(fault_at) -> None:
    disk = SimulatedDisk(seed=fault_at)
    disk.make_dirs(ROOT)
    in_the_clear = run(disk, None)

    class Cut(Exception):
        pass

    calls = 0
    meet = disk.meet_fault

    def cut(operation: str) -> None:
        nonlocal calls
        calls += operation in {"pwritev", "sync", "write_atomic", "rename", "sync_dir", "truncate"}
        if calls >= fault_at:
            raise Cut
        meet(operation)

    disk.meet_fault = cut
    with contextlib.suppress(Cut):
        Process(disk)
    disk.meet_fault = meet
    disk.lose_power()
    process = Process(disk)
    assert read_all(process.log()) == in_the_clear


def test_a_new_first_key_wraps_the_keyring_at_the_next_start_and_the_old_one_is_not_needed_any_more(disk) -> None:
    found = run(disk)
    segments = {path: bytes(inode.data) for path, inode in named(disk).items() if path.endswith(".log")}
    process = Process(disk, NEW)
    assert "wrapped by the new master key" in process.reports[-1]
    assert {path: bytes(named(disk)[path].data) for path in segments} == segments, "data is not touched"
    assert read_all(process.log()) == found
    process.stop()
    process = Process(disk, NEW_ALONE)
    assert read_all(process.log()) == found
    with pytest.raises(PenstockError, match="add the missing key"):
        Process(disk, KEYS)


def test_after_a_rotation_new_segments_use_a_key_that_the_old_master_key_never_wrapped(disk) -> None:
    run(disk)
    old = decode(disk.read_bytes(f"{ROOT}/{KEYRING}"), KEYS, KEYRING)[0]
    before = set(named(disk))
    run(disk, NEW)
    for path in set(named(disk)) - before:
        if path.endswith(".log"):
            number = header.numbers_in([disk.read_bytes(path)[: header.HALF_BYTES]])
            assert not number & set(old.keys)


def named(disk):
    return {
        f"{path}/{name}": inode
        for path, directory in disk._directories.items()
        for name, inode in directory.names.items()
        if inode is not None
    }


def test_a_rotation_can_be_ordered_and_is_not_repeated_otherwise(disk) -> None:
    run(disk)
    assert rotate(disk, ROOT, KEYS) is None
    assert rotate(disk, ROOT, KEYS, always=True) is not None
    opened = open_encrypted(disk, ROOT, KEYS, lambda _: None)
    assert opened is not None
    assert opened.ring.current == 2


def test_every_closed_segment_has_a_seal_after_a_stop(disk) -> None:
    process = Process(disk)
    fill(process.log(), 60)
    paths = [segment.log_path for segment in process.log().segments]
    process.stop()
    opened = open_encrypted(disk, ROOT, KEYS, lambda _: None)
    assert opened is not None
    assert [opened.state_of(path).seal is not None for path in paths] == [True] * (len(paths) - 1) + [False]


def test_a_seal_that_somebody_removed_is_noticed_and_the_segment_is_not_read(disk) -> None:
    run(disk)
    (path, *_) = sorted(path for path in named(disk) if path.endswith(".log"))

    def strip(data: bytearray) -> None:
        for half in (0, header.HALF_BYTES):
            data[half + header.SEAL_AT : half + header.SEAL_AT + len(header.NO_SEAL)] = header.NO_SEAL

    disk.change(path, strip)
    process = Process(disk)
    assert f"{path}: the seal of this closed segment was removed" in process.reports[-1]
    with pytest.raises(PenstockError) as refused:
        process.log().read(0, 1000, 5)
    assert refused.value.reason is Reason.CORRUPT_RECORDS
    assert list(unsealed(process.disk, ROOT)) == []


def test_compaction_writes_encrypted_and_sealed_segments(disk) -> None:
    process = Process(disk)
    config = LogConfig(segment_bytes=2000, index_interval_bytes=200, cleanup=frozenset({CleanupPolicy.COMPACT}))
    log = process.manager.log(TOPIC, 0, config)
    fill(log, 60)
    task = log.compaction_task(10**15)
    assert task is not None
    task.run()
    log.install(task)
    assert len(read_all(log)) < 60
    found = read_all(log)
    process.stop()
    assert b"xxxxxxxx" not in raw(disk)
    process = Process(disk)
    assert read_all(process.manager.log(TOPIC, 0, config)) == found
    assert process.reports == []


def test_an_interrupted_conversion_leaves_the_old_segment(disk, monkeypatch) -> None:
    in_the_clear = run(disk, None)
    Process(disk).stop()
    disk.fail_next("rename")
    with pytest.raises(OSError, match="error"):
        convert(disk, ROOT, KEYS, lambda _: None)
    monkeypatch.setattr(disk_module, "CHUNK_BYTES", 100)
    process = Process(disk)
    assert read_all(process.log()) == in_the_clear
    assert not any(name.endswith(".tmp") for name in disk.listdir(process.log().directory))
