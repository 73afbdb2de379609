"""The log against a model in plain Python, under everything that can happen to it.

The model knows every batch that was accepted, and how far writes and syncs have come. Whatever the disk, the process or the
power does: nothing synced is lost, nothing refused shows up, nothing changes its offset or its bytes.
"""

import errno
from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock.log.log as log_module
from penstock.errors import PenstockError, Reason
from penstock.log.config import LogConfig
from penstock.log.manager import CheckpointTask, LogManager
from penstock.log.sync import LogSyncTask
from penstock.ports import Disk
from penstock.records.batch import read_header
from penstock.testing.disk import SimulatedDisk
from tests.unit.log.kit import FakeClock, batches_in, make_batch

TOPIC = UUID(int=7)
CONFIG = LogConfig(segment_bytes=1200, index_interval_bytes=150, segment_ms=-1, retention_ms=-1)
WRITTEN_AT_ONCE_BYTES = 250
"""Instead of 64 KiB, so that small examples take both ways."""


@dataclass(frozen=True)
class Placed:
    base: int
    next: int
    data: bytes
    producer: tuple[int, int] | None


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(log_module, "APPEND_GATHER_BYTES_MAX", WRITTEN_AT_ONCE_BYTES)
        self.clock = FakeClock()
        self.reports: list[str] = []
        self.tasks: list[LogSyncTask] = []
        self.checkpoint: CheckpointTask | None = None
        # The model.
        self.placed: list[Placed] = []
        self.start = 0
        self.written = 0
        self.synced = 0
        self.epoch = 0
        self.sequence = 0
        self.pinned_max = 0

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = SimulatedDisk(seed)
        self.disk.make_dirs("/data")
        self.start_node()

    def start_node(self) -> None:
        self.manager = LogManager(self.disk_of_process(), "/data", self.clock, self.reports.append, open_segments_max=2)
        self.manager.open_all()
        self.log = self.manager.log(TOPIC, 0, CONFIG)
        self.tasks = []
        self.checkpoint = None

    def disk_of_process(self) -> Disk:
        """The disk as a new process sees it."""
        return self.disk

    def teardown(self) -> None:
        self.patch.undo()

    # What a client does.

    def try_append(self, data: bytearray, producer: tuple[int, int] | None) -> None:
        expected = self.log.next_offset
        header = read_header(data)
        try:
            base = self.log.append(data, header, self.epoch)
        except PenstockError as error:
            assert error.reason is Reason.STORAGE_ERROR
            self.after_failure()
            return
        assert base == expected
        self.placed.append(Placed(base, self.log.next_offset, bytes(data), producer))
        # A roll or a large batch writes on its own.
        self.written = self.log.written_offset

    @rule(count=st.integers(1, 4), size=st.integers(0, 120), fill=st.integers(0, 255))
    def append(self, count: int, size: int, fill: int) -> None:
        self.try_append(make_batch(*[bytes([fill]) * size] * count, timestamp_ms=self.clock.ms), None)

    @rule(size=st.integers(0, 300))
    def append_idempotent(self, size: int) -> None:
        batch = make_batch(
            b"i" * size, timestamp_ms=self.clock.ms, producer_id=9, producer_epoch=0, base_sequence=self.sequence
        )
        before = len(self.placed)
        self.try_append(batch, (9, self.sequence))
        if len(self.placed) > before:
            self.sequence += 1

    @precondition(lambda self: any(placed.producer for placed in self.placed[-3:]))
    @rule()
    def repeat_idempotent(self) -> None:
        last = [placed for placed in self.placed if placed.producer][-1]
        assert self.log.append(bytearray(last.data), read_header(last.data), self.epoch) == last.base

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    @rule(ms=st.integers(1, 1000))
    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms

    # What the runtime does.

    @rule()
    def write(self) -> None:
        try:
            self.log.write_pending()
        except PenstockError as error:
            assert error.reason is Reason.STORAGE_ERROR
            self.after_failure()
        self.written = self.log.written_offset

    @rule()
    def begin_sync(self) -> None:
        if len(self.tasks) < 2:
            task = self.log.begin_sync()
            if task is not None:
                self.tasks.append(task)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def end_sync(self, data: st.DataObject) -> None:
        task = self.tasks.pop(data.draw(st.integers(0, len(self.tasks) - 1)))
        task.run()
        self.log.end_sync(task, None)
        self.synced = max(self.synced, self.log.synced_offset)

    @rule()
    def roll(self) -> None:
        try:
            self.log.roll()
        except PenstockError as error:
            assert error.reason is Reason.STORAGE_ERROR
            self.after_failure()
        self.written = self.log.written_offset

    @precondition(lambda self: self.checkpoint is None)
    @rule()
    def prepare_checkpoint(self) -> None:
        self.checkpoint = self.manager.prepare_checkpoint()

    @precondition(lambda self: self.checkpoint is not None)
    @rule()
    def write_checkpoint(self) -> None:
        assert self.checkpoint is not None
        self.checkpoint.run()
        self.checkpoint = None

    # What happens to the log.

    @rule(data=st.data())
    def delete_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.start_offset, self.log.written_offset))
        self.log.delete_before(offset)
        self.start = offset

    @rule(run=st.booleans())
    def retire(self, run: bool) -> None:
        for task in self.log.retire(self.clock.ms):
            if run:
                task.run()
        assert self.log.start_offset == self.start
        self.written = self.log.written_offset

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(self.log.start_offset, self.log.next_offset - 8), self.log.next_offset))
        borders = [placed.base for placed in self.placed if placed.base < offset < placed.next]
        expected = min(borders[0] if borders else offset, self.log.written_offset)
        before, written = self.log.next_offset, self.log.written_offset
        self.log.truncate_to(offset)
        if offset < before:
            self.cut_model(expected)
            self.written = self.log.written_offset
            assert self.log.next_offset == expected
            if offset < written:
                self.synced = self.written
                assert self.log.synced_offset == expected
            self.start = min(self.start, expected)

    def cut_model(self, offset: int) -> None:
        cut = [placed.producer[1] for placed in self.placed if placed.producer and placed.next > offset]
        self.placed = [placed for placed in self.placed if placed.next <= offset]
        last = [placed.producer[1] for placed in self.placed if placed.producer]
        # The state of the producer is what the log says. One that was refused sends the same again, and nothing else before.
        self.sequence = last[-1] + 1 if last else min([self.sequence, *cut])

    # What goes wrong.

    @rule(operation=st.sampled_from(["pwritev", "open", "truncate", "make_dirs"]))
    def write_fails(self, operation: str) -> None:
        self.disk.fail_next(operation, errno.ENOSPC)
        self.try_append(make_batch(b"fails" * 60, timestamp_ms=self.clock.ms), None)
        try:
            self.log.write_pending()
        except PenstockError as error:
            assert error.reason is Reason.STORAGE_ERROR
            self.after_failure()
        self.disk.clear_faults()
        self.written = self.log.written_offset

    @rule(room=st.integers(0, 500))
    def disk_is_full(self, room: int) -> None:
        used = sum(len(inode.data) for inode in self.disk._inodes())
        self.disk.capacity_bytes = used + room
        for _ in range(3):
            self.try_append(make_batch(b"f" * 100, timestamp_ms=self.clock.ms), None)
        try:
            self.log.write_pending()
        except PenstockError as error:
            assert error.reason is Reason.STORAGE_ERROR
            self.after_failure()
        self.written = self.log.written_offset
        self.check_readable()
        self.disk.clear_faults()

    def after_failure(self) -> None:
        """What was not written is undone; when the refused append itself gathered nothing, nothing is."""
        assert self.log.written_offset <= self.log.next_offset
        self.written = self.log.written_offset
        self.cut_model(self.log.next_offset)

    @rule()
    def sync_fails(self) -> None:
        task = self.log.begin_sync()
        if task is None:
            return
        self.disk.fail_next("sync", errno.EIO)
        self.disk.fail_next("sync_dir", errno.EIO)
        with pytest.raises(OSError, match="error"):
            task.run()
        self.disk.clear_faults()
        self.log.end_sync(task, OSError(errno.EIO, "error"))
        assert self.log.failed is not None
        with pytest.raises(PenstockError) as refused:
            self.log.append(make_batch(b"late"), read_header(make_batch(b"late")), self.epoch)
        assert refused.value.reason is Reason.STORAGE_ERROR
        assert self.log.begin_sync() is None
        self.check_readable()
        self.kill()

    @rule()
    def kill(self) -> None:
        """The process ends; what it has written stays."""
        self.disk.end_process()
        self.start_node()
        self.cut_model(self.written)
        self.after_start(at_least=self.written)
        assert self.log.next_offset == self.written

    @rule(torn=st.booleans())
    def lose_power(self, torn: bool) -> None:
        self.disk.lose_power(torn=torn)
        self.start_node()
        self.after_start(at_least=self.synced)

    @rule()
    def stop_and_start(self) -> None:
        while self.tasks:
            task = self.tasks.pop()
            task.run()
            self.log.end_sync(task, None)
        if self.checkpoint is not None:
            self.checkpoint.run()
        self.manager.close()
        placed = len(self.placed)
        reports = len(self.reports)
        self.start_node()
        self.after_start(at_least=self.placed[-1].next if self.placed else 0)
        assert len(self.placed) == placed
        assert self.reports[reports:] == [], self.reports[reports:]

    def after_start(self, at_least: int) -> None:
        assert self.log.next_offset >= at_least
        assert self.log.failed is None
        self.cut_model(self.log.next_offset)
        self.start = max(self.start, self.log.start_offset)
        assert self.log.start_offset <= self.start
        self.start = self.log.start_offset
        self.written = self.synced = self.log.next_offset
        assert self.log.synced_offset == self.log.written_offset == self.log.next_offset

    # What always holds.

    @invariant()
    def offsets_are_in_order(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert log.start_offset <= log.written_offset <= log.next_offset
        assert log.synced_offset <= log.written_offset
        assert log.written_offset == self.written
        assert log.next_offset == (
            self.placed[-1].next if self.placed and self.placed[-1].next > 0 else log.next_offset
        )

    @invariant()
    def every_batch_is_where_it_was_placed(self) -> None:
        if hasattr(self, "log"):
            self.check_readable()

    def check_readable(self) -> None:
        log = self.log
        expected = [
            (placed.base, placed.data)
            for placed in self.placed
            if placed.next > log.start_offset and placed.next <= log.written_offset
        ]
        found: list[tuple[int, bytes]] = []
        offset = log.start_offset
        while offset < log.written_offset:
            slice_ = log.read(offset, 300, log.written_offset)
            found += [(header.base_offset, data) for header, data in batches_in(slice_.data)]
            assert slice_.next_offset > offset
            offset = slice_.next_offset
        assert found == expected

    @invariant()
    def any_offset_can_be_found(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        log.reader.forget()
        for placed in self.placed[-6:]:
            if placed.next <= log.written_offset and placed.base >= log.start_offset:
                for offset in {placed.base, placed.next - 1}:
                    header = batches_in(log.read(offset, 1, log.written_offset).data)[0][0]
                    assert header.base_offset == placed.base

    @invariant()
    def descriptors_are_bounded(self) -> None:
        if hasattr(self, "log"):
            # Files in a running sync stay open, and are closed when another one is opened after it.
            self.pinned_max = max(self.pinned_max, sum(len(task.pinned) for task in self.tasks))
            assert self.disk.open_files <= 2 + self.pinned_max


LogMachine.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogModel = LogMachine.TestCase
