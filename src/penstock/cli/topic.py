"""``penstock topic``: create, list, describe, count, configure, remove."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failures import Failure, note
from penstock.cli.options import (
    BOOTSTRAP_DEFAULT,
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Bootstrap,
    Http,
    IfExists,
    Output,
    Timeout,
    TopicName,
    TopicNames,
    Yes,
    ask_first,
    connected,
    parse_pairs,
    remove_each,
    status_client,
)
from penstock.cli.output import Format, Row, StreamedTable, as_text, emit, emit_each, emit_one, picked

if TYPE_CHECKING:
    from penstock.client import Cluster, TopicInfo
    from penstock.operations.topics import TopicStats

app = typer.Typer(help="Create, list, describe, configure and remove topics.", no_args_is_help=True)

Configs = Annotated[
    list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="Set a topic config; can be repeated.")
]


@app.command("create")
def create(
    topics: TopicNames,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="Create this many partitions.  [default: set by the broker]"),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", min=1, help="Keep this many replicas.  [default: set by the broker]"
        ),
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check whether the topics can be created, but do not create them.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Create topics."""
    from penstock.client import Admin, BrokerRefused
    from penstock.client.admin import BROKER_DEFAULT
    from penstock.client.errors import TOPIC_ALREADY_EXISTS

    configs = parse_pairs(config, "--config")
    with connected(bootstrap, timeout) as cluster:
        for name in topics:
            try:
                Admin(cluster).create_topic(
                    name,
                    partitions=partitions or BROKER_DEFAULT,
                    replication_factor=replication_factor or BROKER_DEFAULT,
                    configs=configs,
                    validate_only=dry_run,
                )
            except BrokerRefused as error:
                if error.code != TOPIC_ALREADY_EXISTS:
                    raise
                if not if_not_exists:
                    raise Failure(f"{error}; --if-not-exists accepts that") from error
                there = len(Admin(cluster).topic(name).partitions)
                is_other = partitions is not None and partitions != there
                with_others = (
                    f", with {there} partition{'' if there == 1 else 's'}, not {partitions}" if is_other else ""
                )
                note(f"Topic {name} exists already{with_others}")
            else:
                note(f"Topic {name} would be created" if dry_run else f"Created topic {name}")


@app.command("ls")
def ls(
    internal: Annotated[bool, typer.Option("--internal", help="Include the internal topics of the broker.")] = False,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also show records and bytes, for which every partition is queried.")
    ] = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """List topics."""
    from penstock.client import Admin

    columns = ["topic", "partitions", "replicas"]
    with connected(bootstrap, timeout) as cluster:
        topics = [topic for topic in Admin(cluster).topics() if internal or not topic.internal]
        rows = [_summary(topic) for topic in topics]
        if long:
            columns += ["records", "bytes"]
            rows = [{**row, **_totals(cluster, topic)} for row, topic in zip(rows, topics, strict=True)]
    emit(rows, columns, output, nothing='No topics; create one with "penstock topic create NAME"')


