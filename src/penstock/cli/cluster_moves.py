"""``penstock cluster reassign`` and ``elect``: show a plan, ask, carry it out; and show moves in progress.

A dry run makes the same checks as the run itself, and ends in the same way.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from time import sleep
from typing import TYPE_CHECKING, Final

from penstock.cli.cluster_plan import (
    PlannedPartition,
    check_plan,
    chosen,
    parse_nodes,
    parse_partition,
    plan_count,
    plan_to,
    with_linked,
)
from penstock.cli.cluster_view import MOVE_COLUMNS, move_row
from penstock.cli.failures import Exit, Failure, complain, note
from penstock.cli.options import ask_about_plan
from penstock.cli.output import Format, Row, emit, picked, print_table

if TYPE_CHECKING:
    from penstock.client import Cluster, PartitionInfo
    from penstock.client.errors import BrokerRefused
    from penstock.client.moves import Outcome
    from penstock.client.status import StatusClient
    from penstock.operations.cluster import ClusterDescription, PartitionMove

POLL_SECONDS: Final = 0.5
"""Between two checks of --watch."""
PLAN_COLUMNS: Final = ("topic", "partition", "now", "then", "change")
UNDONE: Final = "Nothing was moved"
UNELECTED: Final = "No leader was elected"
_NAMED_MAX: Final = 3
"""How many partitions are named where the same applies to many."""
_SECONDS: Final = re.compile(r"\d+ s\b")


def move(
    cluster: "Cluster",
    places: list[str],
    to: str | None,
    count: int | None,
    output: Format,
    *,
    yes: bool,
    dry_run: bool,
    watch: bool,
) -> bool:
    """Show the plan, ask, and start the moves; whether any was started."""
    from penstock.client.moves import Moves

    planned = _planned(cluster, places, to, count)
    changes = [each for each in planned if each.is_change]
    if output is Format.TABLE:
        print_table([each.row() for each in planned], PLAN_COLUMNS)
    if dry_run or not changes:
        _emit_plan(planned, {}, output, "planned")
        note(_why_nothing(changes, "move"))
        return False
    moves = _count(len(changes), "partition")
    ask_about_plan(f"Move {moves}?", UNDONE, f"move {moves}", yes=yes)
    done = Moves(cluster).alter({(each.topic, each.partition): each.then for each in changes})
    _emit_plan(planned, done, output, "begun")
    begun = sum(error is None for error in done.values())
    if begun:
        hint = "" if watch else '; see the progress with "penstock cluster reassign --list --watch"'
        note(f"Started {_count(begun, 'move')}{hint}")
    fail_on(done)
    return True


def _planned(cluster: "Cluster", places: list[str], to: str | None, count: int | None) -> list[PlannedPartition]:
    nodes = None if to is None else parse_nodes(to, "--to")
    info = cluster.describe(None)
    places, why = with_linked(info, places)
    partitions = chosen(info, places)
    status = _status(cluster, UNDONE)
    if status is not None and status.is_alone and (count or len(nodes or ())) > 1:
        raise Failure(f"This broker runs alone, so no other node can have a replica. {UNDONE}.")
    draining = _draining(status)
    if why is not None:
        note(why)
    if nodes is not None:
        planned = plan_to(partitions, nodes, places)
        check_plan(info, planned, draining)
        return planned
    assert count is not None
    if status is None:
        note("No node answers over HTTP, so nodes that are being drained are not taken into account")
    return plan_count(info, partitions, count, draining)


def _status(cluster: "Cluster", undone: str) -> "ClusterDescription | None":
    """The status of the cluster; None if no node answers. A failure if etcd is unavailable."""
    from penstock.client.errors import ClientError

    try:
        from penstock.client.discovery import http_addresses
        from penstock.client.status import StatusClient

        with StatusClient(http_addresses(cluster), timeout_ms=cluster.timeout_ms, security=cluster.security) as client:
            status = client.cluster()
    except ClientError:
        return None
    require_etcd(status, undone)
    return status


def _draining(status: "ClusterDescription | None") -> frozenset[int]:
    return frozenset() if status is None else frozenset(node.node for node in status.nodes if node.is_draining)


def require_etcd(status: "ClusterDescription", undone: str) -> None:
    """Fail if etcd is unavailable: the status is outdated then, and nothing can be changed."""
    if status.metadata.is_reachable:
        return
    why = status.metadata.error or "etcd does not answer"
    # Some sentences begin with its name already.
    if not why.startswith("etcd"):
        why = f"etcd {why.removeprefix('it ')}" if why.startswith("it ") else f"etcd: {why}"
    raise Failure(
        f"{why.rstrip('.')}. Without etcd nothing can be changed, and the status that node {status.node} has may be outdated. Restore etcd, and try again. {undone}."
    )


def _why_nothing(changes: Sequence[PlannedPartition], verb: str) -> str:
    if not changes:
        return f"Nothing to {verb}: all replicas are where they should be"
    return f"{UNDONE}; run it without --dry-run to do it"


def _emit_plan(planned: Iterable[PlannedPartition], done: "Outcome", output: Format, word: str) -> None:
    """For programs: the plan with the result of each part. People have seen the plan."""
    if output is Format.TABLE:
        return
    rows: list[Row] = [
        {**each.row(), **result_of(done.get((each.topic, each.partition)), word if each.is_change else "stays")}
        for each in planned
    ]
    emit(rows, PLAN_COLUMNS, output)


def cancel(cluster: "Cluster", places: list[str], output: Format, *, yes: bool, dry_run: bool) -> None:
    """Cancel moves in progress."""
    from penstock.client.errors import NO_REASSIGNMENT_IN_PROGRESS
    from penstock.client.moves import Moves

    moves = Moves(cluster)
    named, why = with_linked(cluster.describe(None), places) if places else ([], None)
    if why is not None:
        note(why)
    wanted = {parse_partition(text) for text in named}
    found = [each for each in moves.in_progress() if _is_wanted((each.topic, each.partition), wanted)]
    done: Outcome = {}
    if found and not dry_run:
        names = names_of((each.topic, each.partition) for each in found)
        question = f"Cancel the moves of {names}?"
        ask_about_plan(question, "Nothing was cancelled", f"cancel the moves of {names}", yes=yes)
        results = moves.alter(dict.fromkeys((each.topic, each.partition) for each in found))
        # A move that has finished in the meantime needs nothing.
        done = {
            at: error for at, error in results.items() if error is None or error.code != NO_REASSIGNMENT_IN_PROGRESS
        }
    columns = ["topic", "partition", "replicas", "adding", "removing"]
    rows: list[Row] = []
    for each in found:
        place = (each.topic, each.partition)
        word = "planned" if dry_run else "taken back" if place in done else "over already"
        rows.append({**picked(each, *columns), **result_of(done.get(place), word)})
    emit(rows, [*columns, "result"], output, nothing="Nothing to cancel: no such partition is being moved")
    if found:
        count = _count(sum(error is None for error in done.values()), "move")
        note("Nothing was cancelled; run it without --dry-run to do it" if dry_run else f"Cancelled {count}")
    fail_on(done)


def show(cluster: "Cluster", places: list[str], output: Format, *, watch: bool) -> None:
    """Show moves in progress."""
    wanted = {parse_partition(text) for text in places}
    found = [each for each in _moves(cluster) if _is_wanted((each.topic, each.partition), wanted)]
    emit([move_row(each) for each in found], MOVE_COLUMNS, output, nothing="No partition is being moved")
    if watch and found:
        follow(cluster)


def _is_wanted(place: tuple[str, int], wanted: set[tuple[str, int | None]]) -> bool:
    return not wanted or (place[0], None) in wanted or place in wanted


def _moves(cluster: "Cluster") -> "list[PartitionMove]":
    """All moves, with their progress where their leaders answer."""
    from penstock.client.errors import ClientError
    from penstock.client.moves import Moves

    moves = Moves(cluster).in_progress()
    if not moves:
        return []
    known: dict[tuple[str, int], PartitionMove] = {}
    try:
        from penstock.client.discovery import http_addresses
        from penstock.client.status import StatusClient

        with StatusClient(http_addresses(cluster), timeout_ms=cluster.timeout_ms, security=cluster.security) as client:
            known = {(each.topic, each.partition): each for each in status_with_progress(client).moves}
    except ClientError:
        # Without HTTP their progress is not known.
        pass
    return [known.get((each.topic, each.partition), each) for each in moves]


def follow(cluster: "Cluster") -> None:
    """Show the progress of the moves until there are none."""
    shown: dict[tuple[str, int], str] = {}
    while moves := _moves(cluster):
        for each in moves:
            target = ",".join(str(node) for node in each.replicas if node not in each.removing)
            text = f"{each.topic}/{each.partition} to {target}: " + (
                "in progress" if each.share is None else f"{each.share:.0%} copied"
            )
            if shown.get((each.topic, each.partition)) != text:
                shown[each.topic, each.partition] = text
                note(text)
        sleep(POLL_SECONDS)
    note("All moves are finished")


def status_with_progress(client: "StatusClient") -> "ClusterDescription":
    """The status of the cluster, with the progress of moves that other nodes lead, as far as these answer."""
    from msgspec.structs import replace

    from penstock.client.errors import ClientError
    from penstock.client.status import StatusClient

    found = client.cluster()
    listeners = {node.node: node.listeners.get("http") for node in found.nodes}
    unknown = {move.leader for move in found.moves if move.copied is None}
    known: dict[tuple[str, int], PartitionMove] = {}
    for leader in sorted(node for node in unknown if node is not None):
        address = listeners.get(leader)
        if address is None:
            continue
        try:
            with StatusClient(address, timeout_ms=client.timeout_ms, security=client.security) as other:
                theirs = other.cluster().moves
        except ClientError:
            continue
        known.update({(move.topic, move.partition): move for move in theirs if move.copied is not None})
    moves = [known.get((move.topic, move.partition), move) for move in found.moves]
    return replace(found, moves=moves)


# Elections.

ELECT_COLUMNS: Final = ("topic", "partition", "result")
WELL: Final = "All partitions are led by their preferred replicas"


def elect(cluster: "Cluster", places: list[str] | None, output: Format, *, unclean: bool, yes: bool) -> None:
    """Elect leaders; ask first if records may be lost."""
    from penstock.client.errors import ELECTION_NOT_NEEDED
    from penstock.client.moves import Moves

    partitions = list(chosen(cluster.describe(None), places)) if places else None
    _status(cluster, UNELECTED)
    if unclean:
        what = "these partitions" if places else "every partition that is offline"
        ask_about_plan(
            f"Elect leaders of {what} that may lack acknowledged records? Records that they lack are lost.",
            UNELECTED,
            f"elect leaders of {what} although acknowledged records may be lost",
            yes=yes,
        )
    done = Moves(cluster).elect(partitions, unclean=unclean)
    rest = {place: error for place, error in done.items() if error is None or error.code != ELECTION_NOT_NEEDED}
    rows: list[Row] = [
        {
            "topic": place[0],
            "partition": place[1],
            **result_of(rest.get(place), "elected" if place in rest else "not needed"),
        }
        for place in sorted(done)
    ]
    emit(rows, ELECT_COLUMNS, output, nothing=WELL)
    fail_on(rest)


def show_elections(cluster: "Cluster", places: list[str] | None, output: Format, *, unclean: bool) -> None:
    """What :func:`elect` would do: partitions that the preferred replica could lead but does not, or that have no leader."""
    info = cluster.describe(None)
    found = chosen(info, places or info.topics)
    draining = _draining(_status(cluster, UNELECTED))
    rows: list[Row] = []
    refused = []
    for (topic, index), now in found.items():
        result = forecast(now, info.nodes, draining, unclean=unclean)
        if places or result == "planned":
            row: Row = {"topic": topic, "partition": index, "leader": None if now.leader < 0 else now.leader}
            rows.append({**row, "replicas": list(now.replicas), "result": result})
            refused += [(topic, index)] if result == "refused" else []
    emit(rows, ["topic", "partition", "leader", "replicas", "result"], output, nothing=WELL)
    if refused:
        why = (
            "none of their nodes is up" if unclean else "the preferred node is not up and in sync, or is being drained"
        )
        raise Failure(f"Cannot elect a leader of {names_of(refused)}: {why}. {UNELECTED}.")
    note(f"{UNELECTED}; run it without --dry-run to do it")


def forecast(now: "PartitionInfo", up: Collection[int], draining: Collection[int], *, unclean: bool) -> str:
    """The result that an election would have: ``planned``, ``not needed`` or ``refused``."""
    if unclean:
        return "not needed" if now.leader >= 0 else "planned" if any(node in up for node in now.replicas) else "refused"
    first = now.replicas[0]
    if now.leader == first:
        return "not needed"
    return "planned" if first in now.in_sync and first in up and first not in draining else "refused"


# Results.


def result_of(error: "BrokerRefused | None", word: str) -> Row:
    """The result for one partition: ``word``, or that it was refused and why."""
    return {"result": word if error is None else "refused", "error": None if error is None else str(error)}


def names_of(places: Iterable[tuple[str, int]], count_max: int = 10) -> str:
    """The names of the first, and the number of the others."""
    names = [f"{topic}/{partition}" for topic, partition in places]
    return ", ".join(names[:count_max]) + (f" and {len(names) - count_max} more" if len(names) > count_max else "")


def fail_on(done: "Outcome") -> None:
    """Fail if anything was refused; the same error of many partitions is reported once."""
    alike: dict[tuple[int, str], list[tuple[tuple[str, int], BrokerRefused]]] = {}
    for place, error in done.items():
        if error is not None:
            # The duration in a sentence differs from one to the next, which is no real difference.
            text = _SECONDS.sub("s", error.sentence.replace(f"{place[0]}/{place[1]}", ""))
            alike.setdefault((error.code, text), []).append((place, error))
    said = []
    for group in alike.values():
        (topic, index), error = group[0]
        places = names_of((place for place, _ in group), _NAMED_MAX)
        first = ", for the first" if f"{topic}/{index}" in error.sentence else ""
        whole = f"{len(group)} partitions ({places}){first}: {error.sentence} ({error.name})"
        said.append(str(error) if len(group) == 1 else whole)
    for text in said[:-1]:
        complain(text)
    if said:
        raise Failure(said[-1], Exit.FAILED)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
