"""Elects the leaders of partitions. Every election increments the leader epoch, even if the same node is elected again.

The first live in-sync replica, in the order of the replicas, becomes the leader; if there is none, a live eligible leader replica
(``records.py``); otherwise the partition is offline until one of these comes back. No other node is elected unless an operator or the
topic's settings allow it: only these nodes are known to have all acknowledged records.
"""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from penstock.core.cluster.records import without
from penstock.core.cluster.rules import ALL, Rules
from penstock.core.topics.records import NO_LEADER, PartitionRecord

LiveNodes = Mapping[int, int]
"""The registered nodes with their node epochs."""


def is_led(record: PartitionRecord, live: LiveNodes) -> bool:
    """Whether the leader is alive, in the incarnation that was elected."""
    return record.leader != NO_LEADER and live.get(record.leader) == record.leader_node_epoch


def tidied(record: PartitionRecord, live: LiveNodes, min_in_sync: int) -> PartitionRecord:
    """The record without in-sync replicas that are gone, or have restarted and must catch up first.

    If none would be left, all of them stay in the set, since they have the data.
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
    """The record with a new leader, or without a leader if no node may lead. Nodes in ``avoid`` lead only if no other node can.

    With ``unclean``, any live replica may lead if no other can: acknowledged records may be lost.
    """
    candidates = [node for node in record.replicas if node in record.in_sync and node in live]
    # Prefer nodes that did not restart: after a power loss, a machine may have lost records that it had acknowledged.
    candidates.sort(key=lambda node: (node in avoid, (node, live[node]) not in record.isr))
    if not candidates:
        candidates = [node for node in record.elr if node in live]
    is_unclean = not candidates and (unclean or not rules.elect_in_sync_only)
    if is_unclean:
        candidates = sorted((node for node in record.replicas if node in live), key=lambda node: node in avoid)
    # The previous leader may not know that its lease has ended. Its old epoch identifies its requests.
    step = 1 if rules.fenced_by_epoch else 0
    if not candidates:
        if record.leader == NO_LEADER:
            return record
        return replace(record, leader=NO_LEADER, leader_node_epoch=0, leader_epoch=record.leader_epoch + step)
    leader = candidates[0]
    named = replace(record, leader=leader, leader_node_epoch=live[leader], leader_epoch=record.leader_epoch + step)
    if is_unclean:
        # The other replicas may differ from this one: they must follow it, and truncate what it does not have.
        return replace(named, isr=((leader, live[leader]),), elr=(), unclean_epoch=named.leader_epoch)
    if leader not in record.in_sync:
        # It has all committed records, and no member of the in-sync set is up, so it begins a new set.
        gone = [node for node in (*record.in_sync, *record.elr) if node != leader]
        return replace(named, isr=((leader, live[leader]),), elr=tuple(dict.fromkeys(gone)) if min_in_sync > 1 else ())
    isr = tuple((node, live[node] if node == leader else epoch) for node, epoch in record.isr)
    return tidied(replace(named, isr=isr), live, min_in_sync)


def preferred(record: PartitionRecord) -> int:
    """The preferred leader: the first replica that is not being removed."""
    return next((node for node in record.replicas if node not in record.removing), NO_LEADER)


def wants_preferred(record: PartitionRecord, live: LiveNodes, avoid: Collection[int] = ()) -> bool:
    """Whether the preferred replica can become the leader again."""
    node = preferred(record)
    return record.leader not in (node, NO_LEADER) and node not in avoid and (node, live.get(node)) in record.isr
