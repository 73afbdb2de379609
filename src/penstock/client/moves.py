"""Elections and reassignments, with Kafka's own requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.client.cluster import Cluster, TopicPartition
from penstock.client.errors import BrokerRefused, check
from penstock.client.group_admin import by_topic
from penstock.operations.cluster import PartitionMove

_PREFERRED: Final = 0
_UNCLEAN: Final = 1

Outcome = dict[TopicPartition, BrokerRefused | None]
"""The refusal of each partition; None if it was accepted."""


class Moves:
    """Administers replicas and leaders."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def alter(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Outcome:
        """Start to move each partition to these brokers, the preferred leader first; None cancels a move."""
        from penstock.wire.kafka import alter_partition_reassignments_generated as wire

        topics: dict[str, list[wire.AlterPartitionReassignmentsRequestPartition]] = {}
        for (topic, partition), replicas in targets.items():
            wanted = None if replicas is None else list(replicas)
            topics.setdefault(topic, []).append(wire.AlterPartitionReassignmentsRequestPartition(partition, wanted))
        request = wire.AlterPartitionReassignmentsRequest(
            timeout_ms=self._cluster.timeout_ms,
            topics=[wire.AlterPartitionReassignmentsRequestTopic(name, asked) for name, asked in topics.items()],
        )

        def attempt() -> Outcome:
            answer = self._cluster.controller().call(request, wire.AlterPartitionReassignmentsResponse)
            check(answer.error_code, "reassignment", answer.error_message)
            return {
                (topic.name, each.partition_index): _refusal(
                    topic.name, each.partition_index, each.error_code, each.error_message
                )
                for topic in answer.responses
                for each in topic.partitions
            }

        return self._cluster.retry(attempt)

    def in_progress(self) -> list[PartitionMove]:
        """All moves in progress, without what only the leaders know."""
        from penstock.wire.kafka import list_partition_reassignments_generated as wire

        request = wire.ListPartitionReassignmentsRequest(timeout_ms=self._cluster.timeout_ms, topics=None)

        def attempt() -> list[PartitionMove]:
            answer = self._cluster.controller().call(request, wire.ListPartitionReassignmentsResponse)
            check(answer.error_code, "reassignments", answer.error_message)
            return [
                PartitionMove(
                    topic=topic.name,
                    partition=each.partition_index,
                    leader=None,
                    replicas=tuple(each.replicas),
                    adding=tuple(each.adding_replicas),
                    removing=tuple(each.removing_replicas),
                    in_sync=(),
                    start_offset=None,
                    end_offset=None,
                    copied=None,
                )
                for topic in answer.topics
                for each in topic.partitions
            ]

        return sorted(self._cluster.retry(attempt), key=lambda move: (move.topic, move.partition))

    def elect(self, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False) -> Outcome:
        """Elect the preferred leaders, or with ``unclean`` any replica that is up for partitions without a leader. None: all partitions."""
        from penstock.wire.kafka import elect_leaders_generated as wire

        asked: list[wire.ElectLeadersRequestTopicPartitions] | None = None
        if partitions is not None:
            asked = [wire.ElectLeadersRequestTopicPartitions(name, each) for name, each in by_topic(partitions).items()]
        request = wire.ElectLeadersRequest(_UNCLEAN if unclean else _PREFERRED, asked, self._cluster.timeout_ms)

        def attempt() -> Outcome:
            answer = self._cluster.controller().call(request, wire.ElectLeadersResponse)
            check(answer.error_code, "election")
            return {
                (topic.topic, each.partition_id): _refusal(
                    topic.topic, each.partition_id, each.error_code, each.error_message
                )
                for topic in answer.replica_election_results
                for each in topic.partition_result
            }

        return self._cluster.retry(attempt)


def _refusal(topic: str, partition: int, code: int, message: str | None) -> BrokerRefused | None:
    return BrokerRefused(code, f"{topic}/{partition}", message) if code else None
