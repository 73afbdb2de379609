from uuid import UUID

import pytest

from penstock.log.config import LogConfig
from penstock.log.inspect import Severity, dump, verify, verify_log
from penstock.log.manager import LogManager, partitions
from penstock.log.names import INDEX, LEADER_EPOCHS, LOG, SNAPSHOT, TIME_INDEX
from penstock.records.batch import Compression, read_header
from penstock.testing.disk import SimulatedDisk
from tests.unit.log.kit import FakeClock, append, fill, make_batch

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=-1, segment_ms=-1)
TOPIC = UUID(int=77)


@pytest.fixture
def disk():
    disk = SimulatedDisk()
    disk.make_dirs("/data")
    return disk


@pytest.fixture
def log(disk):
    """A log of sixty batches in several segments, stopped in order."""
    logs = LogManager(disk, "/data", FakeClock(), lambda _: None)
    logs.open_all()
    log = logs.log(TOPIC, 4, CONFIG)
    batch = make_batch(b"v", b"w", producer_id=6, producer_epoch=2, base_sequence=0, compression=Compression.LZ4)
    log.append(batch, read_header(batch), 3)
    fill(log, 60, epoch=3)
    logs.close()
    return log


def contents(disk, directory):
    return {name: disk.read_bytes(f"{directory}/{name}") for name in disk.listdir(directory)}


def findings(disk):
    return [(checked.path, finding) for checked in verify(disk, "/data") for finding in checked.findings]


def test_every_batch_has_a_row(disk, log) -> None:
    rows = list(dump(disk, log.directory))
    assert [row.base_offset for row in rows] == [0, *range(2, 62)]
    first = rows[0]
    header = first.header
    assert (first.last_offset, header.record_count, header.leader_epoch) == (1, 2, 3)
    assert (header.compression, header.producer_id, header.producer_epoch, header.base_sequence) == (
        Compression.LZ4,
        6,
        2,
        0,
    )
    assert (header.max_timestamp, first.fault) == (1_000_000, None)
    assert (first.position, first.segment) == (0, log.segments[0].log_path)
    assert rows[1].position == first.size_bytes
    assert sum(row.size_bytes for row in rows) == log.size_bytes


def test_a_dump_may_begin_anywhere(disk, log) -> None:
    assert next(dump(disk, log.directory, 1)).base_offset == 0
    assert next(dump(disk, log.directory, 40)).base_offset == 40
    assert list(dump(disk, log.directory, 62)) == []


def test_damage_has_a_row_of_its_own_and_the_rest_is_dumped(disk, log) -> None:
    row = list(dump(disk, log.directory))[20]
    disk.change(row.segment, lambda data: data.__setitem__(row.position + 80, 0))
    rows = list(dump(disk, log.directory))
    damaged = rows[20]
    assert (damaged.position, damaged.size_bytes, damaged.header) == (row.position, row.size_bytes, None)
    assert "checksum" in damaged.fault
    assert (damaged.base_offset, damaged.last_offset) == (row.base_offset, row.last_offset)
    assert [other.base_offset for other in rows] == [0, *range(2, 62)]


def test_a_torn_tail_is_the_last_row(disk, log) -> None:
    path = log.segments[-1].log_path
    disk.change(path, lambda data: data.__delitem__(slice(-5, None)))
    last = list(dump(disk, log.directory))[-1]
    assert "incomplete" in last.fault
    assert last.base_offset == 61


def test_a_sound_folder_has_no_findings_and_progress_reaches_the_end(disk, log) -> None:
    seen = []
    checked = list(verify(disk, "/data", lambda done, total: seen.append((done, total))))
    assert [row for row in checked if row.findings] == []
    assert all(row.ok for row in checked)
    assert seen[-1] == (log.size_bytes, log.size_bytes)
    segments = [row for row in checked if row.path.endswith(LOG)]
    assert sum(row.batches for row in segments) == 61
    assert sum(row.records for row in segments) == 62
    assert (segments[0].base_offset, segments[-1].next_offset) == (0, 62)
    names = {row.path.rsplit("/", 1)[1] for row in checked}
    assert {"recovery.checkpoint", LEADER_EPOCHS} <= names
    assert any(name.endswith(SNAPSHOT) for name in names)


