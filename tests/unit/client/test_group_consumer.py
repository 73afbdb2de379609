"""Sharing partitions out; the rest of the group protocol is tested against a real broker."""

from penstock.client.group_consumer import assign_ranges


def assign(members, counts):
    return assign_ranges(members, counts, {member: member for member in members})


def test_each_member_gets_neighbouring_partitions_and_the_first_ones_one_more() -> None:
    assert assign({"b": ["t"], "a": ["t"], "c": ["t"]}, {"t": 7}) == {
        "a": [("t", 0), ("t", 1), ("t", 2)],
        "b": [("t", 3), ("t", 4)],
        "c": [("t", 5), ("t", 6)],
    }


def test_a_topic_goes_to_those_who_subscribed_to_it() -> None:
    assert assign({"a": ["t", "u"], "b": ["u"]}, {"t": 2, "u": 2}) == {
        "a": [("t", 0), ("t", 1), ("u", 0)],
        "b": [("u", 1)],
    }


def test_more_members_than_partitions_leave_some_without() -> None:
    assert assign({"a": ["t"], "b": ["t"]}, {"t": 1}) == {"a": [("t", 0)], "b": []}


def test_a_topic_that_is_not_there_gives_nobody_anything() -> None:
    assert assign({"a": ["gone"]}, {}) == {"a": []}


def test_static_members_keep_their_place_whatever_their_member_id() -> None:
    given = assign_ranges({"zz": ["t"], "aa": ["t"]}, {"t": 2}, {"zz": "first", "aa": "second"})
    assert given == {"zz": [("t", 0)], "aa": [("t", 1)]}
