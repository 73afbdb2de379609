from dataclasses import dataclass, replace
from pathlib import Path
from typing import Never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.log.compaction import CompactionPlan, CompactionResult, SegmentFile, plan, read_batches, run
from penstock.log.config import CleanupPolicy, LogConfig
from penstock.ports import File
from penstock.records.batch import (
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    BatchHeader,
    Compression,
    crc_matches,
    read_header,
    set_log_append_time,
    set_offset,
)
from penstock.records.builder import BatchBuilder, build_batch, seal
from penstock.records.records import Record, read_records
from penstock.runtime.disk import RealDisk

DISK = RealDisk()
NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 60 * 60 * 1000
CONFIG = LogConfig(cleanup=frozenset({CleanupPolicy.COMPACT}), delete_retention_ms=DAY_MS)


class ClosedLog:
    """Closed segments in a folder, and what the log does with a result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments: list[SegmentFile] = []
        self.next_offset = 0
        self.producer_offsets: dict[int, int] = {}
        self.first_dirty_offset = 0
        self.due_ms: int | None = None

    def add(self, *batches: bytearray) -> None:
        """One more segment."""
        path = self.folder / f"{self.next_offset:020d}.log"
        base_offset = self.next_offset
        max_timestamp = -1
        for batch in batches:
            set_offset(batch, self.next_offset, 5)
            header = read_header(batch)
            if header.producer_id >= 0:
                self.producer_offsets[header.producer_id] = header.base_offset
            self.next_offset = header.next_offset
            max_timestamp = max(max_timestamp, header.max_timestamp)
        path.write_bytes(b"".join(batches))
        self.segments.append(
            SegmentFile(str(path), base_offset, self.next_offset, sum(map(len, batches)), max_timestamp)
        )

    def plan(self, now_ms: int = NOW_MS, config: LogConfig = CONFIG, **more: int) -> CompactionPlan | None:
        return plan(
            self.segments,
            config,
            self.first_dirty_offset,
            now_ms,
            producer_offsets=self.producer_offsets,
            tombstones_due_ms=self.due_ms,
            **more,
        )

    def plan_of_all(self, now_ms: int, config: LogConfig) -> CompactionPlan:
        planned = plan(
            self.segments, config, self.next_offset, now_ms, producer_offsets=self.producer_offsets, tombstones_due_ms=0
        )
        assert planned is not None
        return planned

    def compact(self, now_ms: int = NOW_MS, config: LogConfig = CONFIG, **more: int) -> CompactionResult:
        """One run, put in place."""
        planned = self.plan(now_ms, replace(config, min_cleanable_dirty_ratio=0.0), **more)
        if planned is None:
            # Nothing is dirty: a run is not needed, and must be harmless.
            planned = replace(self.plan_of_all(now_ms, config), **more)
        assert planned is not None
        result = run(DISK, planned)
        self.install(result)
        return result

    def install(self, result: CompactionResult) -> None:
        for replacement in result.replacements:
            at = self.segments.index(replacement.sources[0])
            path = replacement.sources[0].path
            for source in replacement.sources:
                DISK.remove(source.path)
            DISK.rename(replacement.target.path, path)
            assert DISK.size(path) == replacement.target.size_bytes
            self.segments[at : at + len(replacement.sources)] = [replace(replacement.target, path=path)]
        self.first_dirty_offset = result.cleaned_to_offset
        self.due_ms = result.tombstones_due_ms

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        found = []
        for segment in self.segments:
            file = DISK.open(segment.path)
            found += [(header, bytes(batch)) for header, batch in read_batches(file, segment)]
            file.close()
        return found

    def records(self) -> list[Record]:
        return [record for _, batch in self.batches() for record in read_records(batch, 100 * MIB)]

    def leftovers(self) -> list[str]:
        return [name for name in DISK.listdir(str(self.folder)) if not name.endswith(".log")]


@pytest.fixture
def log(tmp_path):
    return ClosedLog(tmp_path)


def batch_of(*pairs: tuple[bytes | None, bytes | None], timestamp: int = 1000, **more: int) -> bytearray:
    return build_batch([Record(n, timestamp + n, key, value) for n, (key, value) in enumerate(pairs)], **more)


def test_the_last_record_of_each_key_stays_at_its_offset(log) -> None:
    log.add(batch_of((b"a", b"1"), (b"b", b"1")), batch_of((b"a", b"2")))
    log.add(batch_of((b"c", b"1"), (b"a", b"3")))
    result = log.compact()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in log.records()] == [
        (1, 1001, b"b", b"1"),
        (3, 1000, b"c", b"1"),
        (4, 1001, b"a", b"3"),
    ]
    assert result.cleaned_to_offset == 5
    assert log.leftovers() == []


def test_records_without_a_key_go(log) -> None:
    log.add(batch_of((None, b"1"), (b"a", b"2")))
    log.compact()
    assert [record.offset for record in log.records()] == [1]


def test_a_batch_keeps_its_borders_and_everything_else_in_its_header(log) -> None:
    log.add(batch_of((b"a", b"1"), (b"b", b"1"), (b"a", b"2")), batch_of((b"a", b"3")))
    (before, _), (later, _) = log.batches()
    log.compact()
    (after, batch), (untouched, _) = log.batches()
    assert crc_matches(batch)
    assert after == before._replace(record_count=1, length=after.length, crc=after.crc, max_timestamp=1001)
    assert untouched == later


def test_a_batch_with_nothing_left_goes(log) -> None:
    log.add(batch_of((b"a", b"1")), batch_of((b"a", b"2")))
    log.compact()
    assert [header.base_offset for header, _ in log.batches()] == [1]


def test_the_last_batch_of_a_producer_stays_without_records(log) -> None:
    producer = {"producer_id": 9, "producer_epoch": 1}
    log.add(
        batch_of((b"a", b"1"), base_sequence=0, **producer),
        batch_of((b"a", b"2"), (b"a", b"3"), base_sequence=1, compression=Compression.GZIP, **producer),
        batch_of((b"a", b"4")),
    )
    log.compact()
    (empty, _), (last, _) = log.batches()
    assert (empty.base_offset, empty.next_offset, empty.record_count) == (1, 3, 0)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence, empty.last_sequence) == (9, 1, 1, 2)
    assert (empty.compression, empty.size_bytes) == (Compression.NONE, 61)
    assert last.base_offset == 3
    assert log.compact().replacements == ()


def test_the_empty_batch_goes_once_its_producer_is_forgotten(log) -> None:
    log.add(batch_of((b"a", b"1"), producer_id=9, producer_epoch=0, base_sequence=0), batch_of((b"a", b"2")))
    log.compact()
    assert len(log.batches()) == 2
    log.producer_offsets.clear()
    log.compact()
    assert [header.base_offset for header, _ in log.batches()] == [1]


def test_control_batches_stay(log) -> None:
    builder = BatchBuilder()
    builder.add(0, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")
    marker = builder.build(producer_id=3, producer_epoch=0, control=True, transactional=True)
    log.add(bytearray(marker), bytearray(marker), batch_of((b"\x00\x00\x00\x01", b"of a client, with a marker's key")))
    log.compact()
    assert [(header.base_offset, header.is_control) for header, _ in log.batches()] == [
        (0, True),
        (1, True),
        (2, False),
    ]


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_keeps_its_codec(log, compression) -> None:
    log.add(batch_of((b"a", b"1"), (b"b", b"1" * 200), compression=compression), batch_of((b"a", b"2")))
    log.compact()
    assert log.batches()[0][0].compression is compression
    assert [record.key for record in log.records()] == [b"b", b"a"]


def test_long_keys_are_told_apart(log) -> None:
    keys = [b"k" * 40 + bytes([n]) for n in range(50)]
    log.add(batch_of(*((key, b"1") for key in keys)), batch_of(*((key, b"2") for key in keys[:25])))
    log.compact()
    assert {record.key: record.value for record in log.records()} == {
        key: b"2" if n < 25 else b"1" for n, key in enumerate(keys)
    }


@pytest.mark.parametrize("value", [b"v", None])
@pytest.mark.parametrize("base", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("delta", [-(2**63), 2**63 - 1])
def test_timestamps_that_overflow_do_not_stop_the_run(log, base, delta, value) -> None:
    """A client may send any: the base and the deltas are only looked at where records are opened."""
    builder = BatchBuilder()
    builder.add(0, b"a", value)
    for key in (b"a", b"b"):
        builder.add(delta, key, value)
    header = read_header(builder.build())._replace(base_timestamp=base, max_timestamp=-1)
    log.add(seal(bytes(builder.build()[HEADER_BYTES:]), header, Compression.NONE))
    log.compact()
    log.compact(NOW_MS + 1)
    assert [(record.offset, record.key, record.value) for record in log.records()] == [
        (1, b"a", value),
        (2, b"b", value),
    ]


class TestTombstones:
    def test_a_tombstone_stays_until_delete_retention_has_passed_since_it_was_cleaned(self, log) -> None:
        log.add(batch_of((b"a", b"1"), (b"b", b"1")), batch_of((b"a", None)))
        result = log.compact(NOW_MS)
        assert result.tombstones_due_ms == NOW_MS + DAY_MS
        assert [(r.key, r.value) for r in log.records()] == [(b"b", b"1"), (b"a", None)]
        log.compact(NOW_MS + DAY_MS - 1)
        assert [(r.key, r.value) for r in log.records()] == [(b"b", b"1"), (b"a", None)]
        result = log.compact(NOW_MS + DAY_MS)
        assert [(r.key, r.value) for r in log.records()] == [(b"b", b"1")]
        assert result.tombstones_due_ms is None

    def test_its_time_starts_when_it_is_first_cleaned_however_old_it_is(self, log) -> None:
        log.add(batch_of((b"a", None), timestamp=1))
        log.compact(NOW_MS)
        assert len(log.records()) == 1

    def test_its_date_does_not_move_when_it_is_cleaned_again(self, log) -> None:
        log.add(batch_of((b"a", None)))
        log.compact(NOW_MS)
        log.add(batch_of((b"b", b"1")))
        result = log.compact(NOW_MS + 5000)
        assert result.tombstones_due_ms == NOW_MS + DAY_MS

    def test_its_record_keeps_its_timestamp_though_the_batch_carries_the_date(self, log) -> None:
        log.add(batch_of((b"a", b"1"), (b"b", None), (b"c", b"3"), timestamp=5000))
        log.compact(NOW_MS)
        ((header, batch),) = log.batches()
        assert header.attributes & DELETE_HORIZON_BIT
        assert header.base_timestamp == NOW_MS + DAY_MS
        assert header.max_timestamp == 5002
        assert crc_matches(batch)
        assert [(r.offset, r.timestamp) for r in log.records()] == [(0, 5000), (1, 5001), (2, 5002)]

    def test_with_log_append_time_the_batch_keeps_that_time(self, log) -> None:
        batch = batch_of((b"a", b"1"), (b"b", None))
        set_log_append_time(batch, 8888)
        log.add(batch, batch_of((b"a", b"2")))
        log.compact(NOW_MS)
        assert [(r.key, r.timestamp) for r in log.records()] == [(b"b", 8888), (b"a", 1000)]

    def test_a_later_value_overrules_it(self, log) -> None:
        log.add(batch_of((b"a", None)))
        log.compact(NOW_MS)
        log.add(batch_of((b"a", b"2")))
        result = log.compact(NOW_MS + 1)
        assert [(r.key, r.value) for r in log.records()] == [(b"a", b"2")]
        assert result.tombstones_due_ms is None

    def test_a_value_written_before_it_does_not_come_back(self, log) -> None:
        log.add(batch_of((b"a", b"1")))
        log.compact(NOW_MS)
        log.add(batch_of((b"a", None)))
        log.compact(NOW_MS + 1)
        log.compact(NOW_MS + 1 + DAY_MS)
        assert log.records() == []

    def test_behind_the_mapped_part_its_time_has_not_begun(self, log) -> None:
        log.add(batch_of((b"a", b"1")), batch_of((b"b", None)))
        result = log.compact(NOW_MS, keys_max=1)
        assert (result.cleaned_to_offset, result.tombstones_due_ms) == (1, None)
        assert log.compact(NOW_MS + 7, keys_max=1).tombstones_due_ms == NOW_MS + 7 + DAY_MS

    def test_a_run_is_planned_when_they_are_due_though_nothing_is_dirty(self, log) -> None:
        log.add(batch_of((b"a", None)))
        log.compact(NOW_MS)
        assert log.plan(NOW_MS + DAY_MS - 1) is None
        assert log.plan(NOW_MS + DAY_MS) is not None


class TestPlan:
    def segments(self, *sizes: int) -> list[SegmentFile]:
        return [SegmentFile(f"/{n}.log", n * 10, n * 10 + 10, size, 1000 * n) for n, size in enumerate(sizes)]

    def test_nothing_closed_is_nothing_to_do(self) -> None:
        assert plan([], CONFIG, 0, NOW_MS, producer_offsets={}) is None

    def test_nothing_dirty_is_nothing_to_do(self) -> None:
        config = replace(CONFIG, min_cleanable_dirty_ratio=0.0)
        assert plan(self.segments(100), config, 10, NOW_MS, producer_offsets={}) is None

    @pytest.mark.parametrize(("dirty_bytes", "pays"), [(99, False), (100, True), (101, True)])
    def test_it_pays_from_the_dirty_ratio_on(self, dirty_bytes, pays) -> None:
        planned = plan(self.segments(100, dirty_bytes), CONFIG, 10, NOW_MS, producer_offsets={})
        assert (planned is not None) == pays

    def test_segments_younger_than_the_lag_wait(self) -> None:
        config = replace(CONFIG, min_compaction_lag_ms=500)
        planned = plan(self.segments(100, 100, 100), config, 0, 2400, producer_offsets={})
        assert planned is not None
        assert [segment.base_offset for segment in planned.segments] == [0, 10]

    def test_a_lag_that_covers_everything_is_nothing_to_do(self) -> None:
        config = replace(CONFIG, min_compaction_lag_ms=10_000)
        assert plan(self.segments(100), config, 0, 9_999, producer_offsets={}) is None

    def test_what_waited_for_the_longest_lag_is_cleaned_at_any_ratio(self) -> None:
        config = replace(CONFIG, max_compaction_lag_ms=500)
        assert plan(self.segments(1000, 1), config, 10, 1500, producer_offsets={}) is None
        assert plan(self.segments(1000, 1), config, 10, 1501, producer_offsets={}) is not None


class TestFiles:
    def test_small_neighbours_become_one_segment(self, log) -> None:
        for n in range(6):
            log.add(batch_of((b"k%d" % n, b"v" * 100)))
        size = log.segments[0].size_bytes
        result = log.compact(config=replace(CONFIG, segment_bytes=3 * size))
        assert [len(replacement.sources) for replacement in result.replacements] == [3, 3]
        assert [(s.base_offset, s.next_offset) for s in log.segments] == [(0, 3), (3, 6)]
        assert len(log.records()) == 6

    def test_segments_too_far_apart_for_the_index_stay_apart(self, log) -> None:
        log.add(batch_of((b"a", b"1")))
        log.next_offset = 2**31
        log.add(batch_of((b"b", b"1")))
        assert log.compact().replacements == ()

    def test_a_segment_that_does_not_change_is_left_alone(self, log) -> None:
        log.add(batch_of((b"a", b"1")))
        result = log.compact()
        assert result.replacements == ()
        assert result.cleaned_to_offset == 1
        assert log.leftovers() == []

    def test_a_segment_with_nothing_left_keeps_its_place(self, log) -> None:
        log.add(batch_of((b"a", b"1")))
        log.add(batch_of((b"a", b"2")))
        config = replace(CONFIG, segment_bytes=50)
        log.compact(config=config)
        assert [(s.base_offset, s.next_offset, s.size_bytes > 0) for s in log.segments] == [(0, 1, False), (1, 2, True)]

    def test_batches_larger_than_a_read_are_read_whole(self, log) -> None:
        large = batch_of((b"a", b"x" * (3 * MIB)))
        log.add(batch_of((b"a", b"1"), (b"b", b"1")), large, batch_of((b"c", b"1")))
        log.compact()
        assert [(r.key, len(r.value or b"")) for r in log.records()] == [(b"b", 1), (b"a", 3 * MIB), (b"c", 1)]

    def test_the_new_files_know_their_timestamps(self, log) -> None:
        log.add(batch_of((b"a", b"1"), timestamp=9000), batch_of((b"b", b"1"), timestamp=3000), batch_of((b"a", b"2")))
        (replacement,) = log.compact().replacements
        assert replacement.target.max_timestamp == 3000

    def test_a_leftover_of_an_interrupted_run_is_written_over(self, log) -> None:
        log.add(batch_of((b"a", b"1")), batch_of((b"a", b"2")))
        Path(log.segments[0].path + ".cleaned").write_bytes(b"x" * 10_000)
        log.compact()
        assert [record.value for record in log.records()] == [b"2"]

    @pytest.mark.parametrize("damage", ["flipped bit", "wild length", "cut short"])
    def test_damage_stops_the_run_and_leaves_everything_as_it_was(self, log, damage) -> None:
        config = replace(CONFIG, segment_bytes=100)
        log.add(batch_of((b"a", b"1")), batch_of((b"a", b"2")))
        log.add(batch_of((b"b", b"1")), batch_of((b"a", b"3")))
        path = Path(log.segments[1].path)
        content = bytearray(path.read_bytes())
        if damage == "flipped bit":
            content[-1] ^= 4
        elif damage == "wild length":
            content[8:12] = b"\x7f\xff\xff\xff"
        else:
            del content[-30:]
        path.write_bytes(content)
        if damage == "cut short":
            log.segments[1] = replace(log.segments[1], size_bytes=len(content))
        with pytest.raises(PenstockError) as caught:
            log.compact(config=config)
        assert caught.value.reason is Reason.CORRUPT_RECORDS
        assert path.name in caught.value.text
        assert path.read_bytes() == content
        assert log.leftovers() == []

    def test_a_full_disk_leaves_nothing_behind(self, log) -> None:
        class FullDisk(RealDisk):
            def open(self, path, *, create=False):
                file = super().open(path, create=create)
                return FullFile(file) if create else file

        @dataclass
        class FullFile:
            file: File

            def pwritev(self, buffers, position) -> Never:
                raise OSError(28, "no space left on device")

            def close(self) -> None:
                self.file.close()

        log.add(batch_of((b"a", b"1")), batch_of((b"a", b"2")))
        planned = log.plan()
        assert planned is not None
        with pytest.raises(OSError, match="no space"):
            run(FullDisk(), planned)
        assert log.leftovers() == []


keys = st.sampled_from([b"a", b"b", b"c", b"a key that is longer than sixteen bytes", b""])
values = st.none() | st.sampled_from([b"", b"1", b"22", b"a longer value " * 5])
records = st.tuples(st.none() | keys, values, st.integers(0, 5000))
batches = st.tuples(
    st.lists(records, min_size=1, max_size=5), st.sampled_from(Compression), st.none() | st.integers(1, 2)
)
rounds = st.lists(st.lists(st.lists(batches, min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(rounds=rounds, keys_max=st.sampled_from([1, 2, 1000]), segment_bytes=st.sampled_from([100, 400, 10_000]))
def test_any_history_ends_as_a_dictionary_would(tmp_path_factory, rounds, keys_max, segment_bytes) -> None:
    log = ClosedLog(tmp_path_factory.mktemp("log"))
    config = replace(CONFIG, segment_bytes=segment_bytes)
    originals: dict[int, Record] = {}
    borders: dict[int, int] = {}
    model: dict[bytes, tuple[int, bytes | None]] = {}
    sequences = {1: 0, 2: 0}
    now_ms = NOW_MS
    for segments in rounds:
        for segment in segments:
            built = []
            offset = log.next_offset
            for pairs, compression, producer_id in segment:
                producer = {}
                if producer_id is not None:
                    producer = {
                        "producer_id": producer_id,
                        "producer_epoch": 0,
                        "base_sequence": sequences[producer_id],
                    }
                    sequences[producer_id] += len(pairs)
                batch = build_batch(
                    [Record(0, timestamp, key, value) for key, value, timestamp in pairs],
                    compression=compression,
                    **producer,
                )
                borders[offset] = offset + len(pairs)
                for key, value, timestamp in pairs:
                    originals[offset] = Record(offset, timestamp, key, value)
                    if key is not None:
                        model[key] = offset, value
                    offset += 1
                built.append(batch)
            log.add(*built)
        # Within the retention of tombstones: the last record of each key is there, tombstones too, each as it was written.
        while log.first_dirty_offset < log.next_offset:
            log.compact(now_ms, config, keys_max=keys_max)
        assert {record.key: (record.offset, record.value) for record in log.records()} == model
        assert len(log.records()) == len(model)
        assert all(record == originals[record.offset] for record in log.records())
        assert all(borders[header.base_offset] == header.next_offset for header, _ in log.batches())
        assert {header.producer_id: header.last_sequence for header, _ in log.batches() if header.producer_id > 0} == {
            producer_id: sequence - 1 for producer_id, sequence in sequences.items() if sequence
        }
        assert log.segments[0].base_offset == 0
        assert log.segments[-1].next_offset == log.next_offset
        assert all(a.next_offset == b.base_offset for a, b in zip(log.segments, log.segments[1:], strict=False))
        # Again, at once: not a byte of a batch changes.
        before = log.batches()
        log.compact(now_ms, config, keys_max=1000)
        assert log.batches() == before
        now_ms += 1
    log.compact(now_ms + DAY_MS, config, keys_max=1000)
    kept = {key: place for key, place in model.items() if place[1] is not None}
    assert {record.key: (record.offset, record.value) for record in log.records()} == kept
    assert log.due_ms is None
    assert log.leftovers() == []