@pytest.mark.parametrize("at", [8, 17, 80])
def test_damage_in_the_middle_is_an_error_that_names_the_offsets(disk, log, at) -> None:
    row = list(dump(disk, log.directory))[20]
    disk.change(row.segment, lambda data: data.__setitem__(row.position + at, data[row.position + at] ^ 0x40))
    ((path, finding),) = findings(disk)
    assert path == row.segment
    assert (finding.severity, finding.position, finding.first_offset) == (Severity.ERROR, row.position, row.base_offset)
    assert row.base_offset <= finding.last_offset <= row.base_offset + 3
    assert f"offsets {finding.first_offset} to {finding.last_offset} cannot be read" in finding.text
    assert not next(checked for checked in verify(disk, "/data") if checked.path == path).ok


def test_a_torn_tail_is_an_error_that_the_next_start_cuts(disk, log) -> None:
    disk.change(log.segments[-1].log_path, lambda data: data.extend(b"torn"))
    ((_, finding),) = findings(disk)
    assert finding.severity is Severity.ERROR
    assert "the last 4 bytes" in finding.text


def test_missing_offsets_between_segments_are_an_error(disk, log) -> None:
    first = log.segments[0]
    rows = [row for row in dump(disk, log.directory) if row.segment == first.log_path]
    disk.change(first.log_path, lambda data: data.__delitem__(slice(rows[-1].position, None)))
    texts = [finding.text for _, finding in findings(disk) if finding.severity is Severity.ERROR]
    assert texts == [f"offsets {rows[-1].base_offset} to {first.next_offset - 1} are missing"]


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
@pytest.mark.parametrize("how", ["missing", "wrong"])
def test_a_broken_index_is_only_a_note(disk, log, suffix, how) -> None:
    path = log.segments[1].stem + suffix
    if how == "missing":
        disk.remove(path)
    else:
        disk.change(path, lambda data: data.__setitem__(7, data[7] ^ 1))
    found = findings(disk)
    if (suffix, how) == (INDEX, "missing"):
        assert found == []
    else:
        ((_, finding),) = found
        assert finding.severity is Severity.NOTE
        assert "rebuilt" in finding.text


@pytest.mark.parametrize("kind", ["checkpoint", "epochs", "snapshot"])
def test_damage_to_what_can_be_made_again_is_a_note(disk, log, kind) -> None:
    names = disk.listdir(log.directory)
    path = {
        "checkpoint": "/data/recovery.checkpoint",
        "epochs": f"{log.directory}/{LEADER_EPOCHS}",
        "snapshot": f"{log.directory}/{[name for name in names if name.endswith(SNAPSHOT)][-1]}",
    }[kind]
    disk.change(path, lambda data: data.__setitem__(-2, data[-2] ^ 1))
    ((found, finding),) = findings(disk)
    assert found == path
    assert finding.severity is Severity.NOTE


def test_looking_changes_nothing(disk, log) -> None:
    disk.change(log.segments[1].log_path, lambda data: data.__setitem__(90, 0))
    disk.remove(log.segments[2].stem + INDEX)
    disk.change(log.segments[-1].log_path, lambda data: data.extend(b"torn"))
    before = contents(disk, log.directory)
    list(dump(disk, log.directory))
    list(verify(disk, "/data"))
    list(verify_log(disk, log.directory))
    assert contents(disk, log.directory) == before
    assert disk.open_files == 0


def test_partitions_are_listed_by_number(disk, log) -> None:
    for partition in (10, 9):
        disk.make_dirs(f"/data/topics/{TOPIC.hex}/{partition}")
    disk.make_dirs("/data/topics/other/1")
    assert [(topic, number) for topic, number, _ in partitions(disk, "/data")] == [(TOPIC, 4), (TOPIC, 9), (TOPIC, 10)]


def test_an_empty_data_folder_is_sound(disk) -> None:
    assert list(verify(disk, "/data")) == []
    assert list(dump(disk, "/data/topics/x/0")) == []


def test_an_unclean_folder_can_be_looked_at(disk) -> None:
    logs = LogManager(disk, "/data", FakeClock(), lambda _: None)
    logs.open_all()
    log = logs.log(TOPIC, 0, CONFIG)
    for number in range(40):
        append(log, b"%d" % number)
    log.write_pending()
    assert len(list(dump(disk, log.directory))) == 40
    assert findings(disk) == []
