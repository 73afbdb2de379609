"""Real brokers on their way into a cluster: with what they had alone, with a directory that is not theirs to bring, and with a new disk."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.client.queue import QueueClient
from penstock.testing.process import BrokerProcess
from tests.support.clients import Record, consume_confluent, produce_confluent
from tests.support.cluster_processes import ClusterProcesses, NodeProcess
from tests.support.etcd import Etcd, running_etcd
from tests.support.waiting import eventually

ALONE = {"groups.offsets_topic_partitions": 2, "cluster.replication_factor": 1, "cluster.min_in_sync": 1}
VALUES = [b"%d" % n for n in range(50)]
RECORDS = [Record(value) for value in VALUES]
QUEUE, WORKERS = "jobs", "crew"


def fill(broker: BrokerProcess) -> None:
    """A topic, a group's offset, and a queue of which two records of five are done."""
    produce_confluent(broker.bootstrap, "orders", RECORDS)
    with closing_consumer(broker) as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 20)], asynchronous=False)
    with QueueClient(broker.addresses["http"], owner="w") as queue:
        queue.create_topic(QUEUE)
        for n in range(5):
            queue.produce(QUEUE, b"job %d" % n)
        for _ in range(2):
            (leased,) = queue.lease(QUEUE, WORKERS, lease_ms=60_000, wait_ms=30_000)
            queue.ack(leased)


def values(bootstrap: str, count: int = len(VALUES)) -> list[bytes | None]:
    return [record.value for record in consume_confluent(bootstrap, "orders", count)]


def check(broker: BrokerProcess) -> None:
    """All of it is there, in that state."""
    assert values(broker.bootstrap) == VALUES
    with closing_consumer(broker) as consumer:
        (committed,) = consumer.committed([TopicPartition("orders", 0)], timeout=60)
        assert committed.offset == 20


@contextlib.contextmanager
def closing_consumer(broker: BrokerProcess) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers", "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def lone(folder: Path) -> BrokerProcess:
    return BrokerProcess(folder, {"groups.offsets_topic_partitions": 2}, http="127.0.0.1:0")


def refusal(node: NodeProcess) -> str:
    """What a node says that does not start."""
    before = len(node.log_text())
    with pytest.raises(RuntimeError, match=r"exit code [12]"):
        node.start()
    return node.log_text()[before:]


def test_a_lone_brokers_directory_is_the_first_nodes_with_all_that_it_has(etcd: Etcd, tmp_path: Path) -> None:
    with lone(tmp_path / "one") as alone:
        fill(alone)
        assert alone.stop() == 0
    with NodeProcess(tmp_path / "one", 1, etcd.urls, ALONE) as node:
        check(node)
        with QueueClient(node.addresses["http"], owner="w") as queue:
            (leased,) = queue.lease(QUEUE, WORKERS, lease_ms=60_000, wait_ms=30_000)
            assert leased.value == b"job 2"
            queue.ack(leased)
        # And on from there.
        produce_confluent(node.bootstrap, "orders", [Record(b"more")])
        assert node.stop() == 0
        assert not (tmp_path / "one" / "metadata.sqlite").exists()
        # The second time there is nothing to bring.
        node.start()
        assert values(node.bootstrap, len(VALUES) + 1) == [*VALUES, b"more"]
        assert node.log_text().count("were moved to the cluster") == 1
        node.kill()
        # It is the cluster's from now on.
        with pytest.raises(RuntimeError, match="--cluster tested"):
            lone(tmp_path / "one").start()


def test_a_cluster_that_has_topics_refuses_a_lone_brokers_and_leaves_them_as_they_were(
    etcd: Etcd, tmp_path: Path
) -> None:
    with lone(tmp_path / "two") as alone:
        fill(alone)
        assert alone.stop() == 0
    with NodeProcess(tmp_path / "one", 2, etcd.urls, ALONE) as node:
        produce_confluent(node.bootstrap, "theirs", RECORDS)
        text = refusal(NodeProcess(tmp_path / "two", 1, etcd.urls, ALONE))
        assert "only the first node of a new cluster" in text
        assert "--data-dir" in text
        assert "Traceback" not in text
        assert "orders" not in AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=60).topics
    # Alone it starts as before.
    with lone(tmp_path / "two") as alone:
        check(alone)


def test_a_directory_of_another_cluster_or_of_an_etcd_that_lost_it_is_refused(etcd: Etcd, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "one", 1, etcd.urls, ALONE) as node:
        produce_confluent(node.bootstrap, "orders", RECORDS)
        assert node.stop() == 0
    other = NodeProcess(tmp_path / "one", 1, etcd.urls, {**ALONE, "cluster.name": "other"})
    command = other.command()
    at = command.index("--cluster")
    other.command = lambda: [*command[: at + 1], "other", *command[at + 2 :]]  # type: ignore[method-assign]
    text = refusal(other)
    assert "belongs to cluster tested" in text
    assert "--cluster tested" in text
    with running_etcd(tmp_path / "empty") as empty:
        text = refusal(NodeProcess(tmp_path / "one", 1, empty.urls, ALONE))
        assert "does not exist in etcd" in text
        assert "backup" in text
        # Somebody else has begun a cluster of that name there.
        with NodeProcess(tmp_path / "two", 2, empty.urls, ALONE):
            assert "belongs to cluster tested" in refusal(NodeProcess(tmp_path / "one", 1, empty.urls, ALONE))
    # Nothing was done to it.
    with NodeProcess(tmp_path / "one", 1, etcd.urls, ALONE) as node:
        assert values(node.bootstrap) == VALUES


def test_a_second_node_with_the_same_id_ends_with_a_sentence(etcd: Etcd, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "one", 1, etcd.urls, ALONE) as node:
        # It gives the other one as long as its own lease would last, three times.
        text = refusal(NodeProcess(tmp_path / "two", 1, etcd.urls, {**ALONE, "cluster.lease_ms": 2_000}))
        assert f"Node 1 is already running, at {node.addresses['peer']}" in text
        assert "--node-id" in text
        produce_confluent(node.bootstrap, "orders", RECORDS)


def test_a_node_whose_disk_was_replaced_comes_back_empty_and_costs_nothing(etcd: Etcd, tmp_path: Path) -> None:
    # Its old entry may have to be waited for.
    with ClusterProcesses(tmp_path, etcd.urls, settings={"cluster.lease_ms": 5_000}, gateways=False) as cluster:
        cluster.create(NewTopic("orders", 1, 3))
        produce_confluent(cluster.bootstrap, "orders", RECORDS)
        replaced = cluster.nodes[cluster.leader("orders")]
        # The machine dies with its disk, and comes back before anybody has missed it.
        replaced.kill()
        shutil.rmtree(replaced.data_dir)
        replaced.start()
        assert "has another data directory than before" in replaced.log_text()
        cluster.wait_until_in_sync()
        assert values(cluster.bootstrap) == VALUES
        # It has all of it again, and can lead when the others stop.
        for node in cluster.nodes.values():
            if node is not replaced:
                node.stop()
                break
        eventually(lambda: cluster.leader("orders") >= 0, 60, "somebody leads")
        assert values(cluster.bootstrap) == VALUES
