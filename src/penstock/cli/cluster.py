"""``penstock cluster``: a local one in one command; how one stands; moving replicas, electing leaders, emptying nodes."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import cluster_drain, cluster_moves
from penstock.cli.cluster_folder import HTTP_PORT, KAFKA_PORT, NODES_MAX
from penstock.cli.cluster_view import print_status
from penstock.cli.failures import Exit, Failure
from penstock.cli.options import (
    BOOTSTRAP_DEFAULT,
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    AsJson,
    Bootstrap,
    DryRun,
    Http,
    Output,
    Timeout,
    YesToPlan,
    cluster_state,
    complete_topic,
    connected,
)
from penstock.cli.output import Format, emit_one

app = typer.Typer(help="Run a local cluster, and look after any.", no_args_is_help=True)

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
        str | None,
        typer.Option(
            "--racks",
            metavar="NAME,...",
            help="Racks, given to the nodes in turn: of a,b node 3 has a again.  [default: what DIR has, or none]",
        ),
    ] = None,
) -> None:
    """Run etcd and some nodes on this machine, for development.

    Prints the line "penstock ready ..." of each node with its own ports. These are chosen once and kept in DIR, as are racks, data and logs. Ctrl-C
    (or SIGTERM) stops the nodes, then etcd. A node that dies is told, and the others go on; SIGUSR1 starts it again. Needs the program etcd on PATH.
    """
    from penstock.cli import cluster_up

    named = None if racks is None else [rack.strip() for rack in racks.split(",") if rack.strip()]
    code = cluster_up.up(data_dir, nodes, kafka_port, http_port, named)
    if code:
        raise typer.Exit(code)


@app.command("status")
def status(
    every: Annotated[
        bool, typer.Option("--all", "-a", help="A row for each partition that is not as it should be.")
    ] = False,
    as_json: AsJson = False,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Say how the cluster stands: nodes, controller, etcd, what is not as it should be, and what to do.

    Exits with 1 when a partition is offline, or etcd cannot be reached.
    """
    import msgspec

    with cluster_state(http, timeout) as state:
        found = cluster_moves.with_progress(state.status(), timeout)
    if as_json or output is not Format.TABLE:
        emit_one(msgspec.to_builtins(found), Format.JSON if as_json else output)
    else:
        print_status(found, every=every)
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
    dry_run: DryRun = False,
    yes: YesToPlan = False,
    as_json: AsJson = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Move replicas of topics or partitions to other nodes.

    Shows the plan, and asks; without a terminal it needs --yes. Records are copied at a bounded rate; producers and consumers go on meanwhile. A move survives
    a restart of any node.
    """
    ways = sum((to is not None, replication_factor is not None, cancel, listing))
    if ways != 1:
        raise Failure("say one of --to NODE,..., --replication-factor N, --cancel and --list", Exit.USAGE)
    if not places and not (cancel or listing):
        raise Failure("name what to move: TOPIC, or TOPIC/PARTITION as orders/0", Exit.USAGE)
    wanted = Format.JSON if as_json else output
    with connected(bootstrap, timeout) as cluster:
        if listing:
            cluster_moves.show(cluster, places or [], wanted, timeout, watch=watch)
            return
        if cancel:
            cluster_moves.cancel(cluster, places or [], wanted, yes=yes, dry_run=dry_run)
        else:
            cluster_moves.move(
                cluster,
                places or [],
                to,
                replication_factor,
                wanted,
                yes=yes,
                dry_run=dry_run,
                watch=watch,
                timeout=timeout,
            )
        if watch and not dry_run:
            cluster_moves.follow(cluster, timeout)


@app.command("elect")
def elect(
    places: Places = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Where nobody in sync is up: any replica that is. Acknowledged records may be lost."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: YesToPlan = False,
    as_json: AsJson = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Have the preferred replicas lead again, now; without names, wherever another one leads.

    The cluster does this by itself every few minutes. --unclean asks first; without a terminal it needs --yes.
    """
    wanted = Format.JSON if as_json else output
    with connected(bootstrap, timeout) as cluster:
        if dry_run:
            cluster_moves.show_elections(cluster, places, wanted, unclean=unclean, timeout=timeout)
        else:
            cluster_moves.elect(cluster, places, wanted, unclean=unclean, yes=yes, timeout=timeout)


@app.command("drain")
def drain(
    node: Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's number.")],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay until it is empty.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Use the node again.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Move what others can take, though some of it has nowhere to go.")
    ] = False,
    dry_run: DryRun = False,
    yes: YesToPlan = False,
    as_json: AsJson = False,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Empty a node before it is taken away: others lead and have what it does.

    Asks first; without a terminal it needs --yes. The node stays up meanwhile, and serves. It gets nothing new until --undo. Nothing is done when others could not
    take all of it, unless --partial says so.
    """
    if undo and (watch or partial or dry_run):
        raise Failure("--undo goes with none of --watch, --partial and --dry-run", Exit.USAGE)
    wanted = Format.JSON if as_json else output
    with cluster_state(http, timeout) as state:
        if undo:
            cluster_drain.undo(state, node, wanted)
        else:
            cluster_drain.drain(state, node, wanted, yes=yes, dry_run=dry_run, partial=partial, watch=watch)
