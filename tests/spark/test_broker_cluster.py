"""Spark on three nodes, one of which is killed again and again: queries continue by themselves, and every record is there once."""

import pytest
from confluent_kafka.admin import NewTopic

from penstock.client import Cluster, Producer, watermarks
from penstock.client.group_admin import GroupAdmin
from tests.spark.archiving import run_builtin
from tests.spark.sinking import values_in
from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import running_etcd
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)

SECONDS = 180.0
RECORDS = 12_000
PER_TRIGGER = 400


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    with running_etcd(folder / "etcd") as etcd, ClusterProcesses(folder, etcd.urls, gateways=False) as cluster:
        names = ("orders", "copies")
        cluster.create(*(NewTopic(name, num_partitions=3, replication_factor=3) for name in names))
        cluster.wait_until_in_sync()
        with Cluster(cluster.bootstrap) as client, Producer(client) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"%d" % number, partition=number % 3)
        yield cluster


def committed(bootstrap, topic):
    """How many records a topic has, as its leaders say."""
    with Cluster(bootstrap) as cluster:
        places = [(topic, partition.index) for partition in cluster.topic(topic).partitions]
        return sum(end for _, end in watermarks(cluster, places).values())


def test_a_query_continues_while_leaders_die_and_writes_everything_once(spark, nodes, tmp_path) -> None:
    """In turn: the leader of what is read, the coordinator of the sinks, and the leader of what is written."""
    source = spark.readStream.format("penstock").option("kafka.bootstrap.servers", nodes.bootstrap)
    source = source.option("subscribe", "orders").option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", PER_TRIGGER).load().select("key", "value")
    sink = rows.writeStream.format("penstock").option("kafka.bootstrap.servers", nodes.bootstrap)
    query = sink.option("topic", "copies").option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def written():
        assert query.isActive, query.exception()
        return committed(nodes.bootstrap, "copies")

    def more_than(before) -> None:
        eventually(lambda: written() > before, SECONDS, f"more than {before} records are written")

    try:
        more_than(0)
        for topic in ("orders", "__sinks", "copies"):
            victim = nodes.nodes[nodes.leader(topic)]
            victim.kill()
            more_than(written() + PER_TRIGGER)
            victim.start()
            nodes.wait_until_in_sync()
        eventually(lambda: written() >= RECORDS, SECONDS, "all records are written")
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(map(int, values_in(nodes.bootstrap, "copies"))) == list(range(RECORDS))


def test_an_archive_of_a_cluster_has_every_record_once_and_its_group_says_so(spark, nodes, tmp_path) -> None:
    lake = tmp_path / "lake"
    nodes.nodes[nodes.leader("orders")].kill()
    try:
        given = {"topics": ("orders",), "to": str(lake), "format": "delta"}
        run_builtin(spark, "archive", given, bootstrap=nodes.bootstrap, state=tmp_path / "state", name="all")
    finally:
        for node in nodes.nodes.values():
            if not node.running:
                node.start()
    frame = spark.read.format("penstock-lake").option("path", str(lake)).option("lake", "delta").load()
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(RECORDS))
    with Cluster(nodes.bootstrap) as client:
        offsets = GroupAdmin(client).offsets("penstock.archive.all")
    assert {place[1]: each.offset for place, each in offsets.items()} == dict.fromkeys(range(3), RECORDS // 3)
