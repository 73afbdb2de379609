"""An archive: where it starts, the committed offsets of its group, and the tier of a topic.

The lake is the source of truth. Before an archive runs, its group is set to what the lake has, also backwards. If the checkpoint is lost,
the archive starts where the lake ends. A checkpoint of another lake is refused, because what it skips would be in neither lake.

The committed offsets of the group show what is in the lake, for the lag in the console and for the broker's retention. They are committed
after the lake's own commit and up to what it contains. Spark reports a batch as done too late for this: one batch later, and for the last
batch never.

A topic can be deleted and created again while its archive runs, and then its offsets mean other records. So before a batch is committed,
its topics must still be those in the lake, and the group's offsets are committed with the ids of these topics.

On disk: ``archive.json`` in the archive's checkpoint folder, with the location of the lake, in case the lake is moved or the archive is
started with another location.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.client.admin import Admin
from penstock.client.errors import NOT_FOUND_CODES, BrokerRefused
from penstock.client.group_admin import GroupAdmin
from penstock.client.offsets import watermarks
from penstock.spark.connections import connected
from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.lake.layout import records_layout
from penstock.spark.lake.manifests import Ends
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
    """Where an archive without a checkpoint starts: the source's ``startingOffsets``, and the lag in records."""

    offsets: str
    lag: int


def prepare(cluster: Cluster, lake: Lake, topics: Sequence[str], group: str) -> Start:
    """Prepare the lake, and set the group's offsets to what it has."""
    lake.prepare(records_layout())
    lake.recover(topics, int(datetime.now(UTC).timestamp() * 1000))
    starts: dict[str, dict[str, int]] = {}
    archived: dict[TopicPartition, int] = {}
    ids: dict[str, UUID] = {}
    lag = 0
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
            lag += last - max(first, end or 0)
    admin = GroupAdmin(cluster)
    known = admin.offsets(group, archived)
    wrong = {place: end for place, end in archived.items() if place not in known or known[place].offset != end}
    if wrong:
        admin.commit(group, wrong, topic_ids=ids if len(ids) == len(topics) else None)
    return Start(json.dumps(starts), lag)


def remember(lake: Lake, checkpoint: str) -> None:
    """Store the location of the lake in the checkpoint."""
    # Spark supports more file systems than Arrow.
    with suppress(LakeError, OSError):
        Store(checkpoint).write_atomic(_REMEMBERED, json.dumps({"lake": lake.location}).encode())


def check_checkpoint(lake: Lake, checkpoint: str) -> None:
    """Refuse the checkpoint of a query that wrote to another lake."""
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
    """Refuse topics whose tier is another lake, which may be the only place of older records."""
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
    """Let the broker delete what this group has committed as archived. Call :func:`prepare` before."""
    changes: dict[str, str | None] = {LOCATION: lake.location, FORMAT: lake.format.value, GROUP: group}
    if local_retention_ms is not None:
        changes[LOCAL_RETENTION] = str(local_retention_ms)
    for topic in topics:
        Admin(cluster).alter_configs(topic, changes)


def check_same(options: Mapping[str, str], lake: Lake, topics: Iterable[str]) -> None:
    """Refuse to continue if a topic is no longer the one whose records the lake has."""
    with connected(options) as cluster:
        for topic in topics:
            claimed = lake.topic_id(topic)
            if claimed is not None and claimed != str(_topic_id(cluster, topic)):
                raise _created_again(topic, lake.location)


def commit_archived(options: Mapping[str, str], group: str, archived: Ends, lake: Lake) -> None:
    """Commit for the group that the lake has everything below these offsets."""
    ends: dict[TopicPartition, int] = {
        (topic, partition): end for topic, partitions in archived.items() for partition, end in partitions.items()
    }
    if not ends:
        return
    with connected(options) as cluster:
        admin = GroupAdmin(cluster)
        known = admin.offsets(group, ends)
        behind = {place: end for place, end in ends.items() if place not in known or known[place].offset < end}
        for topic in {topic for topic, _ in behind}:
            of_topic = {place: end for place, end in behind.items() if place[0] == topic}
            claimed = lake.topic_id(topic)
            try:
                admin.commit(group, of_topic, topic_ids=None if claimed is None else {topic: UUID(claimed)})
            except BrokerRefused as error:
                if error.code not in NOT_FOUND_CODES:
                    raise
                raise _created_again(topic, lake.location) from error


def _topic_id(cluster: Cluster, topic: str) -> UUID | None:
    """The current id in the broker; None if there is no such topic."""
    info = cluster.describe([topic])
    return info.topics[topic].topic_id if topic in info.topics else None


def _created_again(topic: str, location: str) -> LakeError:
    return LakeError(
        f"The topic {topic} was deleted, or deleted and created again, while it was archived, and {location} contains records of the old one. Archive the new "
        "one to another place, with another --name"
    )
