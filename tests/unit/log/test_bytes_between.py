"""How much a reader has before it is known without reading it."""

from pathlib import Path

from penstock.log.config import LogConfig
from penstock.log.environment import LogEnvironment
from penstock.log.files import FilePool
from penstock.log.recovery import open_log
from penstock.records.batch import read_header
from penstock.records.builder import BatchBuilder
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import RealDisk


def test_it_is_what_reading_would_give_over_one_segment_and_several(tmp_path: Path) -> None:
    disk = RealDisk()
    world = LogEnvironment(disk, FilePool(disk, 10), SystemClock(), lambda _: None)
    log = open_log(world, str(tmp_path / "0"), LogConfig(segment_bytes=1000))
    sizes = []
    for number in range(20):
        builder = BatchBuilder()
        builder.add(1, b"key", b"v" * (number * 10))
        batch = builder.build()
        log.append(batch, read_header(batch), 0)
        sizes.append(len(batch))
    log.write_pending()
    assert len(log.segments) > 2
    for start in range(20):
        for end in range(start, 21):
            assert log.bytes_between(start, end) == sum(sizes[start:end]), (start, end)
    assert log.bytes_between(20, 20) == 0
    assert log.bytes_between(99, 20) == 0
    log.close()
