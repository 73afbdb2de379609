from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.mq.ids import MessageIds, parse, partition_of

TOPIC_ID = UUID("8f6f1d0c-6f0e-4b8e-9c5d-1d2e3f405162")
PARTITIONS = st.integers(0, 1_000_000)
OFFSETS = st.integers(0, 2**62 - 1)


def test_an_id_never_changes() -> None:
    # Clients store ids, so these texts hold for all versions to come.
    assert MessageIds(TOPIC_ID, 0).of(0) == b"8f6f1d0c-6f0e-8b8e-8000-000000000000"
    assert MessageIds(TOPIC_ID, 3).of(42) == b"8f6f1d0c-6f0e-8b91-8000-00000000002a"
    assert MessageIds(TOPIC_ID, 0x1000).of(2**62 - 1) == b"8f6f1d0c-6f0f-8b8e-bfff-ffffffffffff"


@given(st.uuids(version=4), PARTITIONS, OFFSETS)
def test_an_id_is_a_uuid_that_tells_its_record(topic_id, partition, offset) -> None:
    text = MessageIds(topic_id, partition).of(offset).decode()
    read = UUID(text)
    assert (str(read), read.version, read.variant) == (text, 8, RFC_4122)
    parsed = parse(text)
    assert parsed is not None
    assert parsed.offset == offset
    assert partition_of(parsed, topic_id, partition + 1) == partition
    assert partition_of(parsed, topic_id, partition) is None


@given(
    st.lists(
        st.tuples(st.sampled_from([TOPIC_ID, UUID(int=TOPIC_ID.int ^ (1 << 127))]), PARTITIONS, OFFSETS), unique=True
    )
)
def test_different_records_have_different_ids(places) -> None:
    assert len({MessageIds(topic_id, partition).of(offset) for topic_id, partition, offset in places}) == len(places)


@pytest.mark.parametrize("text", ["", "42", "orders/0@42", str(TOPIC_ID), "8f6f1d0c-6f0e-8b8e-0000-000000000000"])
def test_what_is_no_id_of_ours_tells_nothing(text) -> None:
    assert parse(text) is None
