"""How a cluster stands, for people: a table of nodes, what is wrong by its causes, what is on its way, and what to do.

One node that is down is one cause of a thousand partitions' trouble: a line says it. Every partition has a row of its own only when that is asked for.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.cli.output import Row, print_table
from penstock.cli.places import moment

if TYPE_CHECKING:
    from penstock.operations.cluster import ClusterDescription, NodeDrain, PartitionMove, PartitionTrouble

_NAMED_MAX: Final = 3
"""Partitions that are called by their names, and not counted."""


def print_status(status: "ClusterDescription", *, every: bool = False) -> None:
    """All of it; what is as it should be in one line. ``every`` partition that is not as it should be in a row, or folded by cause."""
    controller = "no controller" if status.controller is None else f"controller node {status.controller.node}"
    store = "" if status.is_alone else f"  etcd {'reachable' if status.metadata.is_reachable else 'NOT REACHABLE'}"
    alone = "  (a broker that is alone)" if status.is_alone else ""
    print(f"cluster {status.cluster_id}  {controller}{store}  partitions {status.partitions:,}{alone}")
    if status.metadata.error:
        print(f"  asked by node {status.node}: {status.metadata.error}")
    print()
    columns = ["node", "state", "rack", "leads", "replicas", "kafka", "http", "version"]
    print_table([_node(status, number) for number in range(len(status.nodes))], columns)
    _print_troubles("offline", status.offline_count, status.offline, every=every)
    _print_troubles("under-replicated", status.under_replicated_count, status.under_replicated, every=every)
    below = "below min.insync.replicas, and refusing acks=all"
    _print_troubles(below, status.under_min_in_sync_count, status.under_min_in_sync, every=every)
    if status.moves:
        print(f"\n{_partitions(status.moving_count)} on the way to other nodes")
        print_table([move_row(move) for move in status.moves], MOVE_COLUMNS)
    down = {node.node for node in status.nodes if not node.is_up}
    for drain in status.drains:
        print(f"\n{drain_line(drain, is_up=drain.node not in down)}")
    if not status.metadata.is_reachable:
        print(
            "\nthis is as it was when etcd was last reached: who is up and in sync now is not known. Bring etcd back; the rest heals by itself"
        )
    elif not (status.offline_count or status.under_replicated_count or status.moves or status.is_alone):
        print(f"\nevery partition has its leader and all its replicas in sync{_though(status.under_min_in_sync_count)}")
    for advice in _advice(status, every=every):
        print(f"\n{advice}")


def _node(status: "ClusterDescription", number: int) -> Row:
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
    """What is not well though nothing is missing."""
    if not count:
        return ""
    return f"; {_partitions(count)} refusing acks=all nevertheless, since {'it wants' if count == 1 else 'they want'} more in sync than there are replicas"


def _partitions(count: int) -> str:
    return "1 partition is" if count == 1 else f"{count:,} partitions are"


def _advice(status: "ClusterDescription", *, every: bool) -> list[str]:
    """What to do about it. Without etcd nothing of it is certain, and that is said already."""
    if not status.metadata.is_reachable:
        return []
    troubles = [*status.offline, *status.under_replicated, *status.under_min_in_sync]
    said: list[str] = []
    # What becomes of one that is being emptied is said with its drain.
    down = [node.node for node in status.nodes if not node.is_up and not node.is_draining]
    if down:
        names = f"node{'s' if len(down) > 1 else ''} {', '.join(map(str, down))}"
        said += [
            f"node {node.node} is down since {moment(node.left_ms)}"
            for node in status.nodes
            if node.node in down and node.left_ms is not None
        ]
        said.append(
            f"to do: start {names} again: what is missing there is copied by itself. If {'one' if len(down) > 1 else 'it'} is lost for good, start another node, "
            f"then penstock cluster drain {down[0]}"
        )
    elif status.under_replicated_count:
        said.append(
            "to do: wait, replicas are catching up; if it does not get less, look into the log of the node that is behind"
        )
    # All that there are are in sync, and that is too few.
    endless = sorted({each.topic for each in status.under_min_in_sync if len(each.in_sync) == len(each.replicas)})
    if endless:
        said.append(
            f"to do: give {endless[0]} more replicas with penstock cluster reassign {endless[0]} --replication-factor N, or lower what it wants with "
            f"penstock topic config {endless[0]} --set min.insync.replicas=N"
        )
    if len(troubles) > _NAMED_MAX and not every:
        said.append("penstock cluster status --all has a row for each of these partitions")
    return said


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


def drain_line(drain: "NodeDrain", *, is_up: bool = True, advises: bool = True) -> str:
    """How far a node is emptied, and what to do: about what cannot go, or with the node."""
    undo = f'"penstock cluster drain {drain.node} --undo"'
    if drain.is_done and is_up:
        return f"node {drain.node} is empty: it leads nothing and has nothing; stop it, or use it again with {undo}"
    if drain.is_done:
        return f"node {drain.node} is down, and nothing is left on it: {undo} forgets it"
    has = f"{drain.replicas:,} partition{'' if drain.replicas == 1 else 's'}"
    text = f"node {drain.node} is being emptied: it still leads {drain.leads:,} and has {has}"
    if not is_up:
        text = f"node {drain.node} is down and being emptied: {has} left"
    if drain.stuck:
        have = "have" if drain.stuck > 1 else "has"
        text += f"; {drain.stuck:,} of them {have} nowhere to go{f': {stuck_advice(drain.node)}' if advises else ''}"
    if drain.only_there:
        text += f"; {only_there_reason(drain.only_there)}{f'. {only_there_advice(drain.node)}' if advises else ''}"
    if not is_up and not drain.stuck and not drain.only_there:
        text += "; others copy them from each other, and nothing is to be done"
    return text


def stuck_advice(node: int) -> str:
    """What to do about partitions that all other nodes have already."""
    return (
        "every other node that could take them has them. Start another node, lower their replication factor with penstock cluster reassign TOPIC "
        f"--replication-factor N, or use node {node} again with penstock cluster drain {node} --undo"
    )


def only_there_reason(count: int) -> str:
    """Why some partitions cannot leave a node that is down."""
    if count == 1:
        return "1 of its partitions waits for it, since nobody else has all its records"
    return f"{count:,} of its partitions wait for it, since nobody else has all their records"


def only_there_advice(node: int) -> str:
    """What to do about them."""
    return (
        f"Start node {node} again, and they move. If it is lost for good, so are these records: penstock cluster elect TOPIC/PARTITION --unclean goes on without "
        "them, penstock topic rm TOPIC gives the topic up; penstock cluster status --all names the partitions as offline"
    )
