"""Which partition a row goes to, and that rows of one key stay in order."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import Compression
from penstock.records.partitioner import partition_for_key
from penstock.spark.sink.encoding import encoded
from penstock.spark.sink.routing import PIECE_BYTES, RowRouter
from penstock.spark.sink.rows import RowError, SinkRows


def rows(values, keys=None, topics=None, partitions=None):
    columns = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    return SinkRows(
        pa.record_batch(columns),
        None if topics is None else pa.array(topics, pa.string()),
        None if partitions is None else pa.array(partitions, pa.int32()),
    )


def routed(router, given):
    """(topic, partition) -> values in order."""
    found = {}
    for topic, asked, records in router.route(given):
        partition = router.next_partition(topic) if asked is None else asked
        found.setdefault((topic, partition), []).extend(records.column("value").to_pylist())
    return found


def router(counts, topic=None, seed=0):
    return RowRouter(counts.__getitem__, topic=topic, seed=seed)


def test_a_key_decides_as_in_kafkas_clients() -> None:
    keys = [b"a", b"b", b"c", b"", "ünï".encode(), b"a", b"b"]
    values = [b"%d" % number for number in range(len(keys))]
    found = routed(router({"t": 5}, "t"), rows(values, keys))
    expected = {}
    for key, value in zip(keys, values, strict=True):
        expected.setdefault(("t", partition_for_key(key, 5)), []).append(value)
    assert found == expected


def test_the_partition_column_wins_and_null_leaves_it_to_the_key() -> None:
    found = routed(router({"t": 3}, "t"), rows([b"1", b"2", b"3"], [b"a", b"a", b"a"], partitions=[2, None, 0]))
    expected = {("t", 2): [b"1"], ("t", 0): [b"3"]}
    expected.setdefault(("t", partition_for_key(b"a", 3)), []).append(b"2")
    assert {place: sorted(values) for place, values in found.items()} == {
        place: sorted(values) for place, values in expected.items()
    }


def test_without_keys_small_writes_stay_together_and_begin_at_the_seed() -> None:
    assert routed(router({"t": 4}, "t", seed=6), rows([b"1", b"2", b"3"])) == {("t", 2): [b"1", b"2", b"3"]}
    assert routed(router({"t": 4}, "t", seed=7), rows([b"1"], [None])) == {("t", 3): [b"1"]}


def test_without_keys_large_writes_are_cut_so_that_they_reach_every_partition() -> None:
    one = router({"t": 3}, "t")
    (shard,) = one.route(rows([bytes(PIECE_BYTES)] * 30))
    assert shard.partition is None
    assert 10 * PIECE_BYTES < one.piece_bytes(shard) < 11 * PIECE_BYTES
    (small,) = one.route(rows([b"1", b"2"]))
    assert one.piece_bytes(small) == PIECE_BYTES


@pytest.mark.parametrize("size", [20, 100, 1000])
def test_no_small_batch_is_left_over_of_the_pieces(size) -> None:
    one = router({"t": 4}, "t")
    (shard,) = one.route(rows([bytes(size)] * (8 * PIECE_BYTES // size)))
    batches = encoded(shard.records, now_ms=0, compression=Compression.NONE, batch_bytes_max=one.piece_bytes(shard))
    assert len(list(batches)) == 4


def test_pieces_without_a_key_take_turns() -> None:
    one = router({"t": 3}, "t")
    assert [list(routed(one, rows([b"x"]))) for _ in range(4)] == [[("t", 0)], [("t", 1)], [("t", 2)], [("t", 0)]]


def test_rows_without_a_key_among_keyed_ones_go_somewhere() -> None:
    found = routed(router({"t": 4}, "t", seed=1), rows([b"k", b"n"], [b"a", None]))
    assert found[("t", partition_for_key(b"a", 4))][0] == b"k"
    assert b"n" in found[("t", 1)]


def test_the_topic_column_shares_rows_out_by_topic() -> None:
    found = routed(
        router({"x": 1, "y": 2}), rows([b"1", b"2", b"3", b"4"], topics=["x", "y", "x", "y"], partitions=[0, 1, 0, 1])
    )
    assert found == {("x", 0): [b"1", b"3"], ("y", 1): [b"2", b"4"]}


def test_one_topic_in_the_column_is_not_shared_out() -> None:
    assert routed(router({"x": 1}), rows([b"1", b"2"], topics=["x", "x"])) == {("x", 0): [b"1", b"2"]}


def test_no_rows_go_nowhere() -> None:
    assert routed(router({"t": 2}, "t"), rows([])) == {}


def test_a_null_topic_is_refused() -> None:
    with pytest.raises(RowError, match="null in the column 'topic'"):
        routed(router({"x": 1}), rows([b"1", b"2"], topics=["x", None]))


def test_a_partition_that_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(RowError, match=r"partition 3, but topic 't' has 3 partitions \(0 to 2\)"):
        routed(router({"t": 3}, "t"), rows([b"1", b"2"], partitions=[0, 3]))
    with pytest.raises(RowError, match="partition -1"):
        routed(router({"t": 3}, "t"), rows([b"1", b"2"], partitions=[None, -1]))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["x", "y", "z"]),
            st.one_of(st.none(), st.binary(max_size=3)),
            st.one_of(st.none(), st.integers(0, 1)),
        ),
        max_size=60,
    ),
    st.integers(0, 9),
)
def test_every_row_goes_to_one_place_and_equal_destinations_keep_their_order(given_rows, seed) -> None:
    counts = {"x": 2, "y": 3, "z": 7}
    values = [b"%06d" % number for number in range(len(given_rows))]
    frame = rows(
        values,
        [key for _, key, _ in given_rows],
        [topic for topic, _, _ in given_rows],
        [partition for _, _, partition in given_rows],
    )
    found = routed(router(counts, seed=seed), frame)
    assert sorted(value for values in found.values() for value in values) == values
    assert found == routed(router(counts, seed=seed), frame)
    for (topic, partition), arrived in found.items():
        assert arrived == sorted(arrived)
        for value in arrived:
            asked_topic, key, asked = given_rows[int(value)]
            assert topic == asked_topic
            if asked is not None:
                assert partition == asked
            elif key is not None:
                assert partition == partition_for_key(key, counts[topic])
