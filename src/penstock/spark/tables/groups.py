"""Table ``groups``: the position and the lag of each group in each partition that it reads.

It uses the Kafka protocol, so it shows the groups of any broker. For a group that works a queue, ``committed`` is the floor: all records
below it are finished. The single records are in the table ``queue``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penstock.client import BrokerRefused, GroupAdmin, watermarks
from penstock.client.errors import GROUP_ID_NOT_FOUND
from penstock.spark.schema import columns_of
from penstock.spark.tables.options import SELECTS_TOPICS
from penstock.spark.tables.table import Row, SnapshotTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType

    from penstock.client import CommittedOffset, GroupDescription, TopicInfo, TopicPartition
    from penstock.spark.tables.options import TableOptions


class GroupsTable(SnapshotTable):
    """A row for each partition of a group. A group without partitions has one row."""

    name: ClassVar[str] = "groups"
    takes: ClassVar[frozenset[str]] = SELECTS_TOPICS | {"group"}
    columns: ClassVar[StructType] = columns_of(
        "group string not null, state string not null, members integer not null, topic string, partition integer,"
        "committed long, start long, end long, lag long, member string, client_id string, host string"
    )

    def rows(self, options: TableOptions, wanted: frozenset[str]) -> Sequence[Row]:
        """All groups, or those in the option ``group``; of all topics, or of those that the query selects."""
        cluster = options.cluster()
        admin = GroupAdmin(cluster)
        found: list[tuple[GroupDescription, dict[TopicPartition, CommittedOffset]]] = []
        for group in options.names("group") or [listed.group_id for listed in admin.groups()]:
            try:
                found.append((admin.describe(group), admin.offsets(group)))
            except BrokerRefused as refused:
                # It was deleted since it was listed, or never existed: it has no position.
                if refused.code != GROUP_ID_NOT_FOUND:
                    raise
        places = {place for described, committed in found for place in _places(described, committed)}
        there = cluster.describe(sorted({topic for topic, _ in places})).topics if places else {}
        chosen = set(options.selects(sorted({topic for topic, _ in places})))
        ends: dict[TopicPartition, tuple[int, int]] = {}
        if wanted & {"start", "end", "lag"}:
            ends = watermarks(
                cluster, sorted(place for place in places if place[0] in chosen and _exists(there, place))
            )
        rows: list[Row] = []
        for described, committed in found:
            rows += _rows_of(described, committed, chosen, ends)
        return rows


def _exists(topics: Mapping[str, TopicInfo], place: TopicPartition) -> bool:
    info = topics.get(place[0])
    return info is not None and any(partition.index == place[1] for partition in info.partitions)


def _places(described: GroupDescription, committed: dict[TopicPartition, CommittedOffset]) -> set[TopicPartition]:
    return {*committed, *(place for member in described.members for place in member.partitions)}


def _rows_of(
    described: GroupDescription,
    committed: dict[TopicPartition, CommittedOffset],
    chosen: set[str],
    ends: dict[TopicPartition, tuple[int, int]],
) -> list[Row]:
    group: Row = {"group": described.group_id, "state": described.state, "members": len(described.members)}
    readers = {place: member for member in described.members for place in member.partitions}
    places = sorted(_places(described, committed))
    rows: list[Row] = []
    for place in places:
        if place[0] not in chosen:
            continue
        start, end = ends.get(place, (None, None))
        offset = committed[place].offset if place in committed else None
        reader = readers.get(place)
        rows.append(
            {
                **group,
                "topic": place[0],
                "partition": place[1],
                "committed": offset,
                "start": start,
                "end": end,
                "lag": None if start is None or end is None else max(0, end - max(start, offset or 0)),
                "member": reader.member_id if reader else None,
                "client_id": reader.client_id if reader else None,
                "host": reader.client_host if reader else None,
            }
        )
    if not places:
        rows.append({**dict.fromkeys(GroupsTable.columns.names), **group})
    return rows
