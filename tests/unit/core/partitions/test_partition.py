"""A partition's rules: what is refused leaves nothing behind, and what is committed follows the configured durability."""

import errno
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from penstock.core.topics.config import TopicConfig, check_configs
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.log.environment import LogEnvironment
from penstock.log.files import FilePool
from penstock.log.recovery import open_log
from penstock.ports import Flushable
from penstock.records.batch import read_header
from penstock.records.builder import BatchBuilder
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import RealDisk, RealFile
from penstock.types import Buffer, Flush, TopicName
from tests.support.lone_partition import lone_partition

NOW_MS = 1_700_000_000_000


class ManualFlusher:
    """Writes and syncs when the test says so."""

    def __init__(self) -> None:
        self.targets: list[Flushable] = []

    def unhurried(self, target: Flushable) -> None:
        """This one syncs when it is told to, whoever waits."""

    def dirty(self, target: Flushable) -> None:
        self.targets.append(target)

    def write(self) -> None:
        for target in self.targets:
            target.write_pending()

    def sync(self, error: OSError | None = None) -> None:
        for target in self.targets:
            task = target.begin_sync()
            if task is not None:
                task.run()
                target.end_sync(task, error)


class FullDisk(RealDisk):
    """Refuses writes while ``full``."""

    full = False

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        disk = self

        class _File(RealFile):
            def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
                if disk.full:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return file.pwritev(buffers, position)

            def pread(self, length: int, position: int) -> bytes:
                return file.pread(length, position)

            def size(self) -> int:
                return file.size()

            def truncate(self, size: int) -> None:
                file.truncate(size)

            def sync(self) -> None:
                file.sync()

            def close(self) -> None:
                file.close()

        return _File(-1)


def topic(configs: dict[str, str]) -> Topic:
    overrides = check_configs(configs, {})
    return Topic(
        name=TopicName("t"),
        topic_id=UUID(int=1),
        partition_count=1,
        replication_factor=1,
        config=TopicConfig.resolve(overrides, {}),
        overrides=overrides,
        created_ms=0,
        updated_ms=0,
        internal=False,
    )


class Setup:
    """A partition on a real disk."""

    def __init__(self, path: Path, flush: Flush, configs: dict[str, str]) -> None:
        self.flusher = ManualFlusher()
        self.disk = FullDisk()
        world = LogEnvironment(self.disk, FilePool(self.disk, 10), SystemClock(), lambda _: None)
        log = open_log(world, str(path / "0"), topic(configs).config.log)
        self.partition = lone_partition(topic(configs), log, self.flusher, flush)
        self.done: list[Reason | None] = []

    def append(self, count: int = 1, **fields: int) -> int:
        return self.partition.append(batch(count, **fields), NOW_MS)


def batch(count: int = 1, *, key: bytes | None = b"k", timestamp_ms: int = NOW_MS, **fields: int) -> bytearray:
    builder = BatchBuilder()
    for number in range(count):
        builder.add(timestamp_ms, key, b"value %d" % number)
    return builder.build(**fields)  # type: ignore[arg-type]


@pytest.fixture
def synced(tmp_path: Path) -> Setup:
    return Setup(tmp_path, Flush.SYNC, {})


@pytest.fixture
def unsynced(tmp_path: Path) -> Setup:
    return Setup(tmp_path, Flush.OS, {})


def test_with_sync_a_record_is_seen_only_after_the_sync(synced: Setup) -> None:
    synced.append()
    synced.partition.when_committed(1, synced.done.append)
    synced.flusher.write()
    assert (synced.partition.high_watermark, synced.done) == (0, [])
    synced.flusher.sync()
    assert (synced.partition.high_watermark, synced.done) == (1, [None])


def test_without_sync_a_record_is_seen_once_it_is_written(unsynced: Setup) -> None:
    unsynced.append()
    unsynced.partition.when_committed(1, unsynced.done.append)
    assert unsynced.partition.high_watermark == 0
    unsynced.flusher.write()
    assert (unsynced.partition.high_watermark, unsynced.done) == (1, [None])


def test_an_acknowledgement_of_the_leader_waits_for_the_write_alone(synced: Setup) -> None:
    synced.append()
    synced.partition.when_written(1, synced.done.append)
    assert synced.done == []
    synced.flusher.write()
    assert synced.done == [None]


def test_who_waits_for_what_is_there_is_told_at_once(unsynced: Setup) -> None:
    unsynced.append()
    unsynced.flusher.write()
    unsynced.partition.when_committed(1, unsynced.done.append)
    unsynced.partition.when_written(1, unsynced.done.append)
    assert unsynced.done == [None, None]


def test_readers_are_woken_until_they_leave(unsynced: Setup) -> None:
    woken: list[int] = []

    def wake() -> None:
        woken.append(unsynced.partition.high_watermark)

    unsynced.partition.watch(wake)
    for _ in range(2):
        unsynced.append()
        unsynced.flusher.write()
    unsynced.partition.unwatch(wake)
    unsynced.append()
    unsynced.flusher.write()
    assert woken == [1, 2]


def test_a_full_disk_refuses_everyone_who_waits_and_recovers_by_itself(unsynced: Setup) -> None:
    unsynced.append()
    unsynced.flusher.write()
    unsynced.disk.full = True
    assert unsynced.append() == 1
    unsynced.partition.when_written(2, unsynced.done.append)
    unsynced.partition.when_committed(2, unsynced.done.append)
    with pytest.raises(PenstockError):
        unsynced.flusher.write()
    assert unsynced.done == [Reason.STORAGE_ERROR, Reason.STORAGE_ERROR]
    assert unsynced.partition.read(0, 1000).data
    unsynced.disk.full = False
    assert unsynced.append() == 1
    unsynced.flusher.write()
    assert unsynced.partition.high_watermark == 2


