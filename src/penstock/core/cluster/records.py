"""The changes of a partition's record: nodes join and leave the in-sync set, become eligible leader replicas, or are reassigned.

While the in-sync set is smaller than the topic's ``min.insync.replicas``, the high watermark does not advance, so a node that leaves the
set then still has all committed records. Such nodes are kept in ``elr`` (eligible leader replicas): they may lead if no in-sync replica
is left. Once the set is large enough again, first the list is emptied, and then the high watermark advances without them.

Each function returns a new record.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from penstock.core.topics.records import NO_LEADER, PartitionRecord


def without(record: PartitionRecord, nodes: Collection[int], min_in_sync: int) -> PartitionRecord:
    """The record after these nodes have left the in-sync set. If none would be left, nothing changes."""
    kept = tuple(member for member in record.isr if member[0] not in nodes)
    if not kept or len(kept) == len(record.isr):
        return record
    left = [node for node, _ in record.isr if node in nodes]
    return replace(record, isr=kept, elr=_eligible(record, kept, left, min_in_sync))


def joined(record: PartitionRecord, members: Mapping[int, int], min_in_sync: int) -> PartitionRecord:
    """The record after these nodes, given with their node epochs, have joined the in-sync set, or joined it again after a restart."""
    kept = [(node, members.get(node, epoch)) for node, epoch in record.isr]
    known = {node for node, _ in kept}
    kept += [(node, epoch) for node, epoch in sorted(members.items()) if node not in known and node in record.replicas]
    in_order = tuple(sorted(kept, key=lambda member: _place(record, member[0])))
    if in_order == record.isr:
        return record
    return replace(record, isr=in_order, elr=_eligible(record, in_order, (), min_in_sync))


def _eligible(
    record: PartitionRecord, isr: Collection[tuple[int, int]], left: Iterable[int], min_in_sync: int
) -> tuple[int, ...]:
    if len(isr) >= min(min_in_sync, len(record.replicas)):
        return ()
    members = {node for node, _ in isr}
    known = dict.fromkeys((*record.elr, *left))
    return tuple(node for node in known if node not in members and node in record.replicas)


def without_eligible(record: PartitionRecord, min_in_sync: int) -> PartitionRecord:
    """The record without eligible leader replicas, if enough replicas are in sync, as after a change of min.insync.replicas."""
    if record.elr and len(record.isr) >= min(min_in_sync, len(record.replicas)):
        return replace(record, elr=())
    return record


def _place(record: PartitionRecord, node: int) -> int:
    return record.replicas.index(node) if node in record.replicas else len(record.replicas)


def reassigning(record: PartitionRecord, target: tuple[int, ...]) -> PartitionRecord:
    """The record at the beginning of a move to ``target``, with old and new replicas. It replaces a move that is under way."""
    before = tuple(node for node in record.replicas if node not in record.adding)
    adding = tuple(node for node in target if node not in before)
    removing = tuple(node for node in before if node not in target)
    replicas = (*target, *removing)
    # A node of the replaced move that is no longer wanted is removed at once, also from the in-sync set.
    isr = tuple(member for member in record.isr if member[0] in replicas) or record.isr
    elr = tuple(node for node in record.elr if node in replicas)
    return replace(record, replicas=replicas, adding=adding, removing=removing, isr=isr, elr=elr)


def is_reassigning(record: PartitionRecord) -> bool:
    """Whether the partition is being moved."""
    return bool(record.adding or record.removing)


def target_of(record: PartitionRecord) -> tuple[int, ...]:
    """The replicas at the end of the move, if there is one."""
    return tuple(node for node in record.replicas if node not in record.removing)


def can_complete(record: PartitionRecord) -> bool:
    """Whether all new replicas are in sync, so that the old ones can be removed."""
    in_sync = set(record.in_sync)
    return is_reassigning(record) and all(node in in_sync for node in target_of(record))


def completed(record: PartitionRecord) -> PartitionRecord:
    """The record at the end of a move. If the leader was removed, an election must follow in the same transaction."""
    replicas = target_of(record)
    isr = tuple(member for member in record.isr if member[0] in replicas)
    elr = tuple(node for node in record.elr if node in replicas)
    return replace(record, replicas=replicas, adding=(), removing=(), isr=isr, elr=elr)


def forgotten(record: PartitionRecord, node: int) -> PartitionRecord:
    """The record after a node has lost its data. The in-sync set may become empty: then no node is known to have all records."""
    isr = tuple(member for member in record.isr if member[0] != node)
    elr = tuple(each for each in record.elr if each != node)
    return replace(record, isr=isr, elr=elr)


def given_up(record: PartitionRecord) -> PartitionRecord:
    """The record after the leader found that it cannot read its log. An election follows, in which it is not a candidate."""
    left = forgotten(record, record.leader)
    return replace(left, leader=NO_LEADER, leader_node_epoch=0, leader_epoch=record.leader_epoch + 1)
