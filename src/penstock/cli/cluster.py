"""``penstock cluster``: a local one in one command; how one stands; moving replicas, electing leaders, emptying nodes."""

from collections.abc import Iterable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.cluster_folder import HTTP_PORT, KAFKA_PORT, NODES_MAX
from penstock.cli.cluster_plan import Planned, chosen, parse_nodes, parse_place, plan_count, plan_to
from penstock.cli.cluster_view import MOVE_COLUMNS, drain_line, move_row, print_status
from penstock.cli.failures import Exit, Failure, complain, note
from penstock.cli.options import (
    BOOTSTRAP_DEFAULT,
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Bootstrap,
    Output,
    Timeout,
    Yes,
    ask_first,
    complete_topic,
    connected,
)
from penstock.cli.output import Format, emit, emit_one, print_table

if TYPE_CHECKING:
    from penstock.client import Cluster
    from penstock.client.cluster_state import ClusterState, ClusterStatus, PartitionMove
    from penstock.client.moves import Outcome

app = typer.Typer(help="Run a local cluster, and look after any.", no_args_is_help=True)

LOOK_SECONDS = 0.5
"""Between two looks of --watch."""

Https = Annotated[
    str,
    typer.Option(
        "--http",
        envvar="PENSTOCK_HTTP",
        metavar="HOST:PORT[,...]",
        help="HTTP of nodes; the first that answers is asked.",
    ),
]
Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC[/PARTITION]...]", help="Topics, or single partitions.", autocompletion=complete_topic
    ),
]


def mount(root: typer.Typer) -> None:
    """Add the noun."""
    root.add_typer(app, name="cluster")


@app.command("up")
def up(
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, max=NODES_MAX, help="How many.  [default: 3, or what DIR has]")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Where it lies.  [default: a temporary folder, removed at the end]"
        ),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            "--kafka-port",
            min=0,
            max=65535,
            help=f"Of node 1; the others have the next free ones; 0: any.  [default: {KAFKA_PORT}]",
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", min=0, max=65535, help=f"The same for HTTP.  [default: {HTTP_PORT}]"),
    ] = None,
    racks: Annotated[
        str, typer.Option("--racks", metavar="NAME,...", help="Racks, given to the nodes in turn.  [default: none]")
    ] = "",
) -> None:
    """Run etcd and some nodes on this machine, for development.

    Prints the line "penstock ready ..." of each node with its own ports. These are chosen once and kept in DIR, as are data and logs. Ctrl-C
    (or SIGTERM) stops the nodes, then etcd. Needs the program etcd on PATH.
    """
    from penstock.cli import cluster_up

    code = cluster_up.up(data_dir, nodes, kafka_port, http_port, [rack for rack in racks.split(",") if rack])
    if code:
        raise typer.Exit(code)


