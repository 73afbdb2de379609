"""First and end offsets of partitions, and offsets by timestamp (ListOffsets)."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.client.cluster import Cluster, TopicPartition
from penstock.client.errors import check
from penstock.wire.kafka import list_offsets_generated as wire

CONSUMER: Final = -1
"""The replica id of a client."""


class At(IntEnum):
    """Positions that can be requested instead of a timestamp."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


class OffsetAndTimestamp(NamedTuple):
    """An offset; -1 if there is no record at or after the timestamp. ``timestamp_ms`` is that of the record, and -1 for :class:`At`."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def list_offsets(
    cluster: Cluster, at: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The first offset of each partition at or after a timestamp (ms), or at a position (:class:`At`)."""
    return cluster.retry(lambda: _ask(cluster, at, read_committed=read_committed))


def watermarks(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset and the end offset of each partition."""
    wanted = list(partitions)
    low = list_offsets(cluster, dict.fromkeys(wanted, At.EARLIEST))
    high = list_offsets(cluster, dict.fromkeys(wanted, At.LATEST))
    return {each: (low[each].offset, high[each].offset) for each in wanted}


def _ask(
    cluster: Cluster, at: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, OffsetAndTimestamp]:
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    for address, partitions in cluster.by_leader(at).items():
        topics: dict[str, list[wire.ListOffsetsRequestPartition]] = {}
        for topic, partition in partitions:
            entry = wire.ListOffsetsRequestPartition(partition_index=partition, timestamp=int(at[topic, partition]))
            topics.setdefault(topic, []).append(entry)
        request = wire.ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=int(read_committed),
            topics=[wire.ListOffsetsRequestTopic(name=name, partitions=entries) for name, entries in topics.items()],
            timeout_ms=cluster.timeout_ms,
        )
        answer = cluster.connection_to(address).call(request, wire.ListOffsetsResponse)
        for answered in answer.topics:
            for part in answered.partitions:
                check(part.error_code, f"{answered.name}/{part.partition_index}", in_metadata=True)
                place = (answered.name, part.partition_index)
                found[place] = OffsetAndTimestamp(part.offset, part.timestamp, part.leader_epoch)
    return found
