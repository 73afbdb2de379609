"""Where a group's records lie is the same for ever, and the same as in Kafka."""

import pytest

from penstock.core.coordinators.topic import partition_of
from penstock.limits import GROUP_ID_CHARS_MAX
from penstock.types import GroupId


# From Java's String.hashCode, worked out by its definition: s[0]*31^(n-1) + ... + s[n-1] in 32 bits.
@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("test", 3556498),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("connect-cluster", None),
        ("😀", 1772899),
    ],
)
def test_a_group_goes_to_the_partition_of_its_java_hash(group_id, java_hash) -> None:
    if java_hash is None:
        value = 0
        for character in group_id:
            value = (value * 31 + ord(character)) % 2**32
        java_hash = value - 2**32 if value >= 2**31 else value
    expected = 0 if java_hash == -(2**31) else abs(java_hash)
    assert partition_of(GroupId(group_id), 50) == expected % 50
    assert partition_of(GroupId(group_id), 7) == expected % 7


def test_of_a_name_that_no_group_can_have_only_so_much_is_hashed_as_one_can_have() -> None:
    longest = "\N{GRINNING FACE}" * GROUP_ID_CHARS_MAX
    value = 0
    encoded = longest.encode("utf-16-be")
    for at in range(0, len(encoded), 2):
        value = (value * 31 + int.from_bytes(encoded[at : at + 2], "big")) % 2**32
    expected = abs(value - 2**32 if value >= 2**31 else value) % 50
    assert partition_of(GroupId(longest), 50) == expected
    assert partition_of(GroupId(longest + "g" * 1000), 50) == expected