@app.command("status")
def status(
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: Output = Format.TABLE,
    http: Https = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Say how the cluster stands: nodes, controller, etcd, and what is not as it should be.

    Exits with 1 when a partition is offline, or etcd cannot be reached.
    """
    import msgspec

    with _state(http, timeout) as state:
        found = _with_progress(state.status(), timeout)
    if as_json or output is not Format.TABLE:
        emit_one(msgspec.to_builtins(found), Format.JSON if as_json else output)
    else:
        print_status(found)
    if found.offline_count or not found.metadata.is_reachable:
        raise typer.Exit(Exit.FAILED)


@app.command("reassign")
def reassign(
    places: Places = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="NODE,...",
            help="These nodes, the preferred leader first; turned over a topic's partitions.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, max=32, help="So many replicas each.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take moves back that are under way.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show moves that are under way.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay until the moves are over.")] = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Move replicas of topics or partitions to other nodes.

    The plan is shown first. Records are copied at a bounded rate; producers and consumers go on meanwhile. A move survives a restart of any node.
    """
    ways = sum((to is not None, replication_factor is not None, cancel, listing))
    if ways != 1:
        raise Failure("say one of --to NODE,..., --replication-factor N, --cancel and --list", Exit.USAGE)
    if not places and not (cancel or listing):
        raise Failure("name what to move: TOPIC, or TOPIC/PARTITION as orders/0", Exit.USAGE)
    with connected(bootstrap, timeout) as cluster:
        if listing:
            _list(cluster, places or [], output, timeout, watch=watch)
            return
        if cancel:
            _cancel(cluster, places or [], yes=yes)
        else:
            _move(cluster, places or [], to, replication_factor, yes=yes)
        if watch:
            _watch_moves(cluster, timeout)


@app.command("elect")
def elect(
    places: Places = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Where nobody in sync is up: any replica that is. Acknowledged records may be lost."
        ),
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Have the preferred replicas lead again, now; without names, wherever another one leads.

    The cluster does this by itself every few minutes.
    """
    from penstock.client.errors import ELECTION_NOT_NEEDED
    from penstock.client.moves import Moves

    with connected(bootstrap, timeout) as cluster:
        partitions = list(chosen(cluster.describe(None), places)) if places else None
        if unclean:
            what = "these partitions" if places else "every partition that is offline"
            ask_first(
                f"Elect leaders of {what} that may lack acknowledged records? What they lack is lost.",
                "nothing was elected",
                yes=yes,
            )
        done = Moves(cluster).elect(partitions, unclean=unclean)
    needless = [place for place, error in done.items() if error is not None and error.code == ELECTION_NOT_NEEDED]
    rest = {place: error for place, error in done.items() if place not in needless}
    elected = [place for place, error in rest.items() if error is None]
    for topic, partition in elected:
        note(f"elected a leader of {topic}/{partition}")
    if not rest:
        note("every partition is led as it should be" if not needless else f"nothing to do: {_names(needless)}")
    _fail_on(rest)


@app.command("drain")
def drain(
    node: Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's number.")],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay until it is empty.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Use the node again.")] = False,
    yes: Yes = False,
    http: Https = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Empty a node before it is taken away: others lead and have what it does.

    The node stays up meanwhile, and serves. It gets nothing new until --undo.
    """
    with _state(http, timeout) as state:
        if undo:
            state.undrain(node)
            note(f"node {node} is used again; what has moved away comes back only by penstock cluster reassign")
            return
        found = next((each for each in state.status().nodes if each.node == node), None)
        if found is not None and not found.is_draining:
            ask_first(
                f"Move {found.leads} leaders and {found.replicas} replicas from node {node} to other nodes?",
                "nothing was moved",
                yes=yes,
            )
        note(drain_line(state.drain(node)))
        if watch:
            _watch_drain(state, node)


# Moves.


def _move(cluster: "Cluster", places: list[str], to: str | None, count: int | None, *, yes: bool) -> None:
    from penstock.client.moves import Moves

    info = cluster.describe(None)
    partitions = chosen(info, places)
    if to is not None:
        planned = plan_to(partitions, parse_nodes(to, "--to"), places)
    else:
        assert count is not None
        planned = plan_count(info, partitions, count)
    print_table([each.row() for each in planned], ["topic", "partition", "now", "then", "change"])
    changes = [each for each in planned if each.is_change]
    if not changes:
        note("nothing to move: every partition is where it should be")
        return
    _ask_about(changes, yes=yes)
    done = Moves(cluster).alter({(each.topic, each.partition): each.then for each in changes})
    begun = sum(error is None for error in done.values())
    if begun:
        note(f'{begun} moves begun; "penstock cluster reassign --list --watch" shows how far they are')
    _fail_on(done)


def _ask_about(changes: Iterable[Planned], *, yes: bool) -> None:
    count = len(list(changes))
    ask_first(f"Move {count} partition{'s' if count > 1 else ''}?", "nothing was moved", yes=yes)


def _cancel(cluster: "Cluster", places: list[str], *, yes: bool) -> None:
    from penstock.client.errors import NO_REASSIGNMENT_IN_PROGRESS
    from penstock.client.moves import Moves

    moves = Moves(cluster)
    wanted = {parse_place(text) for text in places}
    found = [
        move
        for move in moves.under_way()
        if not wanted or (move.topic, None) in wanted or (move.topic, move.partition) in wanted
    ]
    if not found:
        note("nothing to take back: no such partition is being moved")
        return
    names = _names([(move.topic, move.partition) for move in found])
    ask_first(f"Take back the moves of {names}?", "nothing was taken back", yes=yes)
    done = moves.alter(dict.fromkeys((move.topic, move.partition) for move in found))
    # One that was over in the meantime needs nothing.
    rest = {at: error for at, error in done.items() if error is None or error.code != NO_REASSIGNMENT_IN_PROGRESS}
    note(f"took back {sum(error is None for error in rest.values())} moves")
    _fail_on(rest)


def _list(cluster: "Cluster", places: list[str], output: Format, timeout: float, *, watch: bool) -> None:
    wanted = {parse_place(text) for text in places}

    def is_wanted(move: "PartitionMove") -> bool:
        return not wanted or (move.topic, None) in wanted or (move.topic, move.partition) in wanted

    found = [move for move in _moves(cluster, timeout) if is_wanted(move)]
    emit([move_row(move) for move in found], MOVE_COLUMNS, output, nothing="no partition is being moved")
    if watch and found:
        _watch_moves(cluster, timeout)


def _moves(cluster: "Cluster", timeout: float) -> "list[PartitionMove]":
    """All moves, with how far they are where their leaders can be asked."""
    from penstock.client.cluster_state import PartitionMove
    from penstock.client.errors import ClientError
    from penstock.client.moves import Moves

    moves = Moves(cluster).under_way()
    if not moves:
        return []
    known: dict[tuple[str, int], PartitionMove] = {}
    try:
        from penstock.client.discovery import http_address

        with _state(str(http_address(cluster)), timeout) as state:
            known = {(move.topic, move.partition): move for move in _with_progress(state.status(), timeout).moves}
    except ClientError:
        # Without HTTP it is not known how far they are.
        pass
    return [
        known.get((move.topic, move.partition))
        or PartitionMove(
            move.topic,
            move.partition,
            None,
            list(move.replicas),
            list(move.adding),
            list(move.removing),
            [],
            None,
            None,
            None,
        )
        for move in moves
    ]


def _watch_moves(cluster: "Cluster", timeout: float) -> None:
    told: dict[tuple[str, int], str] = {}
    while moves := _moves(cluster, timeout):
        for move in moves:
            target = ",".join(str(node) for node in move.replicas if node not in move.removing)
            text = f"{move.topic}/{move.partition} to {target}: " + (
                "under way" if move.share is None else f"{move.share:.0%} copied"
            )
            if told.get((move.topic, move.partition)) != text:
                told[move.topic, move.partition] = text
                note(text)
        sleep(LOOK_SECONDS)
    note("no partition is being moved any more")


def _watch_drain(state: "ClusterState", node: int) -> None:
    told = ""
    while True:
        found = next((each for each in state.status().drains if each.node == node), None)
        if found is None:
            raise Failure(f"the drain of node {node} was undone by somebody else")
        text = drain_line(found)
        if text != told:
            note(text)
            told = text
        if found.is_done:
            return
        if found.stuck and found.stuck == found.replicas:
            # What nobody else can take it also goes on leading.
            raise Failure(
                f"node {node} cannot be emptied further: start another node, or lower the replication factor of what is left "
                "with penstock cluster reassign"
            )
        sleep(LOOK_SECONDS)


# Asking.


def _state(http: str, timeout: float) -> "ClusterState":
    """The first of these nodes that answers."""
    from penstock.client.cluster_state import ClusterState
    from penstock.client.errors import CannotConnect

    addresses = [part.strip() for part in http.split(",") if part.strip()]
    if not addresses:
        raise Failure("--http: write HOST:PORT, for example 127.0.0.1:8080", Exit.USAGE)
    first: CannotConnect | None = None
    for address in addresses:
        try:
            state = ClusterState(address, timeout_ms=int(timeout * 1000))
        except ValueError as error:
            raise Failure(f"--http: {error}", Exit.USAGE) from error
        try:
            state.connect()
        except CannotConnect as error:
            first = first or error
            continue
        return state
    assert first is not None
    raise first


def _with_progress(found: "ClusterStatus", timeout: float) -> "ClusterStatus":
    """The same, with how far moves are that other nodes lead: they are asked, as far as they answer."""
    from msgspec.structs import replace

    from penstock.client.errors import ClientError

    listeners = {node.node: node.listeners.get("http") for node in found.nodes}
    unknown = {move.leader for move in found.moves if move.copied is None}
    known: dict[tuple[str, int], PartitionMove] = {}
    for leader in sorted(node for node in unknown if node is not None):
        address = listeners.get(leader)
        if address is None:
            continue
        try:
            with _state(address, timeout) as state:
                theirs = state.status().moves
        except ClientError:
            continue
        known.update({(move.topic, move.partition): move for move in theirs if move.copied is not None})
    moves = [known.get((move.topic, move.partition), move) for move in found.moves]
    return replace(found, moves=moves)


def _names(places: Iterable[tuple[str, int]]) -> str:
    names = [f"{topic}/{partition}" for topic, partition in places]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _fail_on(done: "Outcome") -> None:
    """Say what was refused; the exit code is 1 then."""
    refused = [error for error in done.values() if error is not None]
    for error in refused:
        complain(str(error))
    if refused:
        raise typer.Exit(Exit.FAILED)
