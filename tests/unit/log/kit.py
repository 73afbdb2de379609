"""What the tests of the log share: a clock that a test owns, batches, and short ways to open, sync and read."""

from penstock.log.checkpoint import RecoveryPoint
from penstock.log.config import LogConfig
from penstock.log.environment import LogEnvironment
from penstock.log.files import FilePool
from penstock.log.log import Log
from penstock.log.recovery import open_log
from penstock.ports import Disk
from penstock.records.batch import BatchHeader, Compression, read_header
from penstock.records.builder import BatchBuilder

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)
"""Rolls and indexes often."""


class FakeClock:
    """Stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def make_batch(
    *values: bytes,
    timestamp_ms: int = 1_000_000,
    key: bytes | None = b"k",
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    builder = BatchBuilder()
    for value in values or (b"value",):
        builder.add(timestamp_ms, key, value)
    return builder.build(
        compression=compression, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )


class Kit:
    """One disk, one clock, what was reported, and a short way to open logs."""

    def __init__(self, disk: Disk, directory: str, *, open_max: int = 8) -> None:
        self.disk = disk
        self.directory = directory
        self.clock = FakeClock()
        self.reports: list[str] = []
        self.open_max = open_max
        self.world = self.new_world()

    def new_world(self) -> LogEnvironment:
        self.world = LogEnvironment(self.disk, FilePool(self.disk, self.open_max), self.clock, self.reports.append)
        return self.world

    def open(self, config: LogConfig = SMALL, point: RecoveryPoint | None = None) -> Log:
        return open_log(self.world, self.directory, config, point)

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def names(self, suffix: str = "") -> list[str]:
        return [name for name in self.disk.listdir(self.directory) if name.endswith(suffix)]


def append(log: Log, *values: bytes, epoch: int = 0, timestamp_ms: int = 1_000_000, **more: int) -> int:
    batch = make_batch(*values, timestamp_ms=timestamp_ms, **more)  # type: ignore[arg-type]
    return log.append(batch, read_header(batch), epoch)


def sync(log: Log) -> None:
    task = log.begin_sync()
    if task is None:
        return
    try:
        task.run()
    except OSError as error:
        log.end_sync(task, error)
    else:
        log.end_sync(task, None)


def fill(log: Log, count: int, *, size: int = 100, epoch: int = 0) -> None:
    """Append ``count`` single-record batches, write and sync them."""
    for number in range(count):
        append(log, b"%d " % number + b"x" * size, epoch=epoch)
    log.write_pending()
    sync(log)


def batches_in(data: bytes | memoryview) -> list[tuple[BatchHeader, bytes]]:
    found = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        found.append((header, bytes(data[position : position + header.size_bytes])))
        position += header.size_bytes
    return found


def read_all(log: Log, *, max_bytes: int = 700) -> list[tuple[int, bytes]]:
    """Base offset and bytes of every batch, as a consumer gets them."""
    offset = log.start_offset
    found: list[tuple[int, bytes]] = []
    while offset < log.written_offset:
        slice_ = log.read(offset, max_bytes, log.written_offset)
        assert slice_.next_offset > offset
        found += [(header.base_offset, data) for header, data in batches_in(slice_.data)]
        offset = slice_.next_offset
    return found
