"""The status of a cluster for people: a table of nodes, problems by cause, moves in progress, and what to do.

One node that is down is one cause of problems in a thousand partitions: one line shows it. Partitions have rows of their own only on request.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.cli.output import Row, picked, print_table
from penstock.cli.places import moment

if TYPE_CHECKING:
    from penstock.operations.cluster import ClusterDescription, ClusterNode, NodeDrain, PartitionMove, PartitionTrouble

_NAMED_MAX: Final = 3
"""Up to this many partitions are named instead of counted."""


def print_status(status: "ClusterDescription", *, every: bool = False) -> None:
    """Print the status. Partitions with problems are grouped by cause, or with ``every`` have a row each."""
    controller = "no controller" if status.controller is None else f"controller node {status.controller.node}"
    store = "" if status.is_alone else f"  etcd {'reachable' if status.metadata.is_reachable else 'NOT REACHABLE'}"
    alone = "  (a broker that runs alone)" if status.is_alone else ""
    print(f"cluster {status.cluster_id}  {controller}{store}  partitions {status.partitions:,}{alone}")
    if status.metadata.error:
        print(f"  etcd as seen by node {status.node}: {status.metadata.error}")
    print()
    columns = ["node", "state", "rack", "leads", "replicas", "kafka", "http", "version"]
    print_table([_node(node) for node in status.nodes], columns)
    _print_troubles("offline", status.offline_count, status.offline, every=every)
    _print_troubles("under-replicated", status.under_replicated_count, status.under_replicated, every=every)
    below = "below min.insync.replicas and refusing writes with acks=all"
    _print_troubles(below, status.under_min_in_sync_count, status.under_min_in_sync, every=every)
    if status.moves:
        print(f"\n{_partitions(status.moving_count)} being moved to other nodes")
        print_table([move_row(move) for move in status.moves], MOVE_COLUMNS)
    down = {node.node for node in status.nodes if not node.is_up}
    for drain in status.drains:
        print(f"\n{drain_line(drain, is_up=drain.node not in down)}")
    if not status.metadata.is_reachable:
        print(
            "\nThis is the status when etcd was last reached; which nodes are up and in sync now is not known. Restore etcd; the rest recovers by itself"
        )
    elif not (status.offline_count or status.under_replicated_count or status.moves or status.is_alone):
        print(f"\nAll partitions have a leader and all their replicas in sync{_though(status.under_min_in_sync_count)}")
    for advice in _advice(status, every=every):
        print(f"\n{advice}")


def _node(node: "ClusterNode") -> Row:
    listeners: Row = {name: node.listeners.get(name) for name in ("kafka", "http")}
    return {**picked(node, "node", "state", "rack", "leads", "replicas", "version"), **listeners}


def _print_troubles(what: str, count: int, troubles: "Sequence[PartitionTrouble]", *, every: bool) -> None:
    if not count:
        return
    cut = "" if count == len(troubles) else f" (the first {len(troubles):,} of {count:,})"
    if not every:
        causes: dict[str, list[PartitionTrouble]] = {}
        for each in troubles:
            causes.setdefault(each.why, []).append(each)
        print()
        for why, group in sorted(causes.items(), key=lambda cause: -len(cause[1])):
            print(f"{_places(group)} {what}: {why}{cut}")
        return
    rows = [picked(each, "topic", "leader", "replicas", "in_sync", "why", part="partition") for each in troubles]
    print(f"\n{_partitions(count)} {what}{cut}")
    print_table(rows, ["topic", "part", "leader", "replicas", "in_sync", "why"])


def _places(troubles: "Sequence[PartitionTrouble]") -> str:
    """``orders/0 and orders/1 are``, or ``64 partitions of 5 topics are``."""
    if len(troubles) <= _NAMED_MAX:
        names = [f"{each.topic}/{each.partition}" for each in troubles]
        return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"
    topics = {each.topic for each in troubles}
    return (
        f"{len(troubles):,} partitions of {next(iter(topics)) if len(topics) == 1 else f'{len(topics):,} topics'} are"
    )


def _though(count: int) -> str:
    """The problem that remains although no replica is missing."""
    if not count:
        return ""
    return f", but {_partitions(count)} refusing writes with acks=all, since min.insync.replicas is higher than the number of replicas"


def _partitions(count: int) -> str:
    return "1 partition is" if count == 1 else f"{count:,} partitions are"


def _advice(status: "ClusterDescription", *, every: bool) -> list[str]:
    """What to do about the problems. Without etcd none of it is certain, which is shown already."""
    if not status.metadata.is_reachable:
        return []
    troubles = [*status.offline, *status.under_replicated, *status.under_min_in_sync]
    said: list[str] = []
    # A node that is being drained is described with its drain.
    down = [node.node for node in status.nodes if not node.is_up and not node.is_draining]
    if down:
        names = f"node{'s' if len(down) > 1 else ''} {', '.join(map(str, down))}"
        said += [
            f"Node {node.node} has been down since {moment(node.left_ms)}"
            for node in status.nodes
            if node.node in down and node.left_ms is not None
        ]
        said.append(
            f"To do: start {names} again; missing records are copied automatically. If {'one' if len(down) > 1 else 'it'} is lost for good, start another node, "
            f"then run penstock cluster drain {down[0]}"
        )
    elif status.under_replicated_count:
        said.append(
            "To do: wait, replicas are catching up; if their number does not go down, check the log of the node that is behind"
        )
    # All existing replicas are in sync, and these are too few.
    endless = sorted({each.topic for each in status.under_min_in_sync if len(each.in_sync) == len(each.replicas)})
    if endless:
        said.append(
            f"To do: give {endless[0]} more replicas with penstock cluster reassign {endless[0]} --replication-factor N, or lower its minimum with "
            f"penstock topic config {endless[0]} --set min.insync.replicas=N"
        )
    if len(troubles) > _NAMED_MAX and not every:
        said.append("To list each of these partitions: penstock cluster status --all")
    return said


MOVE_COLUMNS = ["topic", "part", "leader", "replicas", "adding", "removing", "copied"]


def move_row(move: "PartitionMove") -> Row:
    """One move, for the table."""
    return {
        "topic": move.topic,
        "part": move.partition,
        "leader": move.leader,
        "replicas": [node for node in move.replicas if node not in move.adding],
        **picked(move, "adding", "removing"),
        "copied": None if move.share is None else f"{move.share:.0%}",
    }


def drain_line(drain: "NodeDrain", *, is_up: bool = True, advises: bool = True) -> str:
    """The progress of a drain, and what to do: about replicas that cannot be moved, or with the node."""
    undo = f'"penstock cluster drain {drain.node} --undo"'
    if drain.is_done and is_up:
        return f"Node {drain.node} is empty: it has no leaders and no replicas; stop it, or use it again with {undo}"
    if drain.is_done:
        return f"Node {drain.node} is down and empty; forget it with {undo}"
    has = f"{drain.replicas:,} partition{'' if drain.replicas == 1 else 's'}"
    text = f"Node {drain.node} is being drained: it still leads {drain.leads:,} and has {has}"
    if not is_up:
        text = f"Node {drain.node} is down and being drained: {has} left"
    if drain.stuck:
        have = "have" if drain.stuck > 1 else "has"
        text += f"; {drain.stuck:,} of them {have} nowhere to go{f': {stuck_advice(drain.node)}' if advises else ''}"
    if drain.only_there:
        text += f"; {only_there_reason(drain.only_there)}{f'. {only_there_advice(drain.node)}' if advises else ''}"
    if not is_up and not drain.stuck and not drain.only_there:
        text += "; other nodes copy them from each other, and there is nothing to do"
    return text


def stuck_advice(node: int) -> str:
    """What to do about partitions that all other nodes already have."""
    return (
        "every other node that could take them already has them. Start another node, lower their replication factor with penstock cluster reassign TOPIC "
        f"--replication-factor N, or use node {node} again with penstock cluster drain {node} --undo"
    )


def only_there_reason(count: int) -> str:
    """Why some partitions cannot leave a node that is down."""
    if count == 1:
        return "1 of its partitions waits for it, since no other node has all its records"
    return f"{count:,} of its partitions wait for it, since no other node has all their records"


def only_there_advice(node: int) -> str:
    """What to do about them."""
    return (
        f"Start node {node} again to move them. If it is lost for good, so are these records: continue without them with penstock cluster elect TOPIC/PARTITION "
        "--unclean, or remove the topic with penstock topic rm TOPIC; penstock cluster status --all lists the partitions as offline"
    )