@app.command("describe")
def describe(
    topics: TopicNames,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Describe topics.

    Shows partitions, leaders, offsets, sizes, and configs that are not defaults.
    """
    from penstock.client import Admin

    described: list[Row] = []
    with connected(bootstrap, timeout) as cluster:
        admin = Admin(cluster)
        for name in topics:
            info = admin.topic(name)
            configs = {entry.name: entry.value for entry in admin.configs(name) if not entry.is_default}
            described.append({**_summary(info), "configs": configs, "partition_list": _partitions(cluster, info)})
    emit_each(described, output, _print_description)


@app.command("stats")
def stats(
    topic: TopicName, output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT
) -> None:
    """Show statistics of a topic.

    Shows records, bytes and segments of each partition, the rates of the last minute, and the traffic through each gateway
    since the broker started. Uses the HTTP API.
    """
    with status_client(http, timeout) as client:
        found = client.topic(topic)
    if output is Format.TABLE:
        _print_stats(found)
    else:
        emit_one(found, output)


@app.command("config")
def config(
    topic: TopicName,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a config; can be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Reset a config to its default; can be repeated."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            min=1,
            help="Increase the number of partitions to this; keys may then map to other partitions.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include defaults.")] = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Show or change the configs of a topic.

    Applies the changes, if any, then shows the configs that are not defaults (all of them with --all).
    """
    from penstock.client import Admin

    changes: dict[str, str | None] = {**parse_pairs(change, "--set"), **dict.fromkeys(unset or [])}
    with connected(bootstrap, timeout) as cluster:
        admin = Admin(cluster)
        if changes:
            admin.alter_configs(topic, changes)
        if partitions is not None:
            before = len(admin.topic(topic).partitions)
            admin.add_partitions(topic, partitions)
            note(f"Topic {topic} has {partitions} partitions now; it had {before}")
        admin.topic(topic)
        entries = [entry for entry in admin.configs(topic) if everything or not entry.is_default]
    rows: list[Row] = [
        {"name": e.name, "value": None if e.sensitive else e.value, "source": e.source, "read_only": e.read_only}
        for e in entries
    ]
    emit(rows, ["name", "value", "source"], output, nothing="All configs have their defaults; show them with --all")


@app.command("rm")
def rm(
    topics: TopicNames,
    yes: Yes = False,
    if_exists: IfExists = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Remove topics with all their records."""
    from penstock.client import Admin

    ask_first(f"Remove {', '.join(topics)} with all records?", "Nothing was removed", yes=yes)
    with connected(bootstrap, timeout) as cluster:
        remove_each(topics, "topic", Admin(cluster).delete_topic, if_exists=if_exists)


def _summary(topic: "TopicInfo") -> Row:
    replicas = max((len(partition.replicas) for partition in topic.partitions), default=0)
    return {
        "topic": topic.name,
        "id": str(topic.topic_id),
        "partitions": len(topic.partitions),
        "replicas": replicas,
        "internal": topic.internal,
    }


def _totals(cluster: "Cluster", topic: "TopicInfo") -> Row:
    rows = _partitions(cluster, topic)
    return {name: sum(int(str(row[name])) for row in rows) for name in ("records", "bytes")}


def _partitions(cluster: "Cluster", topic: "TopicInfo") -> list[Row]:
    from penstock.client import Admin, watermarks

    places = [(topic.name, partition.index) for partition in topic.partitions]
    marks = watermarks(cluster, places)
    sizes = Admin(cluster).sizes([topic.name])
    return [
        {
            "partition": partition.index,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "in_sync": list(partition.in_sync),
            "first_offset": marks[topic.name, partition.index][0],
            "next_offset": marks[topic.name, partition.index][1],
            # What offsets tell: compaction and transactions leave gaps that nobody counts.
            "records": marks[topic.name, partition.index][1] - marks[topic.name, partition.index][0],
            "bytes": sizes.get((topic.name, partition.index), 0),
        }
        for partition in topic.partitions
    ]


def _print_stats(found: "TopicStats") -> None:
    print(
        f"topic {found.topic}  records {as_text(found.records)}  bytes {as_text(found.size_bytes)}  "
        f"segments {as_text(found.segments)}"
    )
    print(
        f"in {found.records_in_per_second:,.1f} records/s, {found.bytes_in_per_second:,.0f} bytes/s  "
        f"out {found.records_out_per_second:,.1f} records/s, {found.bytes_out_per_second:,.0f} bytes/s"
    )
    columns = ["part", "leader", "first", "next", "records", "bytes", "segments"]
    renamed = {"part": "partition", "first": "start_offset", "next": "end_offset", "bytes": "size_bytes"}
    rows = [picked(each, "leader", "records", "segments", **renamed) for each in found.partitions]
    StreamedTable(columns, numbers=columns).print(rows)
    if found.flows:
        print()
        flows = ["gateway", "records_in", "bytes_in", "records_out", "bytes_out"]
        StreamedTable(flows, numbers=flows[1:]).print([picked(each, *flows) for each in found.flows])
    if found.partitions_unknown:
        note(
            f"The sums lack {found.partitions_unknown} partitions that the broker has not opened yet; try again in a moment"
        )
    failed = [each.partition for each in found.partitions if each.failed]
    if failed:
        note(f"The disk failed for partitions {', '.join(map(str, failed))}, which refuse writes; see the broker's log")


def _print_description(row: Row) -> None:
    partitions, configs = row["partition_list"], row["configs"]
    assert isinstance(partitions, list)
    assert isinstance(configs, dict)
    print(f"topic {row['topic']}  id {row['id']}  partitions {row['partitions']}  replicas {row['replicas']}")
    for name, value in configs.items():
        print(f"  {name} = {value}")
    # Short headings, so that numbers of ten digits still fit 80 columns.
    short = {"partition": "part", "first_offset": "first", "next_offset": "next"}
    columns = ["part", "leader", "replicas", "in_sync", "first", "next", "records", "bytes"]
    lines = StreamedTable(columns, numbers=[column for column in columns if column not in ("replicas", "in_sync")])
    lines.print([{short.get(name, name): value for name, value in each.items()} for each in partitions])
