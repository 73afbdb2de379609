"""``penstock cluster drain``: what is looked at before a node is emptied, the question, and how far it is.

A drain that cannot end leaves a node that gets nothing new and is never empty. So nothing is begun that cannot be finished, unless ``--partial`` says so. A dry
run makes the same checks.
"""

from time import sleep
from typing import TYPE_CHECKING, Final

from penstock.cli.cluster_moves import require_etcd
from penstock.cli.cluster_view import drain_line, only_there_advice, only_there_reason, stuck_advice
from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import ask_about_plan
from penstock.cli.output import Format, Row, emit_one, print_table

if TYPE_CHECKING:
    from penstock.client.cluster_state import ClusterState
    from penstock.operations.cluster import ClusterDescription, ClusterNode, NodeDrain

LOOK_SECONDS: Final = 0.5
"""Between two looks of --watch."""
UNDONE: Final = "nothing was moved"


def drain(
    state: "ClusterState", node: int, output: Format, *, yes: bool, dry_run: bool, partial: bool, watch: bool
) -> None:
    """Look, ask, begin, and follow it if that is wanted."""
    status = state.status()
    found = _found(status, node)
    require_etcd(status, UNDONE)
    if not found.is_draining:
        if dry_run:
            _print_plan(status, found, output)
        _check(status, found, partial=partial)
        if dry_run:
            note(f"{UNDONE}; leave --dry-run out to do it")
            return
        can_go = found.replicas - found.stuck - found.only_there
        replicas = f"{can_go:,} of {found.replicas:,} replicas" if can_go < found.replicas else f"{can_go:,} replicas"
        what = f"{found.leads:,} leaders and {replicas} from node {node} to other nodes"
        ask_about_plan(f"Move {what}?", UNDONE, f"move {what}", yes=yes)
    elif dry_run:
        note(f"node {node} is being emptied already")
    now = _drain_of(status, node) if dry_run else state.drain(node)
    if watch and not dry_run:
        now = _follow(state, node)
    else:
        note(drain_line(now, is_up=found.is_up))
    if output is not Format.TABLE:
        emit_one(_row(now), output)
    if watch and not now.is_done and not dry_run:
        advice = [stuck_advice(node)] if now.stuck else []
        advice += [f"{only_there_reason(now.only_there)}. {only_there_advice(node)}"] if now.only_there else []
        raise Failure(f"node {node} cannot be emptied further: {'; '.join(advice)}")


def undo(state: "ClusterState", node: int, output: Format) -> None:
    """Use a node again, or forget it."""
    status = state.status()
    found = _found(status, node)
    require_etcd(status, "nothing was changed")
    if found.is_draining:
        state.undrain(node)
        note(_undone(found))
    else:
        note(f"node {node} is not being emptied: nothing was changed")
    if output is not Format.TABLE:
        emit_one({"node": node, "is_draining": False, "was_draining": found.is_draining}, output)


def _undone(found: "ClusterNode") -> str:
    if found.is_up:
        return (
            f"node {found.node} is used again. Internal topics that lack replicas get them there by themselves; what else has moved away comes back only by "
            "penstock cluster reassign"
        )
    if found.replicas:
        partitions = f"{found.replicas:,} partition{'' if found.replicas == 1 else 's'}"
        return f"node {found.node} is expected back: it is down, and still has {partitions}"
    return f"node {found.node} is forgotten: it is down and has nothing. Started again, it is a node like any other"


def _found(status: "ClusterDescription", node: int) -> "ClusterNode":
    if status.is_alone:
        raise Failure("this broker is alone: there is no other node to take what it has, and nothing to be emptied")
    for each in status.nodes:
        if each.node == node:
            return each
    names = ", ".join(str(each.node) for each in status.nodes)
    raise Failure(f"there is no node {node} in the cluster; its nodes are {names}", Exit.NOT_FOUND)


def _takers(status: "ClusterDescription", node: int) -> list[int]:
    """Who could take anything."""
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
            why = "the other nodes are being emptied too" if draining else "no other node is up"
        again = f", or use one again with penstock cluster drain {draining[0]} --undo" if draining else ""
        raise Failure(f"nobody could take what node {node} has: {why}. Start another node{again}; {UNDONE}")
    if found.only_there and not partial:
        raise Failure(
            f"node {node} cannot be emptied: it is down with {found.replicas:,} partition{'' if found.replicas == 1 else 's'}, and "
            f"{only_there_reason(found.only_there)}. Start it again and drain it then. If it is lost for good, add --partial to move the rest. Then penstock cluster "
            f"elect TOPIC/PARTITION --unclean goes on without these records, and penstock topic rm TOPIC gives a topic up; penstock cluster status --all names them; {UNDONE}"
        )
    if found.stuck and not partial:
        raise Failure(
            f"node {node} cannot be emptied: {found.stuck:,} of its {found.replicas:,} partitions {'has' if found.stuck == 1 else 'have'} a replica on every other "
            f"node that is up. "
            f"Start another node and drain this one then. Or add --partial to move what can go, and lower the replication factor of what is left with "
            f"penstock cluster reassign TOPIC --replication-factor N; {UNDONE}"
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
        "leads": now.leads,
        "replicas": now.replicas,
        "stuck": now.stuck,
        "only_there": now.only_there,
        "is_done": now.is_done,
    }


def _follow(state: "ClusterState", node: int) -> "NodeDrain":
    """Say how far it is until it is empty, or nothing more can go."""
    told = ""
    while True:
        status = state.status()
        found = next((each for each in status.drains if each.node == node), None)
        if found is None:
            raise Failure(f"the drain of node {node} was undone by somebody else")
        is_up = any(each.node == node and each.is_up for each in status.nodes)
        text = drain_line(found, is_up=is_up, advises=False)
        if text != told:
            note(text)
            told = text
        # What nobody else can take it may also go on leading.
        if found.is_done or (found.replicas and found.stuck + found.only_there == found.replicas):
            return found
        sleep(LOOK_SECONDS)
