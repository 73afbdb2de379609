"""Appending to partitions that this node leads; if the broker is alone, that is all of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.partitions.partition import Partition
from penstock.core.partitions.peers import AppendedOnce, CommittedDone, Produced, StatusDone
from penstock.core.partitions.status import NO_PRODUCER, ProducerQuery, partition_status
from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.types import Acks, GroupId, PartitionKey

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class LocalPeers:
    """The :class:`penstock.core.partitions.peers.Peers` of a broker that is alone."""

    is_waiting = False

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def holds(self, topic: Topic, index: int) -> bool:  # noqa: ARG002 - the same for all partitions
        """False: nothing ever waits for a leader."""
        return False

    def produce(self, topic: Topic, index: int, batch: bytearray, acks: Acks, done: Produced) -> None:
        """Append a batch."""
        try:
            self._broker.cluster.appends.append(self._led(topic, index), batch, acks, done)
        except PenstockError as error:
            done(error)

    def append_once(
        self,
        topic: Topic,
        index: int,
        batch: bytearray,
        header: str,
        search_from: int | Sequence[int],
        done: AppendedOnce,
    ) -> None:
        """Append the missing records of a batch."""
        noted = [search_from] if isinstance(search_from, int) else list(search_from)
        try:
            self._broker.cluster.appends.append_once(self._led(topic, index), batch, header, noted, done)
        except PenstockError as error:
            done(error)

    def partition_status(
        self, topic: Topic, index: int, done: StatusDone, producer: ProducerQuery = NO_PRODUCER
    ) -> None:
        """The status from the log."""
        try:
            done(partition_status(self._led(topic, index), producer))
        except PenstockError as error:
            done(error)

    def committed(self, offsets_partition: int, group: GroupId, key: PartitionKey, done: CommittedDone) -> None:
        """The committed offset from the groups in this partition of the offsets topic."""
        topic = self._broker.topics.get(OFFSETS_TOPIC)
        if topic is None:
            done(PenstockError(Reason.COORDINATOR_NOT_AVAILABLE))
            return
        try:
            self._led(topic, offsets_partition)
            done(next(iter(self._broker.groups.committed(offsets_partition, group, key)), None))
        except PenstockError as error:
            done(error)

    def _led(self, topic: Topic, index: int) -> Partition:
        return self._broker.cluster.replicas.leader(topic, index)
