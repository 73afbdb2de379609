"""How a cluster stands, for people: tables of nodes, of what is wrong and why, of what is on its way."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.cli.output import Row, print_table

if TYPE_CHECKING:
    from penstock.client.cluster_state import ClusterStatus, NodeDrain, PartitionMove, PartitionTrouble


def print_status(status: "ClusterStatus") -> None:
    """All of it; what is as it should be in one line."""
    controller = "no controller" if status.controller is None else f"controller node {status.controller.node}"
    store = "" if status.is_alone else f"  etcd {'reachable' if status.metadata.is_reachable else 'NOT REACHABLE'}"
    alone = "  (a broker that is alone)" if status.is_alone else ""
    print(f"cluster {status.cluster_id}  {controller}{store}  partitions {status.partitions:,}{alone}")
    if status.metadata.error:
        print(f"  asked by node {status.node}: {status.metadata.error}")
    print()
    columns = ["node", "state", "rack", "leads", "replicas", "kafka", "http", "version"]
    print_table([_node(status, number) for number in range(len(status.nodes))], columns)
    _print_troubles("offline", status.offline_count, status.offline)
    _print_troubles("under-replicated", status.under_replicated_count, status.under_replicated)
    if status.under_min_in_sync_count:
        count = status.under_min_in_sync_count
        which = "1 partition has" if count == 1 else f"{count:,} partitions have"
        print(f"\n{which} too few replicas in sync for acks=all: produce with it is refused there")
    if status.moves:
        print(f"\n{_partitions(status.moving_count)} on the way to other nodes")
        print_table([move_row(move) for move in status.moves], MOVE_COLUMNS)
    for drain in status.drains:
        print(f"\n{drain_line(drain)}")
    if not status.metadata.is_reachable:
        print("\nthis is as it was when etcd was last reached: who is up and in sync now is not known")
    elif not (status.offline_count or status.under_replicated_count or status.moves or status.is_alone):
        print("\nevery partition has its leader and all its replicas in sync")


def _node(status: "ClusterStatus", number: int) -> Row:
    node = status.nodes[number]
    return {
        "node": node.node,
        "state": node.state,
        "rack": node.rack,
        "leads": node.leads,
        "replicas": node.replicas,
        "kafka": node.listeners.get("kafka"),
        "http": node.listeners.get("http"),
        "version": node.version,
    }


def _print_troubles(what: str, count: int, troubles: "Iterable[PartitionTrouble]") -> None:
    rows: list[Row] = [
        {
            "topic": each.topic,
            "part": each.partition,
            "leader": each.leader,
            "replicas": each.replicas,
            "in_sync": each.in_sync,
            "why": each.why,
        }
        for each in troubles
    ]
    if not rows:
        return
    print(f"\n{_partitions(count)} {what}{'' if count == len(rows) else f'; the first {len(rows):,}'}")
    print_table(rows, ["topic", "part", "leader", "replicas", "in_sync", "why"])


def _partitions(count: int) -> str:
    return "1 partition is" if count == 1 else f"{count:,} partitions are"


MOVE_COLUMNS = ["topic", "part", "leader", "replicas", "adding", "removing", "copied"]


def move_row(move: "PartitionMove") -> Row:
    """One move, for the table."""
    return {
        "topic": move.topic,
        "part": move.partition,
        "leader": move.leader,
        "replicas": [node for node in move.replicas if node not in move.adding],
        "adding": move.adding,
        "removing": move.removing,
        "copied": None if move.share is None else f"{move.share:.0%}",
    }


def drain_line(drain: "NodeDrain") -> str:
    """How far a node is emptied."""
    if drain.is_done:
        return f'node {drain.node} is empty: it leads nothing and has nothing; stop it, or use it again with "penstock cluster drain {drain.node} --undo"'
    stuck = ""
    if drain.stuck:
        stuck = f"; {drain.stuck:,} of them have nowhere to go: all other nodes that are up have them already"
    return f"node {drain.node} is being emptied: it still leads {drain.leads:,} and has {drain.replicas:,} partitions{stuck}"
