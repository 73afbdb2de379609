"""The records of the offsets topic: Kafka's bytes, every version that may lie on a disk, and nothing else."""

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.coordinators.topic import UnreadableRecord
from penstock.core.groups.requests import CommittedOffset
from penstock.core.groups.stored import (
    GroupRecordKey,
    OffsetRecordKey,
    StoredGroup,
    StoredMember,
    group_record,
    offset_record,
    read_group,
    read_key,
    read_offset,
    tombstones,
)
from penstock.types import GroupId, MemberId, PartitionKey, TopicName

KEY = PartitionKey(TopicName("t"), 7)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    StoredMember,
    member_id=text.map(MemberId),
    instance_id=st.none() | text,
    client_id=text,
    client_host=text,
    rebalance_timeout_ms=int32,
    session_timeout_ms=int32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
groups = st.builds(
    StoredGroup,
    protocol_type=text,
    generation=int32,
    protocol=st.none() | text,
    leader_id=st.none() | text.map(MemberId),
    state_since_ms=int64,
    members=st.lists(members, max_size=4).map(tuple),
)


def test_an_offset_is_written_in_kafkas_bytes() -> None:
    key, value = offset_record(GroupId("g"), KEY, CommittedOffset(5, 2, "m", 9))
    assert key.hex() == "0001" + "000167" + "000174" + "00000007"
    assert value is not None
    assert value.hex() == "0003" + "0000000000000005" + "00000002" + "00016d" + "0000000000000009"


def test_an_offset_of_a_topic_whose_id_is_known_names_it() -> None:
    topic_id = UUID(int=0xABCD)
    _, value = offset_record(GroupId("g"), KEY, CommittedOffset(5, 2, "m", 9, topic_id=topic_id))
    assert value is not None
    tagged = "01" + "00" + "10" + topic_id.hex
    assert value.hex() == "0004" + "0000000000000005" + "00000002" + "026d" + "0000000000000009" + tagged
    assert read_offset(value).topic_id == topic_id


@given(text, st.uuids())
def test_an_offset_of_a_topic_whose_id_is_known_comes_back_as_it_was_written(metadata, topic_id) -> None:
    committed = CommittedOffset(5, 2, metadata, 9, topic_id=topic_id)
    _, value = offset_record(GroupId("g"), KEY, committed)
    assert value is not None
    found = read_offset(value)
    assert (found, found.topic_id) == (committed, topic_id)


def test_tagged_fields_of_later_brokers_are_passed_over() -> None:
    _, value = offset_record(GroupId("g"), KEY, CommittedOffset(5, 2, "m" * 200, 9, topic_id=UUID(int=7)))
    assert value is not None
    fields = value[-19:]
    later = value[:-19] + b"\x02" + fields[1:] + b"\x05\x03abc"
    assert read_offset(later).topic_id == UUID(int=7)


def test_an_offset_with_its_own_expiry_is_written_in_the_version_that_has_one() -> None:
    _, value = offset_record(GroupId("g"), KEY, CommittedOffset(5, -1, "m", 9, 11))
    assert value is not None
    assert value.hex() == "0001" + "0000000000000005" + "00016d" + "0000000000000009" + "000000000000000b"
    assert read_offset(value) == CommittedOffset(5, -1, "m", 9, 11)


def test_a_group_is_written_in_kafkas_bytes() -> None:
    member = StoredMember(MemberId("m"), None, "c", "h", 1, 2, b"s", b"a")
    key, value = group_record(GroupId("g"), StoredGroup("p", 3, "r", MemberId("m"), 4, (member,)))
    assert key.hex() == "0002" + "000167"
    assert value is not None
    assert value.hex() == (
        "0003" + "000170" + "00000003" + "000172" + "00016d" + "0000000000000004" + "00000001"
        "00016d" + "ffff" + "000163" + "000168" + "00000001" + "00000002" + "0000000173" + "0000000161"
    )


@given(st.builds(CommittedOffset, int64, int32, text, int64))
def test_an_offset_comes_back_as_it_was_written(committed) -> None:
    key, value = offset_record(GroupId("g"), KEY, committed)
    assert value is not None
    assert read_key(key) == OffsetRecordKey(GroupId("g"), KEY)
    assert read_offset(value) == committed


@given(groups)
def test_a_group_comes_back_as_it_was_written(group) -> None:
    key, value = group_record(GroupId("g"), group)
    assert value is not None
    assert read_key(key) == GroupRecordKey(GroupId("g"))
    assert read_group(value) == group


@pytest.mark.parametrize(
    ("data", "committed"),
    [
        ("0000" + "0000000000000005" + "00016d" + "0000000000000009", CommittedOffset(5, -1, "m", 9)),
        ("0002" + "0000000000000005" + "00016d" + "0000000000000009", CommittedOffset(5, -1, "m", 9)),
    ],
)
def test_offsets_of_older_versions_are_read(data, committed) -> None:
    assert read_offset(bytes.fromhex(data)) == committed


@pytest.mark.parametrize(
    ("version", "state_time", "instance", "rebalance"),
    [(0, "", "", ""), (1, "", "", "00000007"), (2, "0000000000000004", "", "00000007")],
)
def test_groups_of_older_versions_are_read(version, state_time, instance, rebalance) -> None:
    data = f"{version:04x}" + "000170" + "00000003" + "000172" + "00016d" + state_time + "00000001"
    data += "00016d" + instance + "000163" + "000168" + rebalance + "00000002" + "0000000173" + "0000000161"
    group = read_group(bytes.fromhex(data))
    # The first version had one timeout for both.
    expected = StoredMember(MemberId("m"), None, "c", "h", 7 if rebalance else 2, 2, b"s", b"a")
    assert group == StoredGroup("p", 3, "r", MemberId("m"), 4 if state_time else -1, (expected,))


def test_tombstones_have_the_keys_of_the_offsets() -> None:
    key, _ = offset_record(GroupId("g"), KEY, CommittedOffset(1))
    assert tombstones(GroupId("g"), [KEY]) == [(key, None)]


def test_a_version_from_the_future_is_unreadable_and_said_so() -> None:
    with pytest.raises(UnreadableRecord, match="version 9"):
        read_key(b"\x00\x09")
    with pytest.raises(UnreadableRecord, match="version 5"):
        read_offset(b"\x00\x05")
    with pytest.raises(UnreadableRecord, match="version 4"):
        read_group(b"\x00\x04")


@given(groups, st.data())
def test_damaged_bytes_are_unreadable_or_a_value_but_never_a_crash(group, data) -> None:
    _, value = group_record(GroupId("g"), group)
    assert value is not None
    damaged = bytearray(value)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    cut = damaged[: data.draw(st.integers(0, len(damaged)))]
    for reader in (read_key, read_offset, read_group):
        with contextlib.suppress(UnreadableRecord):
            reader(bytes(cut))
