"""Elections and reassignments, with Kafka's own requests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.cluster import Cluster, TopicPartition
from penstock.client.errors import BrokerRefused, check

_PREFERRED: Final = 0
_UNCLEAN: Final = 1

Outcome = dict[TopicPartition, BrokerRefused | None]
"""By partition: None where it was done, else why not."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition on its way to other brokers."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """Who has it when the move is over."""
        return tuple(node for node in self.replicas if node not in self.removing)


class Moves:
    """What an administrator does with replicas and leaders."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def alter(self, wishes: Mapping[TopicPartition, Sequence[int] | None]) -> Outcome:
        """Let these brokers have the partitions, the preferred leader first; None takes a move back. Agreed on, not over, when this returns."""
        from penstock.wire.kafka.alter_partition_reassignments_generated import (
            AlterPartitionReassignmentsRequest,
            AlterPartitionReassignmentsRequestPartition,
            AlterPartitionReassignmentsRequestTopic,
            AlterPartitionReassignmentsResponse,
        )

        topics: dict[str, list[AlterPartitionReassignmentsRequestPartition]] = {}
        for (topic, partition), replicas in wishes.items():
            wanted = None if replicas is None else list(replicas)
            topics.setdefault(topic, []).append(AlterPartitionReassignmentsRequestPartition(partition, wanted))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._cluster.timeout_ms,
            topics=[AlterPartitionReassignmentsRequestTopic(name, asked) for name, asked in topics.items()],
        )

        def attempt() -> Outcome:
            answer = self._cluster.controller().call(request, AlterPartitionReassignmentsResponse)
            check(answer.error_code, "reassignment", answer.error_message)
            return {
                (topic.name, each.partition_index): _refusal(
                    topic.name, each.partition_index, each.error_code, each.error_message
                )
                for topic in answer.responses
                for each in topic.partitions
            }

        return self._cluster.retry(attempt)

    def under_way(self) -> list[Move]:
        """All moves."""
        from penstock.wire.kafka.list_partition_reassignments_generated import (
            ListPartitionReassignmentsRequest,
            ListPartitionReassignmentsResponse,
        )

        request = ListPartitionReassignmentsRequest(timeout_ms=self._cluster.timeout_ms, topics=None)

        def attempt() -> list[Move]:
            answer = self._cluster.controller().call(request, ListPartitionReassignmentsResponse)
            check(answer.error_code, "reassignments", answer.error_message)
            return [
                Move(
                    topic.name,
                    each.partition_index,
                    tuple(each.replicas),
                    tuple(each.adding_replicas),
                    tuple(each.removing_replicas),
                )
                for topic in answer.topics
                for each in topic.partitions
            ]

        return sorted(self._cluster.retry(attempt), key=lambda move: (move.topic, move.partition))

    def elect(self, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False) -> Outcome:
        """Elect the preferred leaders, or with ``unclean`` whoever is up where nobody leads. No list: of all partitions that need it."""
        from penstock.wire.kafka.elect_leaders_generated import (
            ElectLeadersRequest,
            ElectLeadersRequestTopicPartitions,
            ElectLeadersResponse,
        )

        asked: list[ElectLeadersRequestTopicPartitions] | None = None
        if partitions is not None:
            topics: dict[str, list[int]] = {}
            for topic, partition in partitions:
                topics.setdefault(topic, []).append(partition)
            asked = [ElectLeadersRequestTopicPartitions(name, indexes) for name, indexes in topics.items()]
        request = ElectLeadersRequest(_UNCLEAN if unclean else _PREFERRED, asked, self._cluster.timeout_ms)

        def attempt() -> Outcome:
            answer = self._cluster.controller().call(request, ElectLeadersResponse)
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
