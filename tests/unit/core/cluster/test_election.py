"""Who leads next: only a node that has everything that was acknowledged, and always in a new epoch."""

import pytest

from penstock.core.cluster.election import elected, is_led, preferred, tidied, wants_preferred
from penstock.core.cluster.rules import Rules
from penstock.core.topics.records import NO_LEADER, PartitionRecord

ALL_LIVE = {1: 10, 2: 20, 3: 30}


def record(**changes: object) -> PartitionRecord:
    fields: dict[str, object] = {
        "leader": 1,
        "leader_epoch": 7,
        "leader_node_epoch": 10,
        "replicas": (1, 2, 3),
        "isr": ((1, 10), (2, 20), (3, 30)),
    }
    return PartitionRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_leader_leads_only_in_the_life_that_the_record_names() -> None:
    assert is_led(record(), ALL_LIVE)
    assert not is_led(record(), {**ALL_LIVE, 1: 11})
    assert not is_led(record(), {2: 20, 3: 30})
    assert not is_led(record(leader=NO_LEADER, leader_node_epoch=0), ALL_LIVE)


def test_the_first_live_replica_in_sync_is_elected_and_the_dead_one_leaves_the_set() -> None:
    new = elected(record(), {2: 20, 3: 30}, 2)
    assert (new.leader, new.leader_node_epoch, new.leader_epoch) == (2, 20, 8)
    assert new.isr == ((2, 20), (3, 30))
    assert new.elr == ()


def test_a_replica_that_is_not_in_sync_is_never_elected() -> None:
    new = elected(record(isr=((1, 10),)), {2: 20, 3: 30}, 2)
    assert (new.leader, new.leader_epoch) == (NO_LEADER, 8)
    assert new.isr == ((1, 10),), "the data is with it"


def test_without_the_rule_anybody_is_elected() -> None:
    new = elected(record(isr=((1, 10),)), {2: 20, 3: 30}, 2, rules=Rules(elect_in_sync_only=False))
    assert new.leader == 2


def test_nobody_is_elected_twice_in_vain() -> None:
    offline = elected(record(isr=((1, 10),)), {2: 20, 3: 30}, 2)
    assert elected(offline, {2: 20, 3: 30}, 2) == offline, "the epoch does not rise while nothing changes"


def test_a_node_that_came_back_leads_again_in_a_new_epoch_and_a_new_life() -> None:
    new = elected(record(isr=((1, 10),)), {1: 11}, 1)
    assert (new.leader, new.leader_node_epoch, new.leader_epoch, new.isr) == (1, 11, 8, ((1, 11),))


def test_an_eligible_replica_leads_when_nobody_in_sync_is_left() -> None:
    new = elected(record(leader=3, isr=((3, 30),), elr=(2,)), {2: 21}, 2)
    assert (new.leader, new.leader_node_epoch) == (2, 21)
    assert new.isr == ((2, 21),)
    assert new.elr == (3,), "who was in sync last has everything too"


def test_an_avoided_node_leads_only_if_nobody_else_can() -> None:
    assert elected(record(), ALL_LIVE, 2, avoid={1}).leader == 2
    assert elected(record(isr=((1, 10),)), ALL_LIVE, 2, avoid={1}).leader == 1


def test_members_in_another_life_have_to_catch_up_first() -> None:
    assert tidied(record(), {1: 10, 2: 21, 3: 30}, 1).isr == ((1, 10), (3, 30))


def test_the_in_sync_set_is_never_emptied() -> None:
    assert tidied(record(), {}, 1) == record()


def test_who_leaves_a_set_that_becomes_too_small_stays_eligible() -> None:
    assert tidied(record(isr=((1, 10), (2, 20))), {1: 10}, 2).elr == (2,)
    assert tidied(record(), {1: 10, 2: 20}, 2).elr == (), "two are enough, and go on without the third"


@pytest.mark.parametrize(("leader", "wants"), [(2, True), (1, False), (NO_LEADER, False)])
def test_leadership_goes_back_to_the_first_replica(leader, wants) -> None:
    assert preferred(record()) == 1
    assert wants_preferred(record(leader=leader), ALL_LIVE) is wants


def test_leadership_does_not_go_back_to_one_that_is_not_in_sync_or_is_avoided() -> None:
    assert not wants_preferred(record(leader=2, isr=((2, 20),)), ALL_LIVE)
    assert not wants_preferred(record(leader=2), ALL_LIVE, avoid={1})
    assert not wants_preferred(record(leader=2), {**ALL_LIVE, 1: 11}), "it is in sync in another incarnation"


def test_an_election_that_may_lose_records_is_marked_and_later_ones_keep_the_mark() -> None:
    forced = elected(record(isr=((1, 10),)), {2: 20, 3: 30}, 2, unclean=True)
    assert (forced.leader, forced.leader_epoch, forced.unclean_epoch) == (2, 8, 8)
    assert elected(forced, {2: 21}, 2, unclean=True).unclean_epoch == 8, "it was in sync, so this one loses nothing"
    assert elected(record(), {2: 20, 3: 30}, 2, unclean=True).unclean_epoch == -1