def test_a_failed_sync_refuses_what_was_not_synced_and_all_that_follows(synced: Setup) -> None:
    synced.append()
    synced.partition.when_committed(1, synced.done.append)
    synced.flusher.write()
    synced.flusher.sync(OSError(errno.EIO, "Input/output error"))
    assert synced.done == [Reason.STORAGE_ERROR]
    with pytest.raises(PenstockError) as refused:
        synced.append()
    assert refused.value.reason is Reason.STORAGE_ERROR
    synced.partition.when_committed(1, synced.done.append)
    assert synced.done[-1] is Reason.STORAGE_ERROR


def test_a_retry_of_an_idempotent_producer_gets_the_first_offset(unsynced: Setup) -> None:
    first = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert unsynced.append(2, **first) == 0
    assert unsynced.append(2, **first) == 0
    assert unsynced.partition.log.next_offset == 2


def test_those_who_waited_are_refused_whatever_the_order_of_their_offsets(synced: Setup) -> None:
    for _ in range(3):
        synced.append()
    for next_offset in (3, 1, 2):
        synced.partition.when_committed(next_offset, synced.done.append)
    synced.partition.close(Reason.UNKNOWN_TOPIC_OR_PARTITION)
    assert synced.done == [Reason.UNKNOWN_TOPIC_OR_PARTITION] * 3


@pytest.mark.parametrize(
    ("configs", "made", "reason"),
    [
        ({}, lambda: batch()[:40], Reason.CORRUPT_RECORDS),
        ({}, lambda: batch() + b"x", Reason.CORRUPT_RECORDS),
        ({}, lambda: batch() + batch(), Reason.CORRUPT_RECORDS),
        ({}, lambda: _flipped(batch()), Reason.CORRUPT_RECORDS),
        ({}, lambda: _with_byte(batch(), 16, 1), Reason.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({}, lambda: _with_byte(batch(2), 60, 3), Reason.INVALID_RECORD),
        ({}, lambda: batch(transactional=True), Reason.TRANSACTIONS_NOT_SUPPORTED),
        ({}, lambda: batch(control=True), Reason.INVALID_RECORD),
        ({"max.message.bytes": "100"}, lambda: batch(20), Reason.RECORDS_TOO_LARGE),
        ({"cleanup.policy": "compact"}, lambda: batch(key=None), Reason.INVALID_RECORD),
        (
            {"message.timestamp.after.max.ms": "1000"},
            lambda: batch(timestamp_ms=NOW_MS + 2000),
            Reason.INVALID_TIMESTAMP,
        ),
        (
            {"message.timestamp.before.max.ms": "1000"},
            lambda: batch(timestamp_ms=NOW_MS - 2000),
            Reason.INVALID_TIMESTAMP,
        ),
    ],
)
def test_what_is_refused_leaves_nothing_behind(
    tmp_path: Path, configs: dict[str, str], made: object, reason: Reason
) -> None:
    setup = Setup(tmp_path, Flush.OS, configs)
    with pytest.raises(PenstockError) as refused:
        setup.partition.append(made(), NOW_MS)  # type: ignore[operator]
    assert refused.value.reason is reason
    setup.flusher.write()
    assert setup.partition.log.next_offset == 0
    assert setup.partition.log.size_bytes == 0


def test_a_batch_of_the_broker_s_own_is_held_to_the_topic_s_settings_alone(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Flush.OS, {"max.message.bytes": "100", "cleanup.policy": "compact"})
    for data, reason in ((batch(20), Reason.RECORDS_TOO_LARGE), (batch(key=None), Reason.INVALID_RECORD)):
        with pytest.raises(PenstockError) as refused:
            setup.partition.append(data, NOW_MS, is_sound=True)
        assert refused.value.reason is reason
    assert setup.partition.append(batch(), NOW_MS, is_sound=True) == 0


def _flipped(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


def _with_byte(data: bytearray, position: int, value: int) -> bytearray:
    data[position] = value
    return data


def test_log_append_time_stamps_the_batch_and_keeps_it_sound(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Flush.OS, {"message.timestamp.type": "LogAppendTime"})
    setup.append(timestamp_ms=5)
    setup.flusher.write()
    stored = setup.partition.read(0, 1000).data
    header = read_header(stored)
    assert header.is_log_append_time
    assert header.max_timestamp == NOW_MS


def test_leader_epochs_that_differ_are_refused(unsynced: Setup) -> None:
    unsynced.partition.leader_epoch = 4
    unsynced.partition.check_epoch(-1)
    unsynced.partition.check_epoch(4)
    for epoch, reason in ((3, Reason.FENCED_LEADER_EPOCH), (5, Reason.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(PenstockError) as refused:
            unsynced.partition.check_epoch(epoch)
        assert refused.value.reason is reason


def test_records_without_a_key_are_named_one_by_one(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Flush.OS, {"cleanup.policy": "compact"})
    builder = BatchBuilder()
    for key in (b"a", None, b"c", None):
        builder.add(NOW_MS, key, b"v")
    with pytest.raises(PenstockError) as refused:
        setup.partition.append(builder.build(), NOW_MS)
    assert [index for index, _ in refused.value.records] == [1, 3]


def test_records_without_a_time_are_neither_too_old_nor_too_new(tmp_path: Path) -> None:
    limits = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"}
    setup = Setup(tmp_path, Flush.OS, limits)
    assert setup.append(timestamp_ms=-1) == 0
