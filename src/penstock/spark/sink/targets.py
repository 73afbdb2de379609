"""The topics that are written: their number of partitions and their maximum batch size.

The broker creates a missing topic if it is configured to, as with Spark's Kafka connector. A task checks the topic before it sends the
first row for it, so a wrong name leaves nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.client.admin import Admin
from penstock.client.errors import UNKNOWN_TOPIC_OR_PARTITION, BrokerRefused, ClientError, check
from penstock.client.producer import BATCH_BYTES

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster, TopicInfo

CREATION_MS_MAX: Final = 5_000
"""How long to wait for a topic: a broker that does not create it gives the same answer as one that has not created it yet."""


class SinkTarget(NamedTuple):
    """What a writer needs to know about a topic."""

    partition_count: int
    batch_bytes_max: int


class Targets:
    """The topics of one task."""

    def __init__(self, cluster: Cluster, *, batch_bytes: int | None) -> None:
        self._cluster = cluster
        self._batch_bytes = BATCH_BYTES if batch_bytes is None else min(batch_bytes, BATCH_BYTES)
        self._known: dict[str, SinkTarget] = {}

    def __getitem__(self, topic: str) -> SinkTarget:
        known = self._known.get(topic)
        if known is None:
            info = ensure_topic(self._cluster, topic)
            known = self._known[topic] = SinkTarget(len(info.partitions), self._batch_bytes_max(topic))
        return known

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic."""
        return self[topic].partition_count

    def _batch_bytes_max(self, topic: str) -> int:
        try:
            configs = {entry.name: entry.value for entry in Admin(self._cluster).configs(topic)}
            message_bytes_max = int(configs["max.message.bytes"] or 0)
        except (ClientError, KeyError, ValueError):
            # The config may be unavailable or not authorized: use the default.
            return self._batch_bytes
        # A codec may enlarge data that does not compress.
        return max(1, min(self._batch_bytes, message_bytes_max - message_bytes_max // 8))


def ensure_topic(cluster: Cluster, name: str) -> TopicInfo:
    """The topic, created if it does not exist and the broker creates topics automatically."""

    def ask() -> TopicInfo:
        info = cluster.describe([name], auto_create=True)
        check(info.errors.get(name, 0), f"topic {name!r}")
        return info.topics[name]

    try:
        return cluster.retry(ask, unknown_topics=True, timeout_ms=CREATION_MS_MAX)
    except BrokerRefused as error:
        if error.code != UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise BrokerRefused(
            error.code,
            message=f"Topic {name!r} does not exist, and the broker does not create topics automatically: create it "
            f'("penstock topic create {name}"), or correct the name',
        ) from error
