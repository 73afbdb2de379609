"""Administration of topics, partitions and configs. Groups are in ``group_admin.py``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.cluster import Cluster, TopicInfo, TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import TOPIC_ALREADY_EXISTS, check

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
BROKER_DEFAULT: Final = -1
"""The broker's default number of partitions or replicas."""

CHANGE_MS_MAX: Final = 10_000
"""How long a change that may be made twice is retried. It is short, so that an outage of etcd is reported soon."""
_SET: Final = 0
_DELETE: Final = 1
_SOURCES: Final = {1: "topic", 2: "broker", 3: "cluster", 4: "broker config", 5: "default", 6: "broker logger"}


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of a topic or a broker, and where it comes from."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether it is not set on the topic itself."""
        return self.source != "topic"


class Admin:
    """Administers topics."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def topics(self) -> list[TopicInfo]:
        """Every topic, by name."""
        info = self._cluster.describe(None)
        return [info.topics[name] for name in sorted(info.topics)]

    def topic(self, name: str) -> TopicInfo:
        """Request the current state of one topic; UNKNOWN_TOPIC_OR_PARTITION if it does not exist. Never creates it."""
        self._cluster.forget(name)
        return self._cluster.topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        exists_ok: bool = False,
    ) -> None:
        """Create a topic. If it exists, raise TOPIC_ALREADY_EXISTS, or with ``exists_ok`` leave it unchanged."""
        from penstock.wire.kafka import create_topics_generated as wire

        topic = wire.CreateTopicsRequestTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[wire.CreateTopicsRequestConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        request = wire.CreateTopicsRequest(
            topics=[topic], timeout_ms=self._cluster.timeout_ms, validate_only=validate_only
        )

        def attempt() -> None:
            for result in self._cluster.controller().call(request, wire.CreateTopicsResponse).topics:
                if not (exists_ok and result.error_code == TOPIC_ALREADY_EXISTS):
                    check(result.error_code, f"topic {result.name!r}", result.error_message)

        self._cluster.retry(attempt, lost=False)
        self._cluster.forget(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        from penstock.wire.kafka import delete_topics_generated as wire

        request = wire.DeleteTopicsRequest(
            topics=[wire.DeleteTopicsRequestTopic(name=name)], topic_names=[name], timeout_ms=self._cluster.timeout_ms
        )

        def attempt() -> None:
            for result in self._cluster.controller().call(request, wire.DeleteTopicsResponse).responses:
                check(result.error_code, f"topic {name!r}", result.error_message)

        self._cluster.retry(attempt, lost=False)
        self._cluster.forget(name)

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions to ``total``. New records may then go to other partitions than earlier ones with the same key."""
        from penstock.wire.kafka import create_partitions_generated as wire

        request = wire.CreatePartitionsRequest(
            topics=[wire.CreatePartitionsRequestTopic(name=name, count=total, assignments=None)],
            timeout_ms=self._cluster.timeout_ms,
        )

        def attempt() -> None:
            for result in self._cluster.controller().call(request, wire.CreatePartitionsResponse).results:
                check(result.error_code, f"topic {result.name!r}", result.error_message)

        self._cluster.retry(attempt, lost=False)
        self._cluster.forget(name)

    def configs(self, topic: str) -> list[ConfigEntry]:
        """All configs of a topic, including defaults."""
        return self._described_configs(RESOURCE_TOPIC, lambda: (topic, self._cluster.any_connection()))

    def broker_configs(self, node_id: int | None = None) -> list[ConfigEntry]:
        """All configs of a broker, requested from that broker. None: any broker that is up."""

        def chosen() -> tuple[str, Connection]:
            info = self._cluster.describe()
            wanted = info.any_node.node_id if node_id is None else node_id
            node = info.nodes.get(wanted)
            found = self._cluster.any_connection() if node is None else self._cluster.connection_to(node.address)
            return str(wanted), found

        return self._described_configs(RESOURCE_BROKER, chosen)

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Set configs of a topic; None restores the default. Other configs do not change."""
        from penstock.wire.kafka import incremental_alter_configs_generated as wire

        configs = [
            wire.IncrementalAlterConfigsRequestConfig(
                name=key, config_operation=_DELETE if value is None else _SET, value=value
            )
            for key, value in changes.items()
        ]
        resource = wire.IncrementalAlterConfigsRequestResource(
            resource_type=RESOURCE_TOPIC, resource_name=topic, configs=configs
        )
        request = wire.IncrementalAlterConfigsRequest(resources=[resource])

        def attempt() -> None:
            for result in self._cluster.controller().call(request, wire.IncrementalAlterConfigsResponse).responses:
                check(result.error_code, f"topic {topic!r}", result.error_message)

        self._cluster.retry(attempt, timeout_ms=min(self._cluster.timeout_ms, CHANGE_MS_MAX))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete all records below an offset (-1: all); returns the new first offset of each partition."""
        from penstock.wire.kafka import delete_records_generated as wire

        def attempt() -> dict[TopicPartition, int]:
            low: dict[TopicPartition, int] = {}
            for address, partitions in self._cluster.by_leader(before).items():
                topics = [
                    wire.DeleteRecordsRequestTopic(
                        name=topic,
                        partitions=[
                            wire.DeleteRecordsRequestPartition(
                                partition_index=partition, offset=before[topic, partition]
                            )
                        ],
                    )
                    for topic, partition in partitions
                ]
                request = wire.DeleteRecordsRequest(topics=topics, timeout_ms=self._cluster.timeout_ms)
                answer = self._cluster.connection_to(address).call(request, wire.DeleteRecordsResponse)
                for answered in answer.topics:
                    for part in answered.partitions:
                        check(part.error_code, f"{answered.name}/{part.partition_index}", in_metadata=True)
                        low[answered.name, part.partition_index] = part.low_watermark
            return low

        return self._cluster.retry(attempt)

    def sizes(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Bytes on disk of each partition, on its largest replica."""
        from penstock.wire.kafka import describe_log_dirs_generated as wire

        wanted = [self._cluster.topic(name) for name in topics]
        request = wire.DescribeLogDirsRequest(
            topics=[
                wire.DescribeLogDirsRequestTopic(topic=t.name, partitions=[p.index for p in t.partitions])
                for t in wanted
            ]
        )

        def attempt() -> list[wire.DescribeLogDirsResponse]:
            nodes = self._cluster.describe().nodes.values()
            return [
                self._cluster.connection_to(node.address).call(request, wire.DescribeLogDirsResponse) for node in nodes
            ]

        sizes: dict[TopicPartition, int] = {}
        for result in (result for answer in self._cluster.retry(attempt) for result in answer.results):
            check(result.error_code, f"log directory {result.log_dir}")
            for topic in result.topics:
                for part in topic.partitions:
                    place = (topic.name, part.partition_index)
                    sizes[place] = max(sizes.get(place, 0), part.partition_size)
        return sizes

    def _described_configs(self, resource_type: int, chosen: Callable[[], tuple[str, Connection]]) -> list[ConfigEntry]:
        """The configs of the resource that ``chosen`` names, from the broker that it connects to. It is called again for each retry."""
        from penstock.wire.kafka import describe_configs_generated as wire

        def attempt() -> wire.DescribeConfigsResponse:
            name, connection = chosen()
            resource = wire.DescribeConfigsRequestResource(
                resource_type=resource_type, resource_name=name, configuration_keys=None
            )
            request = wire.DescribeConfigsRequest(resources=[resource], include_documentation=True)
            return connection.call(request, wire.DescribeConfigsResponse)

        answer = self._cluster.retry(attempt)
        entries: list[ConfigEntry] = []
        for result in answer.results:
            check(
                result.error_code,
                f"{'topic' if resource_type == RESOURCE_TOPIC else 'broker'} {result.resource_name!r}",
                result.error_message,
            )
            entries += [
                ConfigEntry(
                    each.name,
                    each.value,
                    _SOURCES.get(each.config_source, "unknown"),
                    each.read_only,
                    each.is_sensitive,
                    each.documentation,
                )
                for each in result.configs
            ]
        return sorted(entries, key=lambda entry: entry.name)
