"""``penstock group``: lists, describes, resets and removes consumer groups."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import (
    BOOTSTRAP_DEFAULT,
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Bootstrap,
    GroupName,
    GroupNames,
    Http,
    IfExists,
    Output,
    Timeout,
    connected,
    remove_each,
    status_client,
)
from penstock.cli.output import Format, Row, emit, emit_each, emit_one, picked, print_table
from penstock.cli.places import ReadFrom, parse_moment, partitions_there, resolve

if TYPE_CHECKING:
    from penstock.client import Cluster, TopicPartition
    from penstock.operations.groups import GroupStatus

app = typer.Typer(help="List, describe, reset and remove consumer groups.", no_args_is_help=True)

_HAS_MEMBERS = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "NON_EMPTY_GROUP", "REBALANCE_IN_PROGRESS")


@app.command("ls")
def ls(
    output: Output = Format.TABLE, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT
) -> None:
    """List groups."""
    from penstock.client import GroupAdmin

    with connected(bootstrap, timeout) as cluster:
        rows: list[Row] = [
            {"group": g.group_id, "state": g.state or None, "protocol": g.protocol_type or None, "type": g.kind or None}
            for g in GroupAdmin(cluster).groups()
        ]
    emit(rows, ["group", "state", "protocol", "type"], output, nothing="No groups")


@app.command("describe")
def describe(
    groups: GroupNames,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Describe groups.

    Shows their state, members, committed offsets and lag.
    """
    with connected(bootstrap, timeout) as cluster:
        described = [_describe(cluster, name) for name in groups]
    emit_each(described, output, _print_description)


@app.command("status")
def status(
    group: GroupName, output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT
) -> None:
    """Show how far behind a group is.

    Shows the lag in records and as the age of the next record, the members, and the queues of the group. Uses the HTTP API.
    """
    with status_client(http, timeout) as client:
        found = client.group(group)
    if output is Format.TABLE:
        _print_status(found)
    else:
        emit_one(found, output)


@app.command("reset")
def reset(
    group: GroupName,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:P,P]",
            help="Reset only these.  [default: all partitions with committed offsets]",
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the end, after the last record.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="Reset to this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="ISO|MS", help="Reset to the first record at or after this time."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Move by this many records; back if negative.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Apply the change instead of only showing it.")] = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Set the committed offsets of a group.

    Shows the change, and applies it only with --execute. The group must not have any members.
    """
    from penstock.client import BrokerRefused, GroupAdmin

    chosen = [to_earliest, to_latest, to_offset is not None, to_datetime is not None, shift_by is not None]
    if sum(chosen) != 1:
        raise Failure(
            "Use exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by", Exit.USAGE
        )
    with connected(bootstrap, timeout) as cluster:
        admin = GroupAdmin(cluster)
        committed = {place: found.offset for place, found in admin.offsets(group).items()}
        places = _chosen_places(cluster, topic, committed)
        if not places:
            # Raises the right error if there is no such group at all.
            admin.describe(group)
            raise Failure(f"Group {group!r} has no committed offsets; name topics with --topic", Exit.NOT_FOUND)
        if shift_by is None:
            moment_ms = None if to_datetime is None else parse_moment(to_datetime, "--to-datetime")
            targets = resolve(cluster, places, ReadFrom(to_latest, to_offset, moment_ms), nearest=True)
        else:
            targets = _shifted(cluster, places, committed, shift_by)
        if execute:
            try:
                admin.commit(group, targets)
            except BrokerRefused as error:
                if error.name not in _HAS_MEMBERS:
                    raise
                raise Failure(f"Group {group!r} has members; stop them, then reset it ({error.name})") from error
    rows: list[Row] = [
        {
            "topic": place[0],
            "partition": place[1],
            "committed": committed.get(place),
            "new_offset": targets[place],
            "change": targets[place] - committed[place] if place in committed else None,
            "applied": execute,
        }
        for place in sorted(places)
    ]
    emit(rows, ["topic", "partition", "committed", "new_offset", "change"], output)
    note("Offsets are set" if execute else "Nothing was changed; add --execute to apply it")


@app.command("rm")
def rm(
    groups: GroupNames,
    if_exists: IfExists = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Remove groups, with their committed offsets.

    A group that has members cannot be removed.
    """
    from penstock.client import GroupAdmin

    with connected(bootstrap, timeout) as cluster:
        remove_each(groups, "group", GroupAdmin(cluster).delete, if_exists=if_exists)


