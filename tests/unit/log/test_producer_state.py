import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError, Reason
from penstock.log.producer_state import ActiveProducer, ProducerStates
from penstock.records.batch import CONTROL_BIT, BatchHeader

SEQUENCE_LAST = 2**31 - 1


def header(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, attributes: int = 0) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        length=100,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def states_after(*batches: tuple[BatchHeader, int], producers_max: int = 100) -> ProducerStates:
    states = ProducerStates(producers_max)
    for batch, base_offset in batches:
        states.update(batch, base_offset, 1000)
    return states


def refusal(states: ProducerStates, batch: BatchHeader) -> Reason:
    with pytest.raises(PenstockError) as caught:
        states.check(batch)
    return caught.value.reason


def test_an_unknown_producer_may_start_at_any_sequence() -> None:
    assert ProducerStates().check(header(41)) is None


def test_the_next_sequence_is_in_order() -> None:
    states = states_after((header(0, 10), 0))
    assert states.check(header(10)) is None


def test_a_gap_is_out_of_order() -> None:
    states = states_after((header(0, 10), 0))
    assert refusal(states, header(11)) is Reason.OUT_OF_ORDER_SEQUENCE


def test_each_of_the_last_five_batches_is_known_again_with_its_offset() -> None:
    states = states_after(*((header(n * 10, 10), 100 + n * 10) for n in range(8)))
    assert [states.check(header(n * 10, 10)) for n in range(3, 8)] == [130, 140, 150, 160, 170]


def test_a_batch_older_than_the_last_five_is_out_of_order() -> None:
    states = states_after(*((header(n * 10, 10), n * 10) for n in range(6)))
    assert refusal(states, header(0, 10)) is Reason.OUT_OF_ORDER_SEQUENCE


@pytest.mark.parametrize(("sequence", "count"), [(10, 5), (12, 8), (15, 10), (10, 20)])
def test_a_batch_that_only_overlaps_a_known_one_is_no_duplicate(sequence, count) -> None:
    states = states_after((header(0, 10), 0), (header(10, 10), 10))
    assert refusal(states, header(sequence, count)) is Reason.OUT_OF_ORDER_SEQUENCE


def test_an_older_epoch_is_fenced() -> None:
    states = states_after((header(0, epoch=3), 0))
    assert refusal(states, header(1, epoch=2)) is Reason.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_starts_at_zero() -> None:
    states = states_after((header(0, 10), 0))
    assert states.check(header(0, epoch=1)) is None
    assert refusal(states, header(10, epoch=1)) is Reason.OUT_OF_ORDER_SEQUENCE


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    states = states_after((header(0, 10), 0), (header(0, 5, epoch=1), 10))
    assert refusal(states, header(0, 10, epoch=1)) is Reason.OUT_OF_ORDER_SEQUENCE
    assert states.check(header(0, 5, epoch=1)) == 10


def test_the_sequence_after_the_largest_is_zero() -> None:
    states = states_after((header(SEQUENCE_LAST), 0))
    assert states.check(header(0)) is None
    assert refusal(states, header(1)) is Reason.OUT_OF_ORDER_SEQUENCE


def test_a_batch_may_straddle_the_wrap() -> None:
    states = states_after((header(SEQUENCE_LAST - 1, 5), 50))
    assert states.check(header(3)) is None
    assert states.check(header(SEQUENCE_LAST - 1, 5)) == 50


def test_a_batch_without_sequence_is_invalid() -> None:
    assert refusal(ProducerStates(), header(-1)) is Reason.INVALID_RECORD


def test_a_marker_moves_the_epoch_and_keeps_the_sequence_of_the_same_epoch() -> None:
    states = states_after((header(0, 10), 0), (header(-1, attributes=CONTROL_BIT), 10))
    assert states.check(header(10)) is None
    states.update(header(-1, epoch=1, attributes=CONTROL_BIT), 11, 1000)
    assert refusal(states, header(10)) is Reason.INVALID_PRODUCER_EPOCH
    assert refusal(states, header(10, epoch=1)) is Reason.OUT_OF_ORDER_SEQUENCE
    assert states.check(header(0, epoch=1)) is None


def test_updates_are_undone_exactly() -> None:
    states = states_after((header(0, 10), 0), (header(0, producer_id=8), 10))
    before = states.encode()
    undo = [
        (batch.producer_id, states.update(batch, 99, 2000))
        for batch in (header(10), header(11), header(0, producer_id=8))
    ]
    assert states.check(header(12)) is None
    for producer_id, previous in reversed(undo):
        states.undo(producer_id, previous)
    assert sorted(states.active()) == sorted(ProducerStates.decode(before).active())
    assert states.check(header(10)) is None
    assert states.check(header(0, 10)) == 0
    assert len(states) == 2


