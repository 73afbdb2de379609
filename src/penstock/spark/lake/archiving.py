"""Before an archive runs: where it goes on, what its group says, and a topic's tier.

The lake is the truth. The group is set to what the lake has, also backwards, before anything trusts it; a checkpoint that is lost is made up for by
starting where the lake ends; a checkpoint of another lake is refused, since what it skips would be in neither.

In the archive's checkpoint folder lies ``archive.json``: where the lake is, for whoever gives another place later, or moves the lake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.client.admin import Admin
from penstock.client.group_admin import GroupAdmin
from penstock.client.offsets import watermarks
from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.lake.layout import records_layout
from penstock.spark.lake.store import Store
from penstock.spark.lake.tier import FORMAT, GROUP, LOCATION, read_tier

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster, TopicPartition
    from penstock.spark.lake.lake import Lake

EARLIEST: Final = -2
"""In the source's startingOffsets."""
LOCAL_RETENTION: Final = "local.retention.ms"
_REMEMBERED: Final = "archive.json"


@dataclass(frozen=True, slots=True)
class Start:
    """Where an archive without a checkpoint begins: the source's ``startingOffsets``, and how many records it is behind."""

    offsets: str
    behind: int


def prepare(cluster: Cluster, lake: Lake, topics: Sequence[str], group: str) -> Start:
    """Make the lake ready, and say with the group what it has."""
    lake.prepare(records_layout())
    lake.recover(topics, int(datetime.now(UTC).timestamp() * 1000))
    starts: dict[str, dict[str, int]] = {}
    archived: dict[TopicPartition, int] = {}
    ids: dict[str, UUID] = {}
    behind = 0
    for topic in topics:
        cluster.forget(topic)
        found = cluster.topic(topic)
        if found.topic_id.int:
            # Brokers older than Kafka 2.8 have no ids.
            lake.claim(topic, str(found.topic_id))
            ids[topic] = found.topic_id
        ends = lake.ends(topic)
        places = [(topic, part.index) for part in found.partitions]
        for place, (first, last) in watermarks(cluster, places).items():
            end = ends.get(place[1])
            if end is not None and end > last:
                raise LakeError(
                    f"{lake.location} has {topic}/{place[1]} up to offset {end}, but the topic ends at {last}: it was deleted and created again, or this is another cluster. Archive it to another place"
                )
            archived[place] = end or 0
            starts.setdefault(topic, {})[str(place[1])] = EARLIEST if end is None else end
            behind += last - max(first, end or 0)
    _say(cluster, group, archived, ids if len(ids) == len(topics) else None)
    return Start(json.dumps(starts), behind)


def remember(lake: Lake, checkpoint: str) -> None:
    """Say in the checkpoint which lake it is of."""
    # Spark knows more file systems than Arrow does.
    with suppress(LakeError, OSError):
        Store(checkpoint).write_atomic(_REMEMBERED, json.dumps({"lake": lake.location}).encode())


def check_checkpoint(lake: Lake, checkpoint: str) -> None:
    """Refuse the folder of a query that wrote elsewhere: what it has done already is not in this lake."""
    try:
        store = Store(checkpoint)
        metadata = store.read("query/metadata")
        committed = bool(store.files("query/commits"))
        remembered = store.read(_REMEMBERED)
    except (LakeError, OSError):
        return
    if metadata is None or not committed or lake.knows(str(json.loads(metadata)["id"])):
        return
    before = str(json.loads(remembered)["lake"]) if remembered is not None else "another lake"
    if before != lake.location:
        raise LakeError(
            f"The checkpoint {checkpoint} belongs to an archive in {before}, and {lake.location} would lack its records. Archive to that lake, or use another --name: the archive then starts where this lake ends"
        )
    moved = "" if lake.format is LakeFormat.ICEBERG else ", or specify its new place with --to"
    raise LakeError(
        f"What this archive wrote to {before} no longer exists, but its checkpoint {checkpoint} requires it: the lake was moved, renamed or emptied. Move it back{moved}; to start over with the records that the broker still has, remove the checkpoint"
    )


def check_tier(cluster: Cluster, lake: Lake, topics: Sequence[str], group: str, *, sets_tier: bool) -> None:
    """Refuse topics whose tier is another lake: older records are only there, and its group speaks of no other."""
    for topic in topics:
        tier = read_tier(cluster, topic)
        if tier is None or (tier.location, tier.format) == (lake.location, lake.format):
            continue
        if sets_tier:
            raise LakeError(
                f"The tier of {topic} is {tier.location} ({tier.format}), and its older records may exist only there: archive to that lake, or first delete "
                f"the topic's config {LOCATION}"
            )
        if tier.group == group:
            raise LakeError(
                f"The tier of {topic} is {tier.location} ({tier.format}), and the group {group} tracks its records: the broker would delete records that only this lake has. Use another --name for this archive"
            )


def set_tier(cluster: Cluster, lake: Lake, topics: Sequence[str], group: str, local_retention_ms: int | None) -> None:
    """From now on the broker drops what this group says is archived. The group must have been told before: :func:`prepare`."""
    changes: dict[str, str | None] = {LOCATION: lake.location, FORMAT: lake.format.value, GROUP: group}
    if local_retention_ms is not None:
        changes[LOCAL_RETENTION] = str(local_retention_ms)
    for topic in topics:
        Admin(cluster).alter_configs(topic, changes)


def _say(
    cluster: Cluster, group: str, archived: Mapping[TopicPartition, int], topic_ids: Mapping[str, UUID] | None
) -> None:
    admin = GroupAdmin(cluster)
    known = admin.offsets(group, archived)
    wrong = {place: end for place, end in archived.items() if place not in known or known[place].offset != end}
    if wrong:
        admin.commit(group, wrong, topic_ids=topic_ids)
