"""What a leader may call committed, and who may join and must leave."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from penstock.core.cluster.in_sync import NOT_YET, OBSERVES, InSync, InSyncChange
from penstock.core.cluster.rules import Rules
from penstock.core.topics.records import PartitionRecord
from penstock.types import NodeId

LAG_MS = 1000


def record(isr: Mapping[int, int]) -> PartitionRecord:
    return PartitionRecord(leader=1, leader_epoch=3, replicas=(1, 2, 3), isr=tuple(isr.items()), leader_node_epoch=10)


def in_sync(
    isr: Mapping[int, int],
    *,
    end: int = 100,
    minimum: int = 1,
    start: int = 0,
    partition_epoch: int = 0,
    rules: Rules | None = None,
) -> InSync:
    return InSync(
        NodeId(1),
        record(isr),
        log_end=end,
        leader_end=end,
        min_in_sync=minimum,
        now_ms=0,
        log_start=start,
        partition_epoch=partition_epoch,
        rules=rules or Rules(),
    )


def wanted(
    members: InSync, now_ms: int = 0, *, hw: int = 0, end: int = 100, heard: int = 0, live: bool = True
) -> InSyncChange | None:
    return members.wanted(hw, end, now_ms, LAG_MS, lambda _node, _epoch: live, lambda _node: heard)


def test_committed_is_what_the_slowest_member_has() -> None:
    members = in_sync({1: 10, 2: 20, 3: 30})
    assert members.committed() == 0, "nobody has asked in this epoch"
    members.fetched(2, 20, 90, 100, 1)
    members.fetched(3, 30, 70, 100, 1)
    assert members.committed() == 70


def test_alone_in_sync_the_leader_decides() -> None:
    assert in_sync({1: 10}).committed() == 100


def test_a_follower_out_of_sync_does_not_hold_anything_up() -> None:
    members = in_sync({1: 10, 2: 20})
    members.fetched(2, 20, 100, 100, 1)
    members.fetched(3, 30, 5, 100, 1)
    assert members.committed() == 100


def test_nothing_is_committed_while_too_few_are_in_sync() -> None:
    assert in_sync({1: 10}, minimum=2).committed() == NOT_YET
    assert in_sync({1: 10}, minimum=2, rules=Rules(frozen_below_min=False)).committed() == 100


def test_who_is_about_to_join_counts_already() -> None:
    members = in_sync({1: 10})
    members.fetched(2, 20, 60, 100, 1)
    members.begin(InSyncChange({2: 20}, ()))
    assert members.committed() == 60
    careless = in_sync({1: 10}, rules=Rules(maximal_in_sync_set=False))
    careless.begin(InSyncChange({2: 20}, ()))
    assert careless.committed() == 100


def test_who_is_about_to_leave_counts_until_it_is_agreed() -> None:
    members = in_sync({1: 10, 2: 20})
    members.fetched(2, 20, 60, 100, 1)
    members.begin(InSyncChange({}, (2,)))
    assert members.committed() == 60
    members.agree(record({1: 10}), 2, 8)
    members.settle()
    assert members.committed() == 100


def test_a_follower_joins_once_it_has_what_is_committed_and_what_older_leaders_had() -> None:
    members = in_sync({1: 10}, end=100)
    members.fetched(2, 20, 99, 100, 1)
    assert wanted(members, 1, hw=50) is None
    members.fetched(2, 20, 100, 120, 1)
    assert wanted(members, 1, hw=110) is None, "the high watermark is further by now"
    assert wanted(members, 1, hw=100) == InSyncChange({2: 20}, ())


def test_only_a_node_that_is_registered_in_that_life_joins() -> None:
    members = in_sync({1: 10})
    members.fetched(2, 20, 100, 100, 1)
    assert wanted(members, 1, live=False) is None


def test_a_member_in_a_new_life_joins_again() -> None:
    members = in_sync({1: 10, 2: 20})
    members.fetched(2, 25, 100, 100, 1)
    assert wanted(members, 1) == InSyncChange({2: 25}, ())


def test_a_request_of_an_older_life_says_nothing() -> None:
    members = in_sync({1: 10, 2: 20})
    members.fetched(2, 25, 40, 100, 1)
    members.fetched(2, 20, 100, 100, 2)
    assert members.end_of(2) == 40


def test_a_member_that_is_behind_for_too_long_leaves() -> None:
    members = in_sync({1: 10, 2: 20})
    members.fetched(2, 20, 50, 100, 10)
    assert wanted(members, LAG_MS) is None
    assert wanted(members, LAG_MS + 1) == InSyncChange({}, (2,))


def test_a_member_that_keeps_up_with_a_growing_log_stays() -> None:
    members = in_sync({1: 10, 2: 20})
    members.fetched(2, 20, 100, 100, 0)
    for turn in range(1, 20):
        # It is always one question behind, and has what there was at the last one.
        members.fetched(2, 20, 100 * turn, 100 * turn + 100, turn * 400)
    assert wanted(members, 20 * 400, end=2000) is None


def test_a_quiet_partition_that_a_live_follower_has_all_of_keeps_it() -> None:
    members = in_sync({1: 10, 2: 20})
    members.fetched(2, 20, 100, 100, 0)
    assert wanted(members, 50_000, heard=100) == InSyncChange({}, (2,)), "nothing was heard of it"
    assert wanted(members, 50_000, heard=49_900) is None
    assert wanted(members, 52_000, heard=51_900, end=101) == InSyncChange({}, (2,)), "it lacks something"


def test_the_leader_never_wants_to_be_left_without_itself() -> None:
    members = in_sync({2: 20, 3: 30})
    assert wanted(members, LAG_MS * 5) is None


def test_one_change_at_a_time() -> None:
    members = in_sync({1: 10})
    members.fetched(2, 20, 100, 100, 1)
    members.begin(InSyncChange({2: 20}, ()))
    assert members.is_changing
    assert wanted(members, 1) is None
    with pytest.raises(AssertionError):
        members.begin(InSyncChange({3: 30}, ()))


def test_a_node_that_is_no_replica_is_not_counted() -> None:
    members = in_sync({1: 10})
    assert not members.fetched(9, 90, 100, 100, 1)
    assert members.end_of(9) is None


def test_the_first_record_after_a_long_silence_makes_nobody_late() -> None:
    members = in_sync({1: 10, 2: 20})
    members.fetched(2, 20, 100, 100, 0)
    for now_ms in range(0, 100_000, 500):
        assert wanted(members, now_ms, hw=100, heard=now_ms) is None
    assert wanted(members, 100_000, hw=100, end=101, heard=100_000) is None, "it was up to date a moment ago"
    assert wanted(members, 100_000 + LAG_MS, hw=100, end=101, heard=100_000) == InSyncChange({}, (2,))


def test_nothing_is_committed_while_others_may_lead_that_would_lack_it() -> None:
    members = in_sync({1: 10}, minimum=1)
    assert members.committed() == 100
    agreed = PartitionRecord(
        leader=1, leader_epoch=3, replicas=(1, 2, 3), isr=((1, 10),), leader_node_epoch=10, elr=(2,)
    )
    members.agree(agreed, 0, 8)
    assert members.committed() == NOT_YET, "the topic demands fewer than it did, and the record does not know it yet"
    members.agree(record({1: 10}), 0, 9)
    assert members.committed() == 100


def test_a_question_of_an_older_life_than_the_agreed_one_counts_for_nothing() -> None:
    members = in_sync({1: 10, 2: 25, 3: 30}, minimum=2)
    members.fetched(3, 30, 100, 100, 1)
    members.fetched(2, 20, 100, 100, 1)
    assert members.committed() == 0, "node 2 in the incarnation that is in sync has said nothing"
    members.fetched(2, 25, 40, 100, 1)
    assert members.committed() == 40


def test_what_is_deleted_is_gone_when_nobody_has_it_who_may_lead() -> None:
    members = in_sync({1: 10, 2: 20})
    assert members.low_watermark(7) == 0, "nobody has asked in this epoch"
    members.fetched(2, 20, 100, 100, 1, log_start=5)
    assert members.low_watermark(7) == 5
    members.fetched(3, 30, 100, 100, 1, log_start=2)
    assert members.low_watermark(7) == 5, "who is not in sync does not hold anything up"
    members.begin(InSyncChange({3: 30}, ()))
    assert members.low_watermark(7) == 2, "who is about to be does"
    members.settle()
    members.fetched(2, 20, 100, 100, 1, log_start=9)
    assert members.low_watermark(7) == 7, "the leader has it itself"


def test_who_is_eligible_must_have_deleted_it_too() -> None:
    members = in_sync({1: 10}, minimum=2)
    members.agree(replace(record({1: 10}), elr=(2,)), 1, 8)
    assert members.low_watermark(7) == 0
    members.fetched(2, 25, 50, 100, 1, log_start=8)
    assert members.low_watermark(7) == 7


def test_nobody_joins_who_has_what_others_were_told_is_deleted() -> None:
    members = in_sync({1: 10}, start=4)
    members.fetched(2, 20, 100, 100, 1, log_start=3)
    assert wanted(members) is None, "this leader began without it"
    members.fetched(2, 20, 100, 100, 1, log_start=4)
    assert wanted(members) == InSyncChange({2: 20}, ())
    members.start_promised = 6
    assert wanted(members) is None
    members.fetched(2, 20, 100, 100, 1, log_start=6)
    assert wanted(members) == InSyncChange({2: 20}, ())


def test_what_a_node_had_before_it_became_a_replica_does_not_count() -> None:
    members = in_sync({1: 10})
    gone = replace(record({1: 10}), replicas=(1, 2))
    members.agree(gone, 0, 7)
    members.agree(record({1: 10}), 0, 8)
    assert members.fetched(3, 30, 100, 100, 1, known_epoch=OBSERVES), "it is one by now"
    members.fetched(3, 30, 100, 100, 1, known_epoch=6)
    assert members.end_of(3) == 0
    assert wanted(members) is None
    members.fetched(3, 30, 100, 100, 1, known_epoch=8)
    assert members.end_of(3) == 100
    change = wanted(members)
    assert change is not None
    assert change.joining == {3: 30}


def test_who_was_in_sync_as_the_leader_began_counts_by_whichever_record_it_knows_of_it_and_others_by_that_one() -> None:
    members = in_sync({1: 10, 2: 20}, partition_epoch=9)
    members.fetched(2, 20, 100, 100, 1, known_epoch=1)
    assert members.end_of(2) == 100
    members.fetched(3, 30, 100, 100, 1, known_epoch=8)
    assert members.end_of(3) == 0, "it may speak of a copy that it had before"
    members.fetched(3, 30, 100, 100, 1, known_epoch=9)
    assert members.end_of(3) == 100


def test_an_observer_counts_for_nothing() -> None:
    members = in_sync({1: 10})
    members.fetched(2, 20, 100, 100, 1, known_epoch=OBSERVES)
    assert members.end_of(2) == 0


def test_what_a_follower_lacks_is_of_the_records_that_there_are_whether_it_has_spoken_or_not() -> None:
    members = in_sync({1: 10, 2: 20}, end=5000, start=4990)
    assert members.lag_of(2, 4990, 5000) == 0, "it is in sync, and nothing else is known of it"
    assert members.lag_of(3, 4990, 5000) == 10, "it is not, and may have nothing"
    members.fetched(2, 20, 4998, 5000, 1)
    members.fetched(3, 30, 17, 5000, 1)
    assert members.lag_of(2, 4990, 5000) == 2
    assert members.lag_of(3, 4990, 5000) == 10, "what was deleted it need not have"
