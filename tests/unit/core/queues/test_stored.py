import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.coordinators.topic import UnreadableRecord
from penstock.core.queues.stored import (
    IdempotencyKey,
    MoveIntent,
    MoveKind,
    QueueId,
    StateKey,
    StateKind,
    block_key,
    idempotency_record,
    key_prefix,
    move_value,
    queue_record,
    read_key,
    read_move,
    read_time,
)
from penstock.types import GroupId, TopicName

names = st.text(max_size=50)
queues = st.builds(QueueId, names.map(GroupId), st.uuids())


@given(queues, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.sampled_from([StateKind.BLOCK, StateKind.MOVE]))
def test_keys_of_blocks_and_moves_come_back(queue, partition, number, kind) -> None:
    key = block_key(key_prefix(kind, queue), partition, number)
    assert read_key(key) == StateKey(kind, queue, partition, number)


@given(queues, names, names, st.integers(0, 2**62))
def test_idempotency_keys_and_queues_come_back(queue, tenant, key, time_ms) -> None:
    stored, value = idempotency_record(key_prefix(StateKind.IDEMPOTENCY, queue), IdempotencyKey(tenant, key), time_ms)
    assert read_key(stored).idempotency == IdempotencyKey(tenant, key)
    assert read_time(value) == time_ms
    stored, value = queue_record(queue, time_ms)
    assert read_key(stored) == StateKey(StateKind.QUEUE, queue)
    assert read_time(value) == time_ms
    assert queue_record(queue, None)[1] is None


@given(
    st.builds(
        MoveIntent,
        st.sampled_from(MoveKind),
        names.map(TopicName),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 65535),
        st.integers(0, 2**62),
        st.text(max_size=1024),
    )
)
def test_moves_come_back(move) -> None:
    assert read_move(move_value(move)) == move


@given(st.binary(max_size=80))
def test_bytes_that_are_no_record_are_refused_or_read_and_nothing_else(data) -> None:
    for read in (read_key, read_move, read_time):
        with contextlib.suppress(UnreadableRecord):
            read(data)


@pytest.mark.parametrize("length", range(30))
def test_a_key_that_ends_early_is_refused(length) -> None:
    key = block_key(key_prefix(StateKind.BLOCK, QueueId(GroupId("g"), UUID(int=5))), 1, 2)
    with pytest.raises(UnreadableRecord):
        read_key(key[:length])
