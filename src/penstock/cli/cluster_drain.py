"""``penstock cluster drain``: the checks before a node is drained, the question, and the progress.

A drain that cannot end leaves a node that gets no new replicas and is never empty. So nothing is started that cannot be finished, unless ``--partial`` is given. A dry
run makes the same checks.
"""

from time import sleep
from typing import TYPE_CHECKING, Final

from penstock.cli.cluster_moves import require_etcd
from penstock.cli.cluster_view import drain_line, only_there_advice, only_there_reason, stuck_advice
from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import ask_about_plan
from penstock.cli.output import Format, Row, emit_one, picked, print_table

if TYPE_CHECKING:
    from penstock.client.status import StatusClient
    from penstock.operations.cluster import ClusterDescription, ClusterNode, NodeDrain

POLL_SECONDS: Final = 0.5
"""Between two checks of --watch."""
UNDONE: Final = "Nothing was moved"


def drain(
    client: "StatusClient", node: int, output: Format, *, yes: bool, dry_run: bool, partial: bool, watch: bool
) -> None:
    """Check, ask, start, and follow the drain if wanted."""
    status = client.cluster()
    found = _found(status, node)
    require_etcd(status, UNDONE)
    if not found.is_draining:
        if dry_run:
            _print_plan(status, found, output)
        _check(status, found, partial=partial)
        if dry_run:
            note(f"{UNDONE}; run it without --dry-run to do it")
            return
        can_go = found.replicas - found.stuck - found.only_there
        replicas = f"{can_go:,} of {found.replicas:,} replicas" if can_go < found.replicas else f"{can_go:,} replicas"
        what = f"{found.leads:,} leaders and {replicas} from node {node} to other nodes"
        ask_about_plan(f"Move {what}?", UNDONE, f"move {what}", yes=yes)
    elif dry_run:
        note(f"Node {node} is already being drained")
    now = _drain_of(status, node) if dry_run else client.drain(node)
    if watch and not dry_run:
        now = _follow(client, node)
    else:
        note(drain_line(now, is_up=found.is_up))
    if output is not Format.TABLE:
        emit_one(_row(now), output)
    if watch and not now.is_done and not dry_run:
        advice = [stuck_advice(node)] if now.stuck else []
        advice += [f"{only_there_reason(now.only_there)}. {only_there_advice(node)}"] if now.only_there else []
        raise Failure(f"Node {node} cannot be drained further: {'. '.join(advice)}.")


def undo(client: "StatusClient", node: int, output: Format) -> None:
    """Cancel the drain of a node, or forget a node that is gone."""
    status = client.cluster()
    found = _found(status, node)
    require_etcd(status, "Nothing was changed")
    if found.is_draining:
        client.undrain(node)
        note(_undone(found))
    else:
        note(f"Node {node} is not being drained; nothing was changed")
    if output is not Format.TABLE:
        emit_one({"node": node, "is_draining": False, "was_draining": found.is_draining}, output)


def _undone(found: "ClusterNode") -> str:
    if found.is_up:
        return (
            f"Node {found.node} is used again. Internal topics that lack replicas get them there automatically; to move other partitions back, use "
            "penstock cluster reassign"
        )
    if found.replicas:
        partitions = f"{found.replicas:,} partition{'' if found.replicas == 1 else 's'}"
        return f"Node {found.node} is expected to return: it is down, and still has {partitions}"
    return f"Node {found.node} is forgotten: it is down and has no partitions. If it is started again, it joins as a new node"


def _found(status: "ClusterDescription", node: int) -> "ClusterNode":
    if status.is_alone:
        raise Failure("This broker runs alone, so there is no other node to move its partitions to")
    for each in status.nodes:
        if each.node == node:
            return each
    names = ", ".join(str(each.node) for each in status.nodes)
    raise Failure(f"The cluster has no node {node}; its nodes are {names}", Exit.NOT_FOUND)


def _takers(status: "ClusterDescription", node: int) -> list[int]:
    """The nodes that could take partitions."""
    return [
        each.node
        for each in status.nodes
        if each.node != node and each.is_up and not each.is_draining and not each.is_stopping
    ]


def _check(status: "ClusterDescription", found: "ClusterNode", *, partial: bool) -> None:
    node = found.node
    if not _takers(status, node):
        draining = [each.node for each in status.nodes if each.is_draining]
        why = "there is no other node"
        if len(status.nodes) > 1:
            why = "the other nodes are being drained too" if draining else "no other node is up"
        again = f", or use one again with penstock cluster drain {draining[0]} --undo" if draining else ""
        raise Failure(f"No node could take the partitions of node {node}: {why}. Start another node{again}. {UNDONE}.")
    if found.only_there and not partial:
        raise Failure(
            f"Node {node} cannot be drained: it is down with {found.replicas:,} partition{'' if found.replicas == 1 else 's'}, and "
            f"{only_there_reason(found.only_there)}. Start it again, then drain it. If it is lost for good, add --partial to move the rest. Then continue without these "
            "records with penstock cluster elect TOPIC/PARTITION --unclean, or remove a topic with penstock topic rm TOPIC; penstock cluster status --all lists the partitions. "
            f"{UNDONE}."
        )
    if found.stuck and not partial:
        raise Failure(
            f"Node {node} cannot be drained: {found.stuck:,} of its {found.replicas:,} partitions {'has' if found.stuck == 1 else 'have'} a replica on every other "
            f"node that is up. "
            f"Start another node, then drain this one. Or add --partial to move what can be moved, and lower the replication factor of the rest with "
            f"penstock cluster reassign TOPIC --replication-factor N. {UNDONE}."
        )


def _print_plan(status: "ClusterDescription", found: "ClusterNode", output: Format) -> None:
    takers = _takers(status, found.node)
    row: Row = {
        "node": found.node,
        "is_draining": False,
        "leads": found.leads,
        "replicas": found.replicas,
        "stuck": found.stuck if takers else found.replicas,
        "only_there": found.only_there,
        "takers": takers,
    }
    if output is Format.TABLE:
        columns = ["node", "leads", "replicas", "stuck", "only_there", "takers"]
        print_table([row], [name for name in columns if name != "only_there" or found.only_there])
    else:
        emit_one(row, output)


def _drain_of(status: "ClusterDescription", node: int) -> "NodeDrain":
    return next(each for each in status.drains if each.node == node)


def _row(now: "NodeDrain") -> Row:
    return {
        "node": now.node,
        "is_draining": True,
        **picked(now, "leads", "replicas", "stuck", "only_there", "is_done"),
    }


def _follow(client: "StatusClient", node: int) -> "NodeDrain":
    """Show the progress until the node is empty, or nothing more can be moved."""
    shown = ""
    while True:
        status = client.cluster()
        found = next((each for each in status.drains if each.node == node), None)
        if found is None:
            raise Failure(f"The drain of node {node} was cancelled by another command")
        is_up = any(each.node == node and each.is_up for each in status.nodes)
        text = drain_line(found, is_up=is_up, advises=False)
        if text != shown:
            note(text)
            shown = text
        # It may continue to lead what no other node can take.
        if found.is_done or (found.replicas and found.stuck + found.only_there == found.replicas):
            return found
        sleep(POLL_SECONDS)
