"""What runs on a cluster while its parts fail, and what must hold in the end: a producer, a group, and queue workers."""

from collections.abc import Mapping
from uuid import UUID

from confluent_kafka import TopicCollection
from confluent_kafka.admin import NewTopic

from tests.crash.load import Committing, ConfluentProducing, committed_offset, read_all
from tests.crash.queue_load import TOPIC, Client, Ledger, Producer, Worker, check_queue, dead_letters, lag
from tests.support.cluster_processes import AnyNode, ClusterProcesses
from tests.support.waiting import eventually

STREAM = "stream"
PARTITIONS = 3
JOBS_PARTITIONS = 2
SECONDS = 90.0
"""How long anything may take on a machine that does much else; most of it takes a few."""


class Producing(ConfluentProducing):
    """Gives a node that does not answer up after seconds, so that one which stands still does not hold it."""

    more: Mapping[str, int] = {
        "request.timeout.ms": 3000,
        "socket.timeout.ms": 4000,
        "topic.metadata.refresh.interval.ms": 1000,
    }


class Load:
    """All clients together."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        wanted = [
            NewTopic(STREAM, PARTITIONS, 3),
            NewTopic(TOPIC, JOBS_PARTITIONS, 3),
            NewTopic(f"dlq.{TOPIC}", JOBS_PARTITIONS, 3),
        ]
        cluster.create(*wanted)
        cluster.wait_until_in_sync()
        self.ledger = Ledger()
        self.producing = Producing(cluster.bootstrap, STREAM, range(PARTITIONS))
        self.committing = Committing(cluster.bootstrap, STREAM, "readers", 0)
        self.producing.start()
        self.committing.start()
        self.jobs = Producer(AnyNode(cluster), self.ledger)
        self.workers = [Worker(AnyNode(cluster, 1 + n), self.ledger, f"worker {n}") for n in range(2)]

    def go_on(self, records: int = 500, acks: int = 20) -> None:
        """Return once more was written and more was worked, by whoever is there."""
        self.producing.wait_for_more(records, SECONDS)
        self.ledger.wait_for_acks(acks, SECONDS)
        assert self.ledger.wrong == [], self.ledger.wrong[:5]

    def finish(self) -> None:
        """Everything heals and comes to its end; then what was promised is compared with what is there."""
        self.cluster.wait_until_in_sync()
        client = Client(AnyNode(self.cluster))
        self.jobs.stop()
        eventually(lambda: lag(client) == 0 or self.ledger.wrong, SECONDS, "every job is finished")
        for worker in self.workers:
            worker.stop()
        letters = dead_letters(client, JOBS_PARTITIONS)
        client.close()
        self.producing.stop()
        self.committing.stop()
        self._check_stream()
        check_queue(self.ledger, letters)
        self._check_replicas()

    def _check_stream(self) -> None:
        assert self.producing.failed == []
        for partition in range(PARTITIONS):
            found = read_all(self.cluster.bootstrap, STREAM, partition)
            assert found == list(range(self.producing.sent[partition])), (
                f"{STREAM}/{partition}: lost, doubled or out of order"
            )
        confirmed = self.committing.confirmed
        assert confirmed > 0
        assert committed_offset(self.cluster.bootstrap, STREAM, "readers", 0) >= confirmed

    def _check_replicas(self) -> None:
        """Stop everything, and compare the bytes of the copies."""
        # A copy that learnt of the last record has it; nobody writes any more.
        self.cluster.wait_until_in_sync()
        ids = topic_ids(self.cluster, [STREAM, TOPIC, f"dlq.{TOPIC}"])
        for node in self.cluster.nodes.values():
            assert node.stop() == 0
        compared = 0
        for topic_id in ids:
            copies: dict[str, dict[int, bytes]] = {}
            for node in self.cluster.nodes.values():
                for folder in (node.data_dir / "topics" / topic_id.hex).iterdir():
                    segments = sorted(folder.glob("*.log"))
                    copies.setdefault(folder.name, {})[node.node_id] = b"".join(each.read_bytes() for each in segments)
            for partition, by_node in copies.items():
                assert len(by_node) == 3, f"{topic_id}/{partition} is on nodes {sorted(by_node)}"
                assert len(set(by_node.values())) == 1, (
                    f"the copies of {topic_id}/{partition} differ: { ({n: len(b) for n, b in by_node.items()}) }"
                )
                compared += 1
        assert compared >= PARTITIONS + JOBS_PARTITIONS


def topic_ids(cluster: ClusterProcesses, names: list[str]) -> list[UUID]:
    admin = cluster.admin()
    answers = admin.describe_topics(TopicCollection(names), request_timeout=SECONDS)
    ids = [answer.result(SECONDS).topic_id for answer in answers.values()]
    halves = [(each.get_most_significant_bits(), each.get_least_significant_bits()) for each in ids]
    return [UUID(bytes=high.to_bytes(8, signed=True) + low.to_bytes(8, signed=True)) for high, low in halves]