@pytest.mark.parametrize("first", [0, 17, 2**31 - 1])
def test_a_producer_whose_first_batches_were_undone_starts_with_them_again(first) -> None:
    following = (first + 1) % 2**31
    states = ProducerStates()
    undo = [(7, states.update(header(sequence, producer_id=7), 99, 2000)) for sequence in (first, following)]
    for producer_id, previous in reversed(undo):
        states.undo(producer_id, previous)
    states = ProducerStates.decode(states.encode())
    assert refusal(states, header(following, producer_id=7)) is Reason.OUT_OF_ORDER_SEQUENCE
    assert states.check(header(first, producer_id=7)) is None
    assert states.check(header(0, producer_id=7, epoch=1)) is None
    assert states.last_offsets() == {}


def test_a_producer_is_expected_to_start_with_its_refused_batch_unless_it_is_known_or_there_is_no_room() -> None:
    states = ProducerStates(producers_max=2)
    assert states.expect(header(5, 2, producer_id=7), 1000)
    assert not states.expect(header(7, producer_id=7), 1001)
    assert refusal(states, header(7, producer_id=7)) is Reason.OUT_OF_ORDER_SEQUENCE
    assert states.check(header(5, 2, producer_id=7)) is None
    states.update(header(0, producer_id=8), 0, 1002)
    assert not states.expect(header(3, producer_id=9), 1003)
    assert states.check(header(4, producer_id=9)) is None
    assert [producer.producer_id for producer in states.active()] == [7, 8]


def test_only_producers_idle_for_longer_than_the_limit_expire() -> None:
    states = ProducerStates()
    states.update(header(0, producer_id=1), 0, 1000)
    states.update(header(0, producer_id=2), 1, 1001)
    assert states.expire(now_ms=6001, expiration_ms=5000) == 1
    assert [producer.producer_id for producer in states.active()] == [2]


def test_an_idle_producer_is_kept_for_a_day() -> None:
    states = ProducerStates()
    states.update(header(0), 0, 1000)
    assert states.expire(now_ms=1000 + 24 * 60 * 60 * 1000) == 0
    assert states.expire(now_ms=1001 + 24 * 60 * 60 * 1000) == 1


def test_the_producer_idle_longest_makes_room() -> None:
    states = states_after(*((header(0, producer_id=n), n) for n in range(3)), producers_max=3)
    states.update(header(1, producer_id=0), 3, 1000)
    states.update(header(0, producer_id=3), 4, 1000)
    assert [producer.producer_id for producer in states.active()] == [0, 2, 3]


def test_active_lists_every_producer_by_id() -> None:
    states = states_after((header(5, 3, producer_id=9, epoch=2), 0), (header(0, producer_id=4), 3))
    assert list(states.active()) == [ActiveProducer(4, 0, 0, 1000), ActiveProducer(9, 2, 7, 1000)]


def test_last_offsets_tells_where_the_last_batch_of_each_producer_is() -> None:
    states = states_after((header(0), 3), (header(1), 8), (header(0, producer_id=9), 5))
    assert states.last_offsets() == {7: 8, 9: 5}


batches = st.builds(
    header,
    st.integers(0, SEQUENCE_LAST),
    st.integers(1, 1000),
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**15 - 1),
)


@given(st.lists(st.tuples(batches, st.integers(0, 2**62)), max_size=30))
def test_a_snapshot_brings_everything_back(appended) -> None:
    states = states_after(*appended)
    restored = ProducerStates.decode(states.encode())
    assert restored == states
    assert restored.encode() == states.encode()


@given(st.data())
def test_a_damaged_snapshot_is_noticed(data) -> None:
    snapshot = bytearray(states_after((header(0, 10), 0), (header(0, producer_id=8), 10)).encode())
    if data.draw(st.booleans()):
        del snapshot[data.draw(st.integers(0, len(snapshot) - 1)) :]
    else:
        snapshot[data.draw(st.integers(0, len(snapshot) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError):
        ProducerStates.decode(snapshot)


def test_bytes_behind_a_snapshot_are_noticed() -> None:
    with pytest.raises(ValueError):
        ProducerStates.decode(ProducerStates().encode() + b"\x00")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), max_size=60))
def test_a_client_that_repeats_batches_stores_each_once(steps) -> None:
    """Any mix of new batches and repeats of the last five: each is stored once, and a repeat gets its first offset."""
    states = ProducerStates()
    next_offset = 0
    sent: dict[int, list[tuple[BatchHeader, int]]] = {0: [], 1: [], 2: []}
    sequence = {0: SEQUENCE_LAST - 3, 1: 0, 2: 5}
    for producer_id, count, repeat in steps:
        if repeat and sent[producer_id]:
            for batch, base_offset in sent[producer_id][-5:]:
                assert states.check(batch) == base_offset
            continue
        batch = header(sequence[producer_id], count, producer_id=producer_id)
        assert states.check(batch) is None
        states.update(batch, next_offset, 1000)
        sent[producer_id].append((batch, next_offset))
        sequence[producer_id] = (sequence[producer_id] + count) % 2**31
        next_offset += count
