import pytest

from penstock.core.queues.records import PIECES_MAX, Piece, RecordCache
from penstock.errors import PenstockError
from penstock.limits import MIB
from penstock.records.batch import Compression, read_header
from penstock.records.builder import build_batch, seal
from penstock.records.records import Record
from tests.unit.core.queues.world import TOPIC


def test_a_record_is_found_and_what_is_not_there_is_none(world) -> None:
    world.produce(10)
    cache, source = RecordCache(), world.broker.partition(TOPIC, 0)
    assert cache.record(source, 3).offset == 3
    assert cache.record(source, 10) is None
    assert cache.record(source, -1) is None


def test_the_records_behind_one_are_opened_with_it(world, monkeypatch) -> None:
    world.produce(10)
    cache, source = RecordCache(), world.broker.partition(TOPIC, 0)
    cache.record(source, 0)
    monkeypatch.setattr(RecordCache, "_read", None)
    assert [cache.record(source, offset).offset for offset in range(10)] == list(range(10))


def test_memory_is_bounded_and_what_was_not_used_for_longest_goes(world) -> None:
    for _ in range(20):
        world.produce(10, value=b"x" * 10_000)
    cache, source = RecordCache(bytes_max=300_000), world.broker.partition(TOPIC, 0)
    for offset in range(200):
        assert cache.record(source, offset).offset == offset
        assert cache._bytes <= 300_000
    assert sum(piece.size_bytes for piece in cache._pieces) == cache._bytes
    assert sum(map(len, cache._by_source.values())) == len(cache._pieces)
    cache.forget(source)
    assert (cache._bytes, cache._pieces, cache._by_source) == (0, {}, {})


def test_pieces_are_bounded_in_number_too(world) -> None:
    cache, source = RecordCache(), world.broker.partition(TOPIC, 0)
    for offset in range(PIECES_MAX + 10):
        cache._keep(Piece(source, offset, offset + 1, [Record(offset, 0, None, b"")]))
    assert len(cache._pieces) == len(cache._by_source[source]) == PIECES_MAX
    assert cache._by_source[source][0].first == 10


def test_large_headers_count_as_large_values_do(world) -> None:
    for _ in range(10):
        world.produce(1, headers=(("note", b"x" * 100_000),), value=b"")
    cache, source = RecordCache(bytes_max=300_000), world.broker.partition(TOPIC, 0)
    for offset in range(10):
        assert cache.record(source, offset).offset == offset
    assert len(cache._pieces) <= 2


def append(world, batch):
    source = world.broker.partition(TOPIC, 0)
    source.append(batch, world.clock.now_ms())
    world.flusher.turn()
    return source


def test_what_comes_before_a_batch_that_cannot_be_opened_is_read(world) -> None:
    world.produce(3)
    header = read_header(build_batch([Record(0, 0, None, b"v")]))
    source = append(world, seal(b"\xff" * 50, header, Compression.NONE))
    world.produce(3)
    cache = RecordCache()
    assert [cache.record(source, offset).offset for offset in (0, 1, 2)] == [0, 1, 2]
    with pytest.raises(PenstockError):
        cache.record(source, 3)
    assert cache.record(source, 4).offset == 4


@pytest.mark.parametrize("begin", [0, 45_000])
def test_a_batch_that_opens_to_very_many_records_is_read_in_pieces(world, begin) -> None:
    count = 50_000
    source = append(world, build_batch((Record(0, 0, None, None) for _ in range(count)), compression=Compression.ZSTD))
    cache = RecordCache()
    offset = begin
    while offset < count:
        piece = cache.piece(source, offset)
        assert piece.size_bytes < 9 * MIB
        assert cache.record(source, offset).offset == offset
        assert cache.record(source, piece.next_offset - 1).offset == piece.next_offset - 1
        offset = piece.next_offset
