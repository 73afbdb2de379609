import pytest

from penstock.errors import PenstockError, Reason
from penstock.log.config import LogConfig
from penstock.log.reader import MARKS_MAX
from penstock.records.batch import read_header
from tests.unit.log.kit import SMALL, append, batches_in, fill, read_all, sync

ONE_SEGMENT = LogConfig(index_interval_bytes=200)


def offsets_of(slice_):
    return [header.base_offset for header, _ in batches_in(slice_.data)]


@pytest.fixture
def log(either_kit):
    log = either_kit.open(SMALL)
    fill(log, 60)
    assert len(log.segments) > 3
    return log


@pytest.mark.parametrize("max_bytes", [0, 1, 60, 61, 170, 171, 200, 500, 5000, 10**6])
def test_a_consumer_that_goes_on_where_it_stopped_gets_every_batch_once(log, max_bytes) -> None:
    assert [offset for offset, _ in read_all(log, max_bytes=max_bytes)] == list(range(60))


@pytest.mark.parametrize("max_bytes", [1, 200, 5000])
def test_any_offset_can_be_asked_for_without_anything_known(log, max_bytes) -> None:
    for offset in range(60):
        log.reader.forget()
        assert offsets_of(log.read(offset, max_bytes, 60))[0] == offset


def test_a_slice_ends_exactly_before_the_limit(log) -> None:
    for upto in range(1, 61):
        for offset in {0, upto // 2, upto - 1}:
            log.reader.forget()
            found = []
            at = offset
            while at < upto:
                slice_ = log.read(at, 700, upto)
                found += offsets_of(slice_)
                at = slice_.next_offset
            assert found == list(range(offset, upto))
            assert at == upto


def test_a_slice_holds_whole_batches_within_the_bytes_asked_for(log) -> None:
    size = read_header(log.read(0, 1, 60).data).size_bytes
    for max_bytes in range(size, 5 * size, 13):
        slice_ = log.read(0, max_bytes, 60)
        assert len(slice_.data) <= max_bytes
        assert offsets_of(slice_) == list(range(slice_.next_offset))
        assert slice_.next_offset >= max_bytes // (size + 2)


def test_the_first_batch_is_whole_only_when_asked_for(log) -> None:
    slice_ = log.read(5, 10, 60, at_least_one=True)
    assert offsets_of(slice_) == [5]
    assert log.read(5, 10, 60, at_least_one=False) == (b"", 5)


def test_the_batch_that_holds_the_offset_comes_first(kit) -> None:
    log = kit.open(SMALL)
    for _ in range(20):
        append(log, b"a" * 60, b"b", b"c")
    log.write_pending()
    for offset in range(60):
        log.reader.forget()
        assert offsets_of(log.read(offset, 1, 60)) == [offset - offset % 3]


def test_at_the_end_there_is_nothing_and_beyond_it_an_error(log) -> None:
    assert log.read(60, 1000, 60) == (b"", 60)
    assert log.read(30, 1000, 30) == (b"", 30)
    for offset, upto in ((61, 60), (-1, 60), (31, 30), (61, 100)):
        with pytest.raises(PenstockError) as refused:
            log.read(offset, 1000, upto)
        assert refused.value.reason is Reason.OFFSET_OUT_OF_RANGE


def test_what_is_gathered_and_not_written_is_not_seen(kit) -> None:
    log = kit.open(SMALL)
    append(log, b"one")
    log.write_pending()
    append(log, b"two")
    assert offsets_of(log.read(0, 10_000, 99)) == [0]
    assert log.read(1, 10_000, 99).data == b""


def test_small_batches_in_large_reads_end_at_a_border(kit) -> None:
    log = kit.open(ONE_SEGMENT)
    for _ in range(400):
        append(log, b"x" * 20)
    log.write_pending()
    for max_bytes in range(3000, 3400, 7):
        found = []
        offset = 0
        while offset < 400:
            slice_ = log.read(offset, max_bytes, 400)
            assert len(slice_.data) > max_bytes - 200 or slice_.next_offset == 400
            found += offsets_of(slice_)
            offset = slice_.next_offset
        assert found == list(range(400))


def test_sequential_reads_need_no_index(kit, monkeypatch) -> None:
    log = kit.open(ONE_SEGMENT)
    for _ in range(50):
        append(log, b"x" * 100)
        log.write_pending()
    read_all(log)
    monkeypatch.setattr(type(log.segments[0]), "locate", lambda *_: pytest.fail("the log was scanned"))
    read_all(log)


def test_borders_remembered_are_bounded(kit) -> None:
    log = kit.open(ONE_SEGMENT)
    for _ in range(MARKS_MAX + 50):
        append(log, b"x")
        log.write_pending()
    assert len(log.reader._marks) <= MARKS_MAX


# Damage.


def flip(kit, log, offset, at, bits=1) -> None:
    """Damage byte ``at`` of the batch at ``offset``, behind the log's back."""
    segment = log.segment_list.at(offset)
    position = segment.locate(offset, segment.size)

    def change(data) -> None:
        data[position + at] ^= bits

    kit.disk.change(segment.log_path, change)


def readable(log):
    """Offsets that can be read, going on behind every refusal as its text says."""
    found, refused = [], []
    offset = log.start_offset
    while offset < log.written_offset:
        try:
            slice_ = log.read(offset, 400, log.written_offset)
        except PenstockError as error:
            assert error.reason is Reason.CORRUPT_RECORDS
            assert f"Offsets {offset} to " in error.text
            following = int(error.text.rsplit(" ", 1)[1])
            assert following > offset
            refused += range(offset, following)
            offset = following
            continue
        found += offsets_of(slice_)
        offset = slice_.next_offset
    return found, refused


@pytest.mark.parametrize("at", [*range(8, 12), *range(16, 61, 3), 70, 100])
def test_a_flipped_bit_in_a_closed_segment_costs_its_own_batch_and_few_others(kit, at) -> None:
    log = kit.open(SMALL)
    fill(log, 60)
    victim = 17
    assert log.segment_list.at(victim) is not log.segments[-1]
    flip(kit, log, victim, at)
    found, refused = readable(log)
    assert victim in refused
    assert sorted(found + refused) == list(range(60))
    # With a broken length the next batch is found by the index, which has a row for every 200 bytes.
    assert len(refused) <= 3


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("bits", [1, 2, 0x80])
def test_a_flipped_bit_in_an_offset_is_found_though_the_checksum_does_not_cover_it(kit, at, bits) -> None:
    log = kit.open(SMALL)
    fill(log, 60)
    flip(kit, log, 17, at, bits)
    found, refused = readable(log)
    assert 17 in refused
    assert len(refused) <= 3
    assert sorted(found + refused) == list(range(60))


def test_what_stands_before_damage_is_served(kit) -> None:
    log = kit.open(SMALL)
    fill(log, 60)
    flip(kit, log, 17, 70)
    base = log.segment_list.at(17).base_offset
    slice_ = log.read(base, 10_000, 60)
    assert offsets_of(slice_) == list(range(base, 17))
    assert slice_.next_offset == 17


def test_bytes_of_the_active_segment_are_not_checked_again(kit, monkeypatch) -> None:
    log = kit.open(ONE_SEGMENT)
    fill(log, 30)
    monkeypatch.setattr("penstock.log.reader.sound_length", lambda *_: pytest.fail("checked again"))
    read_all(log)


def test_checked_bytes_of_a_closed_segment_are_not_checked_again(kit, monkeypatch) -> None:
    log = kit.open(LogConfig(index_interval_bytes=200))
    fill(log, 30)
    log.roll()
    read_all(log)
    monkeypatch.setattr("penstock.log.reader.sound_length", lambda *_: pytest.fail("checked again"))
    read_all(log)


def test_bytes_from_before_a_start_are_checked(kit) -> None:
    log = kit.open(ONE_SEGMENT)
    fill(log, 30)
    log.close()
    point = log.recovery_point()
    again = kit.open(ONE_SEGMENT, point)
    flip(kit, again, 3, 70)
    found, refused = readable(again)
    assert refused == [3]
    assert found == [offset for offset in range(30) if offset != 3]


def test_a_hole_that_compaction_left_at_the_end_of_a_segment_is_stepped_over(kit) -> None:
    log = kit.open(SMALL)
    fill(log, 60)
    first = log.segments[0]
    last = first.next_offset - 1
    position = first.locate(last, first.size)
    kit.disk.change(first.log_path, lambda data: data.__delitem__(slice(position, None)))
    first.size = position
    log.reader.forget()
    assert [offset for offset, _ in read_all(log)] == [offset for offset in range(60) if offset != last]
    log.reader.forget()
    assert offsets_of(log.read(last, 1, 60)) == [last + 1]


def test_reading_goes_on_while_a_sync_runs_and_files_are_few(kit) -> None:
    kit.open_max = 1
    kit.new_world()
    log = kit.open(SMALL)
    fill(log, 60)
    append(log, b"more")
    log.write_pending()
    task = log.begin_sync()
    assert len(read_all(log)) == 61
    task.run()
    log.end_sync(task, None)
    assert log.synced_offset == 61
    sync(log)


def test_the_time_at_an_offset_is_its_batchs_first_record(either_kit) -> None:
    log = either_kit.open(SMALL)
    for number in range(20):
        append(log, b"x" * 60, b"y" * 60, timestamp_ms=1000 + number * 10)
    log.write_pending()
    assert len(log.segments) > 1
    for offset in range(40):
        log.reader.forget()
        assert log.time_at(offset, 40) == 1000 + offset // 2 * 10
    assert log.time_at(39, 39) is None
    assert log.time_at(40, 40) is None
    assert log.time_at(-1, 40) is None
    log.delete_before(30)
    assert log.time_at(29, 40) is None
    assert log.time_at(30, 40) == 1150


def test_the_time_at_an_offset_that_compaction_took_is_that_of_the_next_record(either_kit) -> None:
    log = either_kit.open(SMALL)
    fill(log, 20)
    first = log.segments[0]
    gone = first.next_offset
    # As after a compaction that left nothing at the end of the segment.
    first.size = 0
    log.reader.forget()
    append(log, b"later", timestamp_ms=5_000_000)
    log.write_pending()
    assert log.time_at(gone - 1, log.next_offset) == 1_000_000


def test_a_segment_that_is_damaged_from_its_beginning_is_not_taken_for_a_gap(kit) -> None:
    log = kit.open(SMALL)
    fill(log, 60)
    segment = log.segments[1]
    kit.disk.change(segment.log_path, lambda data: data.__setitem__(slice(None), bytes(len(data))))
    log.reader.forget()
    for upto in range(segment.base_offset + 1, segment.next_offset):
        with pytest.raises(PenstockError) as refused:
            log.read(segment.base_offset, 1000, upto)
        assert refused.value.reason is Reason.CORRUPT_RECORDS
