"""What a replay copies, determined once: the offsets of each partition, first those in a lake and then those in the broker.

On disk: ``replay.json`` in the checkpoint folder, with the request, the resulting plan and the folder of the run. While it exists, the same
command continues the replay, and another command is refused. Each phase is a streaming query with its own checkpoint to the exactly-once
sink.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import sleep
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

import msgspec

from penstock.client.admin import Admin
from penstock.client.cluster import Cluster
from penstock.client.errors import UNKNOWN_TOPIC_OR_PARTITION, BrokerRefused
from penstock.client.offsets import watermarks
from penstock.spark.connections import new_cluster
from penstock.spark.lake.formats import LakeError, LakeFormat, format_named
from penstock.spark.lake.lake import open_lake
from penstock.spark.lake.reading import find_time
from penstock.spark.lake.store import Store
from penstock.spark.lake.tier import read_tier
from penstock.spark.source.offsets import find_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.lake.layout import StoredFile

PLAN: Final = "replay.json"
_ASK_SECONDS: Final = 0.2


class ReplayRequest(msgspec.Struct, frozen=True):
    """The arguments of a replay."""

    topic: str
    to: str
    partition: int | None
    from_offset: int | None
    to_offset: int | None
    from_ms: int | None
    to_ms: int | None
    broker: bool
    lake: bool
    lake_needed: bool
    location: str
    format: str


class Phase(msgspec.Struct, frozen=True):
    """The part from one source: offsets ``[start, end)`` of each partition."""

    source: Literal["lake", "broker"]
    start: dict[int, int]
    end: dict[int, int]

    @property
    def total(self) -> int:
        """The number of offsets."""
        return sum(self.end.values()) - sum(self.start.values())


class Replay(msgspec.Struct, frozen=True):
    """A replay that was started."""

    wanted: ReplayRequest
    run: str
    folder: str
    location: str
    format: str
    keep_partitions: bool
    phases: list[Phase]

    @property
    def total(self) -> int:
        """The number of offsets; there may be fewer records."""
        return sum(phase.total for phase in self.phases)


def begin(wanted: ReplayRequest, brokers: Mapping[str, str], folder: str, note: Callable[[str], None]) -> Replay:
    """Plan a replay, or continue the one that the same command started before."""
    store = Store(folder)
    data = store.read(PLAN)
    if data is not None:
        found = msgspec.json.decode(data, type=Replay)
        if found.wanted != wanted:
            raise LakeError(
                f"A replay with other arguments is unfinished ({store.uri_of(PLAN)}): run that command again to finish it, use another --name for this one, or remove that file"
            )
        note("continuing the interrupted replay")
        return found
    with new_cluster(brokers, "penstock-pipeline") as cluster:
        replay = _Planner(cluster, wanted, store.uri, note).plan()
    store.write_atomic(PLAN, msgspec.json.encode(replay))
    return replay


def finish(replay: Replay) -> None:
    """The replay is done: the same command starts a new one."""
    store = Store(replay.folder)
    store.remove([PLAN])
    store.remove_folder(replay.run)


class _Planner:
    """Determines where the range starts and ends, and what has it."""

    def __init__(self, cluster: Cluster, wanted: ReplayRequest, folder: str, note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._note = note
        self._wanted = wanted
        self._folder = folder

    def plan(self) -> Replay:
        wanted = self._wanted
        held = self._held() if wanted.broker else {}
        location, lake_format = self._lake()
        files = open_lake(location, lake_format).files(wanted.topic) if location else []
        partitions = sorted(held.keys() | {file.partition for file in files})
        if wanted.partition is not None:
            partitions = [each for each in partitions if each == wanted.partition]
        if not partitions:
            raise LakeError(
                f"{wanted.topic}/{wanted.partition or 0} does not exist, neither in the broker nor in a lake"
            )
        lake_phase, broker_phase = Phase("lake", {}, {}), Phase("broker", {}, {})
        for partition in partitions:
            of_partition = [file for file in files if file.partition == partition]
            self._share(partition, of_partition, held.get(partition), lake_phase, broker_phase)
        phases = [phase for phase in (lake_phase, broker_phase) if phase.total > 0]
        keep = self._target(max(partitions) + 1, len(held))
        return Replay(wanted, uuid4().hex, self._folder, location, lake_format.value, keep, phases)

    def _share(
        self,
        partition: int,
        files: list[StoredFile],
        held: tuple[int, int] | None,
        lake_phase: Phase,
        broker_phase: Phase,
    ) -> None:
        """The offsets of one partition: from the broker if it has them, else from the lake."""
        lake_end = max((file.last_offset + 1 for file in files), default=0)
        first = _least(files, held)
        end = lake_end if held is None else held[1]
        start_at = self._place(partition, files, held, self._wanted.from_offset, self._wanted.from_ms, first, end)
        end_at = self._place(partition, files, held, self._wanted.to_offset, self._wanted.to_ms, end, end)
        first_held = lake_end if held is None else held[0]
        in_lake = min(lake_end, first_held, end_at)
        if start_at < in_lake:
            lake_phase.start[partition], lake_phase.end[partition] = start_at, in_lake
        if held is not None and max(start_at, first_held) < end_at:
            broker_phase.start[partition], broker_phase.end[partition] = max(start_at, first_held), end_at
        missing = range(max(start_at, in_lake), min(first_held, end_at))
        if files and missing:
            self._note(
                f"{self._wanted.topic}/{partition}: offsets {missing.start} to {missing.stop - 1} are neither in the lake nor in the broker"
            )

    def _place(
        self,
        partition: int,
        files: list[StoredFile],
        held: tuple[int, int] | None,
        offset: int | None,
        time_ms: int | None,
        otherwise: int,
        end: int,
    ) -> int:
        """One bound of the range, within what exists."""
        if time_ms is not None:
            offset = find_time((file for file in files if held is None or file.first_offset < held[0]), time_ms)
            if held is not None and (offset is None or offset >= held[0]):
                # Ask the broker about its own records, because not all of them are in these files.
                place = (self._wanted.topic, partition)
                offset = find_times(self._cluster, {place: time_ms})[place]
            offset = end if offset is None else offset
        if offset is None:
            return otherwise
        return min(max(offset, _least(files, held)), end)

    def _held(self) -> dict[int, tuple[int, int]]:
        try:
            topic = self._cluster.topic(self._wanted.topic)
        except BrokerRefused as error:
            if error.code == UNKNOWN_TOPIC_OR_PARTITION and self._wanted.location:
                return {}
            raise
        places = [(topic.name, each.index) for each in topic.partitions]
        return {place[1]: bounds for place, bounds in watermarks(self._cluster, places).items()}

    def _lake(self) -> tuple[str, LakeFormat]:
        wanted = self._wanted
        if wanted.location or not wanted.lake:
            return wanted.location, format_named(wanted.format)
        tier = read_tier(self._cluster, wanted.topic)
        if tier is None and wanted.lake_needed:
            raise LakeError(f"{wanted.topic} has no tier; specify its lake with --lake PATH and --format")
        return ("", format_named(wanted.format)) if tier is None else (tier.location, tier.format)

    def _target(self, needed: int, count: int) -> bool:
        """Create the target if it does not exist; whether it has as many partitions as needed."""
        name, admin = self._wanted.to, Admin(self._cluster)
        try:
            there = len(self._cluster.topic(name).partitions)
        except BrokerRefused as error:
            if error.code != UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # Retention uses the records' timestamps: with the default, old records would be deleted at once.
            there = max(needed, count)
            admin.create_topic(name, partitions=there, configs={"retention.ms": "-1"})
            self._note(
                f"created topic {name} with {there} partitions and retention.ms -1, so that old records are retained"
            )
            return True
        kept_ms = next((entry.value for entry in admin.configs(name) if entry.name == "retention.ms"), None)
        if kept_ms not in (None, "-1"):
            self._note(
                f"{name} has retention.ms {kept_ms}: older records are copied, but the broker will delete them soon"
            )
        return there >= needed


@dataclass(slots=True)
class Sending:
    """One phase as a streaming query."""

    spark: SparkSession
    replay: Replay
    phase: Phase
    brokers: Mapping[str, str] = field(repr=False)
    batch_offsets: int

    def start(self, every_ms: int) -> StreamingQuery:
        """The query, with its own checkpoint below the replay's."""
        columns = ["key", "value", "headers", "timestamp"]
        if self.replay.keep_partitions:
            columns.append("partition")
        place = f"{self.replay.folder}/{self.replay.run}/{self.phase.source}"
        return (
            self._read()
            .select(*columns)
            .writeStream.format("penstock")
            .options(**self.brokers)
            .option("topic", self.replay.wanted.to)
            .option("keepTimestamp", "true")
            .option("checkpointLocation", place)
            .trigger(processingTime=f"{every_ms} milliseconds")
            .start()
        )

    def follow(self, query: StreamingQuery) -> Iterator[int]:
        """The number of offsets copied since the last time, until all are; raises the error of the query."""
        sent = 0
        while sent < self.phase.total:
            error = query.exception()
            if error is not None:
                raise error
            done = self._done(query)
            if done > sent:
                yield done - sent
                sent = done
            else:
                sleep(_ASK_SECONDS)

    def _done(self, query: StreamingQuery) -> int:
        progress = query.lastProgress
        reached = _reached(
            progress.sources[0].endOffset if progress is not None else None,
            # Offsets of the broker are by topic, and those of the lake by partition. They look alike: a topic's name may be a number.
            None if self.phase.source == "lake" else self.replay.wanted.topic,
        )
        return sum(
            min(max(reached.get(partition, 0), start), self.phase.end[partition]) - start
            for partition, start in self.phase.start.items()
        )

    def _read(self) -> DataFrame:
        wanted, phase = self.replay.wanted, self.phase
        options = {"maxOffsetsPerTrigger": str(self.batch_offsets), "includeHeaders": "true"}
        if phase.source == "lake":
            options |= {"path": self.replay.location, "lake": self.replay.format, "topic": wanted.topic}
            options |= {"startingOffsets": _json(phase.start), "endingOffsets": _json(phase.end)}
            return self.spark.readStream.format("penstock-lake").options(**options).load()
        options |= {
            **self.brokers,
            "assign": json.dumps({wanted.topic: sorted(phase.start)}),
            "startingOffsets": json.dumps({wanted.topic: {str(each): at for each, at in phase.start.items()}}),
            "kafka.isolation.level": "read_committed",
        }
        frame = self.spark.readStream.format("penstock").options(**options).load()
        # The stream continues with new records, but records after the start of the replay are not copied.
        inside = " OR ".join(f"(partition = {each} AND offset < {at})" for each, at in sorted(phase.end.items()))
        return frame.where(inside)


def _least(files: list[StoredFile], held: tuple[int, int] | None) -> int:
    """The first offset in the lake or the broker."""
    return min([file.first_offset for file in files] + ([] if held is None else [held[0]]))


def _json(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(partition): offset for partition, offset in offsets.items()})


def _reached(text: str | None, topic: str | None) -> dict[int, int]:
    """The progress of a query: offsets by partition, or by ``topic`` and partition."""
    found = json.loads(text) if text else None
    # Before the first batch, the offsets of a query are null.
    by_partition = (found or {}) if topic is None else (found or {}).get(topic, {})
    return {int(partition): int(offset) for partition, offset in by_partition.items()}
