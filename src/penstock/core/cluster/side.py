"""A node's part in its cluster. A broker that is alone is the only node of its cluster, and is not registered anywhere."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.core.broker_config import RECEIVING_RATE, SENDING_RATE
from penstock.core.cluster import checkpoint
from penstock.core.cluster.image import ClusterImage, RegisteredNode
from penstock.core.cluster.metering import ReplicaMetering
from penstock.core.cluster.observed import is_observed_id
from penstock.core.cluster.placement import ClusterPlacer
from penstock.core.cluster.reassignment import Reassignments
from penstock.core.cluster.replicas import ReplicaEnvironment, Replicas, TopicIdPartition
from penstock.core.cluster.rules import Rules
from penstock.core.cluster.shared_secret import SharedSecret
from penstock.core.cluster.strays import Strays
from penstock.core.coordinators.leading import Coordinators
from penstock.core.partitions.led_appends import LedAppends
from penstock.errors import PenstockError
from penstock.log.retention import RemovalTask
from penstock.metadata.port import MetadataStore

if TYPE_CHECKING:
    from penstock.core.broker import Broker

LOCAL_EPOCH: Final = 0
"""The node epoch of a broker that is alone. The lock on its data directory is its lease, so a restart does not need a new one."""


class ClusterSide:
    """The cluster as one broker sees it, and the broker's own part in it."""

    def __init__(self, broker: "Broker", store: MetadataStore, rules: Rules) -> None:
        self._broker = broker
        self.rules: Final = rules
        self.secret: Final = SharedSecret(store, broker.report)
        """Proves to other nodes that this one belongs to the cluster."""
        self.nodes: Final = ClusterImage(store, broker.clock)
        """The nodes of the cluster."""
        self.replicas: Final = Replicas(
            ReplicaEnvironment(
                node_id=broker.node_id,
                topics=broker.topics,
                logs=broker.logs,
                flusher=broker.flusher,
                flush=broker.settings.log.flush,
                moving_bytes_per_second=broker.settings.cluster.reassign_bytes_per_second,
                clock=broker.clock,
                report=broker.report,
                trash=self._trash,
                rules=rules,
            )
        )
        """The role of this node in each partition."""
        self.strays: Final = Strays(broker.logs, broker.topics, store, broker.trash, broker.report)
        """Files of topics that do not exist in the metadata."""
        self.reassignments: Final = Reassignments(store, broker.topics, self.nodes)
        """Requests for moves, elections and drains."""
        self.coordinators: Final = Coordinators(broker, self.nodes, broker.report, rules)
        """The groups, queues, produce keys and sinks that this node coordinates."""
        self.lacking: list[TopicIdPartition] = []
        """Partitions whose log lacked committed records at the start."""
        self.appends: Final = LedAppends(broker.clock)
        """Appends of batches that brokers built, to partitions that this node leads."""
        broker.timed.extend((self.appends, self.replicas))
        broker.topics.writes.notes_deletions = not broker.is_alone
        if not broker.is_alone:
            # With one node there is nothing to weigh, so the work does not grow with the number of partitions.
            broker.topics.placer = ClusterPlacer(self.nodes, broker.topics)
        broker.topics.on_partition.append(self.replicas.apply)
        self.metering: Final = ReplicaMetering(broker.node_id, broker.topics, broker.meters)
        """Counters for ``/metrics``."""
        self.replicas.on_lead.extend((broker.lead, self.coordinators.lead, self.metering.lead))
        self.replicas.on_resign.extend(
            (self.coordinators.resign, broker.resign, self.appends.resign, self.metering.resign)
        )

    def _trash(self, removal: RemovalTask) -> None:
        # Looked up at each call: the runtime sets it later.
        self._broker.on_trash(removal)

    async def start(self) -> None:
        """Load the nodes of the cluster, and begin the roles of this node.

        A node that is not alone is not registered yet: it follows other leaders, and leads nothing.
        """
        await self.nodes.load()
        self.metering.begin()
        logs = self._broker.logs
        for topic_id in logs.topic_ids():
            if is_observed_id(topic_id):
                self._broker.trash(topic_id)
        if self._broker.is_alone:
            self.nodes.add_local(self._local_node())
            self.replicas.registered(LOCAL_EPOCH)
            return
        await self.secret.load()
        marks = checkpoint.load(logs.disk, self._marks_path, self._broker.report)
        known = self._broker.topics.get_by_id
        self.replicas.high_watermarks.update(
            (place, offset) for place, offset in marks.items() if known(place.topic_id) is not None
        )
        self.replicas.apply_all()
        self.lacking = [place for place, offset in marks.items() if self._lacks(place, offset)]

    def _local_node(self) -> RegisteredNode:
        return RegisteredNode(
            node_id=self._broker.node_id,
            epoch=LOCAL_EPOCH,
            rack=None,
            shutting_down=False,
            incarnation=self._broker.entropy.uuid(),
            listeners={},
            version=__version__,
            started_ms=self._broker.clock.now_ms(),
        )

    def configs_changed(self) -> None:
        """Throttles may have changed."""
        configs = self._broker.configs
        self.replicas.sending.set_rate(configs.number(SENDING_RATE))
        self.replicas.receiving.set_rate(configs.number(RECEIVING_RATE))

    def _lacks(self, place: TopicIdPartition, offset: int) -> bool:
        """Whether the log here lacks committed records, because its disk has lost them."""
        topic = self._broker.topics.get_by_id(place.topic_id)
        if topic is None or place.partition >= topic.partition_count:
            return False
        if self._broker.node_id not in self._broker.topics.partition(topic, place.partition).replicas:
            return False
        try:
            log = self._broker.logs.log(topic.topic_id, place.partition, topic.config.log)
        except (OSError, PenstockError):
            return True
        if log.next_offset >= offset:
            return False
        self._broker.report(
            f"{topic.name}/{place.partition}: offsets {log.next_offset} to {offset - 1} were committed and are missing here; this node must get them from other nodes before it can lead"
        )
        return True

    @property
    def _marks_path(self) -> str:
        return f"{self._broker.logs.data_dir}/{checkpoint.FILE}"

    def save_high_watermarks(self, marks: Mapping[TopicIdPartition, int]) -> None:
        """Write the checkpoint. It blocks, and may run in any thread."""
        checkpoint.save(self._broker.logs.disk, self._marks_path, marks)
