"""Partitions of whole key columns beside those of single keys."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.columnar import partition_for_keys
from penstock.records.partitioner import partition_for_key

keys = st.lists(st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=0, max_size=3)), max_size=60)


def one_by_one(given_keys: list[bytes | None], partition_count: int) -> list[int]:
    return [-1 if key is None else partition_for_key(key, partition_count) for key in given_keys]


@settings(max_examples=300)
@given(keys, st.integers(1, 2**31 - 1))
def test_every_key_goes_where_it_goes_alone(given_keys, partition_count) -> None:
    assert partition_for_keys(pa.array(given_keys, pa.binary()), partition_count).tolist() == one_by_one(
        given_keys, partition_count
    )


def test_keys_of_every_length_are_hashed_together() -> None:
    given_keys = [bytes(range(256))[n % 100 : n % 100 + n // 100] for n in range(10_000)]
    assert partition_for_keys(pa.array(given_keys), 37).tolist() == one_by_one(given_keys, 37)


def test_one_very_long_key_among_short_ones_is_hashed() -> None:
    given_keys = [b"%d" % n for n in range(100)] + [b"x" * 300_003]
    assert partition_for_keys(pa.array(given_keys), 11).tolist() == one_by_one(given_keys, 11)


def test_slices_chunks_and_text_are_taken() -> None:
    text = pa.array(["a", "bb", None, "ccc", "dddd", "ü"])
    wanted = one_by_one([b"bb", None, b"ccc", b"dddd"], 5)
    assert partition_for_keys(text.slice(1, 4), 5).tolist() == wanted
    assert partition_for_keys(pa.chunked_array([text.slice(1, 2), text.slice(3, 2)]), 5).tolist() == wanted
    assert partition_for_keys(text.cast(pa.large_string()).slice(1, 4), 5).tolist() == wanted


def test_no_keys_have_no_partitions() -> None:
    assert partition_for_keys(pa.array([], pa.binary()), 5).tolist() == []
    assert partition_for_keys(pa.array([None, None], pa.binary()), 5).tolist() == [-1, -1]
    assert partition_for_keys(pa.array([b"", b""]), 5).tolist() == one_by_one([b"", b""], 5)
