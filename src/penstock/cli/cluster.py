"""``penstock cluster``: a local cluster in one command; the status of a cluster; moving replicas, electing leaders, draining nodes."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import cluster_drain, cluster_moves
from penstock.cli.cluster_folder import HTTP_PORT, KAFKA_PORT, NODES_MAX
from penstock.cli.cluster_view import print_status
from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import (
    BOOTSTRAP_DEFAULT,
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Bootstrap,
    DryRun,
    Http,
    Output,
    Timeout,
    YesToPlan,
    complete_topic,
    connected,
    status_client,
)
from penstock.cli.output import Format, emit_one

app = typer.Typer(help="Run a local cluster, and administer any cluster.", no_args_is_help=True)

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC[/PARTITION]...]", help="Names of topics, or single partitions.", autocompletion=complete_topic
    ),
]


@app.command("up")
def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", "-n", min=1, max=NODES_MAX, help="Run this many nodes.  [default: 3, or as many as DIR has]"
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Keep the cluster in this directory.  [default: a temporary one, removed at the end]",
        ),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            "--kafka-port",
            min=0,
            max=65535,
            help=f"Use this Kafka port for node 1, and the next free ones for the others; 0: any.  [default: {KAFKA_PORT}]",
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port",
            min=0,
            max=65535,
            help=f"Use this HTTP port for node 1, and the next free ones for the others; 0: any.  [default: {HTTP_PORT}]",
        ),
    ] = None,
    racks: Annotated[
        str | None,
        typer.Option(
            "--racks",
            metavar="NAME,...",
            help="Assign the nodes to these racks in turn; with a,b node 3 is in a again.  [default: as DIR has, or none]",
        ),
    ] = None,
) -> None:
    """Run etcd and some nodes on this machine, for development.

    Prints the line "penstock ready ..." of each node with its ports. These are chosen once and kept in DIR, as are racks, data and logs. Ctrl-C
    (or SIGTERM) stops the nodes, then etcd. If a node fails, this is reported and the others keep running; SIGUSR1 starts it again. Requires etcd on the PATH.
    """
    from penstock.cli import cluster_up

    named = None if racks is None else [rack.strip() for rack in racks.split(",") if rack.strip()]
    code = cluster_up.up(data_dir, nodes, kafka_port, http_port, named)
    if code:
        raise typer.Exit(code)


@app.command("status")
def status(
    every: Annotated[bool, typer.Option("--all", "-a", help="Show a row for each partition with a problem.")] = False,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Show the status of the cluster.

    Shows nodes, the controller, etcd, problems, and what to do about them. Exits with 1 if a partition is offline or etcd cannot be reached.
    """
    with status_client(http, timeout) as client:
        found = cluster_moves.status_with_progress(client)
    if output is not Format.TABLE:
        emit_one(found, output)
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
            help="Move to these nodes, the preferred leader first; the order rotates over the partitions of a topic.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, max=32, help="Give each partition this many replicas."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel moves in progress.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show moves in progress.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Wait for the moves and show their progress.")] = False,
    dry_run: DryRun = False,
    yes: YesToPlan = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Move replicas of topics or partitions to other nodes.

    Shows the plan, and asks for confirmation; without a terminal it requires --yes. Records are copied at a limited rate, and producers and consumers are not interrupted. A move
    survives a restart of any node.
    """
    ways = sum((to is not None, replication_factor is not None, cancel, listing))
    if ways != 1:
        raise Failure("Use exactly one of --to NODE,..., --replication-factor N, --cancel and --list", Exit.USAGE)
    if not places and not (cancel or listing):
        raise Failure("Name what to move: TOPIC, or TOPIC/PARTITION such as orders/0", Exit.USAGE)
    with connected(bootstrap, timeout) as cluster:
        if listing:
            cluster_moves.show(cluster, places or [], output, watch=watch)
            return
        if cancel:
            cluster_moves.cancel(cluster, places or [], output, yes=yes, dry_run=dry_run)
        else:
            cluster_moves.move(
                cluster,
                places or [],
                to,
                replication_factor,
                output,
                yes=yes,
                dry_run=dry_run,
                watch=watch,
            )
        if watch and not dry_run:
            cluster_moves.follow(cluster)


@app.command("elect")
def elect(
    places: Places = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Elect any replica that is up if no in-sync replica is. Acknowledged records may be lost."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: YesToPlan = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Elect the preferred replicas as leaders.

    Without names, elects leaders of all partitions that another replica leads. The cluster does this by itself every few minutes. --unclean asks for confirmation; without a terminal it requires --yes.
    """
    with connected(bootstrap, timeout) as cluster:
        if dry_run:
            cluster_moves.show_elections(cluster, places, output, unclean=unclean)
        else:
            cluster_moves.elect(cluster, places, output, unclean=unclean, yes=yes)


@app.command("drain")
def drain(
    node: Annotated[int, typer.Argument(metavar="NODE", min=0, help="Number of the node.")],
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Wait until the node is empty and show the progress.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Cancel the drain and use the node again.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Move what other nodes can take, even if some replicas must stay.")
    ] = False,
    dry_run: DryRun = False,
    yes: YesToPlan = False,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Move all leaders and replicas of a node to other nodes.

    Run this before you remove the node. Asks for confirmation; without a terminal it requires --yes. The node continues to serve clients, and gets no new replicas until --undo. Nothing is moved if other nodes cannot
    take everything, unless --partial is given.
    """
    if undo and (watch or partial or dry_run):
        raise Failure("--undo cannot be combined with --watch, --partial or --dry-run", Exit.USAGE)
    with status_client(http, timeout) as client:
        if undo:
            cluster_drain.undo(client, node, output)
        else:
            cluster_drain.drain(client, node, output, yes=yes, dry_run=dry_run, partial=partial, watch=watch)


@app.command("rotate-secret")
def rotate_secret(
    output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT
) -> None:
    """Replace the secret with which nodes authenticate to each other.

    The nodes use the new secret at once, without a restart. The previous secret remains valid until the next rotation: to make a stolen secret worthless, rotate twice.
    """
    with status_client(http, timeout) as client:
        rotated = client.rotate_secret()
    note(
        f"The nodes use secret {rotated.generation}; secret {rotated.generation - 1} remains valid until the next rotation"
    )
    if output is not Format.TABLE:
        emit_one({"generation": rotated.generation}, output)
