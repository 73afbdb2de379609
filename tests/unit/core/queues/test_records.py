from penstock.core.queues.records import RecordCache
from tests.unit.core.queues.world import TOPIC


def test_a_record_is_found_and_what_is_not_there_is_none(world):
    world.produce(10)
    cache, source = RecordCache(), world.broker.partition(TOPIC, 0)
    assert cache.record(source, 3).offset == 3
    assert cache.record(source, 10) is None
    assert cache.record(source, -1) is None


def test_the_records_behind_one_are_opened_with_it(world, monkeypatch):
    world.produce(10)
    cache, source = RecordCache(), world.broker.partition(TOPIC, 0)
    cache.record(source, 0)
    monkeypatch.setattr(RecordCache, "_read", None)
    assert [cache.record(source, offset).offset for offset in range(10)] == list(range(10))


def test_memory_is_bounded_and_what_was_not_used_for_longest_goes(world):
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