def _print_description(row: Row) -> None:
    members, partitions = row["members"], row["partitions"]
    assert isinstance(members, list)
    assert isinstance(partitions, list)
    print(f"group {row['group']}  state {row['state']}  members {len(members)}  assignor {row['assignor'] or '-'}")
    _print_partitions(partitions, ["topic", "partition", "committed", "next_offset", "lag", "member", "host"])


def _print_partitions(partitions: list[Row], columns: list[str]) -> None:
    if partitions:
        print_table(partitions, columns)
    else:
        note("The group has no committed offsets and no partitions")


def _print_status(found: "GroupStatus") -> None:
    behind = "" if found.lag_ms is None else f" ({found.lag_ms / 1000:,.1f} s)"
    print(f"group {found.group}  state {found.state}  members {len(found.members)}  lag {found.lag:,}{behind}")
    renamed = {"part": "partition", "next": "end_offset", "member": "member_id"}
    partitions: list[Row] = [
        {
            **picked(each, "topic", "committed", "lag", **renamed),
            "lag_s": None if each.lag_ms is None else each.lag_ms / 1000,
        }
        for each in found.partitions
    ]
    _print_partitions(partitions, ["topic", "part", "committed", "next", "lag", "lag_s", "member"])
    if found.queues:
        states = ["waiting", "ready", "moving"]
        queues: list[Row] = [
            {
                **picked(queue, "lag", queue="topic", leased="in_flight"),
                **{name: sum(getattr(each, name) for each in queue.partitions) for name in states},
                "owners": [owner.owner for owner in queue.owners],
            }
            for queue in found.queues
        ]
        print_table(queues, ["queue", "lag", "leased", *states, "owners"])


def _describe(cluster: "Cluster", group: str) -> Row:
    from penstock.client import GroupAdmin, watermarks

    admin = GroupAdmin(cluster)
    found = admin.describe(group)
    committed = admin.offsets(group)
    owners = {place: member for member in found.members for place in member.partitions}
    # A deleted topic still has offsets for a while, but no end to compare them with.
    topics = cluster.describe(sorted({topic for topic, _ in {*committed, *owners}})).topics
    places = sorted({*committed, *owners})
    ends = watermarks(cluster, [place for place in places if place[0] in topics])
    partitions: list[Row] = []
    for place in places:
        offset = committed[place].offset if place in committed else None
        end = ends[place][1] if place in ends else None
        first = ends[place][0] if place in ends else 0
        owner = owners.get(place)
        partitions.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed": offset,
                "next_offset": end,
                "lag": None if end is None else max(0, end - (first if offset is None else offset)),
                "metadata": committed[place].metadata if place in committed else None,
                "member": owner.member_id if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.client_host if owner else None,
            }
        )
    members: list[Row] = [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "partitions": [f"{topic}/{partition}" for topic, partition in member.partitions],
        }
        for member in found.members
    ]
    return {
        "group": found.group_id,
        "state": found.state,
        "protocol": found.protocol_type,
        "assignor": found.assignor,
        "members": members,
        "partitions": partitions,
    }


def _chosen_places(
    cluster: "Cluster", texts: list[str] | None, committed: Mapping["TopicPartition", int]
) -> list["TopicPartition"]:
    if not texts:
        return sorted(committed)
    places: list[TopicPartition] = []
    for text in texts:
        name, colon, numbers = text.rpartition(":")
        if not colon:
            name, numbers = text, ""
        info = cluster.topic(name)
        if not numbers:
            places += [(name, partition.index) for partition in info.partitions]
            continue
        for number in numbers.split(","):
            if not number.strip().isdigit():
                raise Failure(f"--topic {text!r}: write TOPIC, or TOPIC:0,1 for some partitions", Exit.USAGE)
            known = [partition.index for partition in info.partitions]
            if int(number) not in known:
                there = partitions_there(known)
                raise Failure(f"Topic {name!r} has no partition {int(number)}: it {there}", Exit.NOT_FOUND)
            places.append((name, int(number)))
    return sorted(set(places))


def _shifted(
    cluster: "Cluster", places: list["TopicPartition"], committed: Mapping["TopicPartition", int], count: int
) -> dict["TopicPartition", int]:
    """The offsets moved by this many records, limited to those that each partition has."""
    from penstock.client import watermarks

    bounds = watermarks(cluster, places)
    wanted = {place: committed.get(place, first) + count for place, (first, _) in bounds.items()}
    return {place: min(max(wanted[place], first), end) for place, (first, end) in bounds.items()}
