import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from penstock.records.partitioner import RoundRobin, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key, hashed) -> None:
    assert murmur2(key) == hashed


@given(st.binary(max_size=50))
def test_the_hash_is_that_of_kafka_python(key) -> None:
    assert murmur2(key) & 0xFFFFFFFF == kafka_python_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_a_key_has_a_partition_that_exists(key, partition_count) -> None:
    assert 0 <= partition_for_key(key, partition_count) < partition_count


def test_a_negative_hash_loses_its_sign_as_in_java() -> None:
    assert partition_for_key(b"foobar", 100) == (-790332482 & 0x7FFFFFFF) % 100


def test_records_without_key_go_round() -> None:
    turns = RoundRobin()
    assert [turns.partition(3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_round_goes_on_when_partitions_are_added() -> None:
    turns = RoundRobin(2)
    assert [turns.partition(3), turns.partition(5), turns.partition(5)] == [2, 3, 4]
    assert turns.partition(2) == 1
