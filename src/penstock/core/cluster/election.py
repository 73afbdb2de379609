"""Who leads a partition next. Every election raises the leader epoch, also when the same node is named again.

A live member of the in-sync set leads, the earliest in the order of the replicas; else a live one that is eligible still
(``records.py``); else nobody, and the partition is offline until one of them comes back. Nobody else does, unless an operator or the
topic's own settings ask for it: what was acknowledged may be on those nodes only.
"""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from penstock.core.cluster.records import without
from penstock.core.cluster.rules import ALL, Rules
from penstock.core.topics.records import NO_LEADER, PartitionRecord

LiveNodes = Mapping[int, int]
"""Nodes that are registered, with their node epochs."""


def is_led(record: PartitionRecord, live: LiveNodes) -> bool:
    """Whether the leader that the record names is alive, in the incarnation that it names."""
    return record.leader != NO_LEADER and live.get(record.leader) == record.leader_node_epoch


def tidied(record: PartitionRecord, live: LiveNodes, min_in_sync: int) -> PartitionRecord:
    """The record without in-sync members that are gone, or came back in another incarnation and have to catch up first.

    The set is not emptied: if nobody of it is left, the members stay named, since the data is with them.
    """
    stale = [node for node, epoch in record.isr if live.get(node) != epoch]
    if len(stale) == len(record.isr):
        return record
    return without(record, stale, min_in_sync)


def elected(
    record: PartitionRecord,
    live: LiveNodes,
    min_in_sync: int,
    *,
    avoid: Collection[int] = (),
    unclean: bool = False,
    rules: Rules = ALL,
) -> PartitionRecord:
    """The record with a new leader, or with none when nobody may lead. ``avoid`` are nodes that lead only if nobody else can.

    With ``unclean`` any replica that is up leads rather than nobody: records that were acknowledged may be lost.
    """
    candidates = [node for node in record.replicas if node in record.in_sync and node in live]
    # A node that stayed up comes before one that has come back: a machine that lost power may have lost more than it promised.
    candidates.sort(key=lambda node: (node in avoid, (node, live[node]) not in record.isr))
    if not candidates:
        candidates = [node for node in record.elr if node in live]
    is_unclean = not candidates and (unclean or not rules.elect_in_sync_only)
    if is_unclean:
        candidates = sorted((node for node in record.replicas if node in live), key=lambda node: node in avoid)
    # The lease of the leader before may have ended without its knowing: what it still does is told apart by its epoch.
    step = 1 if rules.fenced_by_epoch else 0
    if not candidates:
        if record.leader == NO_LEADER:
            return record
        return replace(record, leader=NO_LEADER, leader_node_epoch=0, leader_epoch=record.leader_epoch + step)
    leader = candidates[0]
    named = replace(record, leader=leader, leader_node_epoch=live[leader], leader_epoch=record.leader_epoch + step)
    if is_unclean:
        # Nobody can be trusted to have what this one has: all others have to follow it, and to let go of what it lacks.
        return replace(named, isr=((leader, live[leader]),), elr=(), unclean_epoch=named.leader_epoch)
    if leader not in record.in_sync:
        # It has all that is committed; of the set's own members nobody is left, so it begins a new one.
        gone = [node for node in (*record.in_sync, *record.elr) if node != leader]
        return replace(named, isr=((leader, live[leader]),), elr=tuple(dict.fromkeys(gone)) if min_in_sync > 1 else ())
    isr = tuple((node, live[node] if node == leader else epoch) for node, epoch in record.isr)
    return tidied(replace(named, isr=isr), live, min_in_sync)


def preferred(record: PartitionRecord) -> int:
    """Who should lead when all is well: the first replica that is not about to go."""
    return next((node for node in record.replicas if node not in record.removing), NO_LEADER)


def wants_preferred(record: PartitionRecord, live: LiveNodes, avoid: Collection[int] = ()) -> bool:
    """Whether leadership can go back to where it belongs."""
    node = preferred(record)
    return record.leader not in (node, NO_LEADER) and node not in avoid and (node, live.get(node)) in record.isr
