"""A network that is cut between real processes: nodes and etcd each on a host of its own, as far as the kernel is concerned."""

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from tests.cluster.load import STREAM, Load
from tests.support.cluster_processes import QUICK, SECONDS_MAX, ClusterProcesses, NodeProcess
from tests.support.etcd import running_etcd
from tests.support.namespaces import Hosts

NODES = ("node1", "node2", "node3")


@pytest.fixture
def hosts():
    with Hosts(["etcd", *NODES]) as hosts, hosts.on_the_hub():
        yield hosts


@pytest.fixture
def cluster(tmp_path, hosts):
    address = hosts.addresses["etcd"]
    with running_etcd(tmp_path / "etcd", host=address, prefix=hosts.prefix("etcd")) as etcd:
        made = ClusterProcesses(tmp_path, etcd.urls)
        made.nodes = {
            number: NodeProcess(
                tmp_path / name,
                number,
                etcd.urls,
                QUICK,
                host=hosts.addresses[name],
                prefix=hosts.prefix(name),
                gateways=False,
            )
            for number, name in enumerate(NODES, 1)
        }
        with made:
            yield made


@pytest.mark.timeout(400)
def test_nothing_promised_is_lost_wherever_the_network_is_cut(hosts, cluster) -> None:
    load = Load(cluster)
    load.go_on()

    # The leader alone on the other side: it acknowledges nothing, and the others go on without it.
    hosts.cut_off(f"node{cluster.leader(STREAM)}")
    load.go_on()
    hosts.heal()
    cluster.wait_until_in_sync()

    # The leader and one follower do not reach each other; etcd and the clients reach both.
    led = cluster.describe().topics[STREAM].partitions[0]
    other = next(node for node in led.replicas if node != led.leader)
    hosts.cut_apart(f"node{led.leader}", f"node{other}")
    load.go_on()
    hosts.heal()
    cluster.wait_until_in_sync()

    # The leader does not reach etcd: another one leads, and the old one is told by its epoch.
    hosts.cut_apart(f"node{cluster.leader(STREAM)}", "etcd")
    load.go_on()
    hosts.heal()
    cluster.wait_until_in_sync()

    # Nobody reaches etcd: who leads goes on, a change waits and says why.
    hosts.cut_off("etcd")
    load.go_on()
    later, admin = NewTopic("later", 1, 3), cluster.admin()
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([later], request_timeout=SECONDS_MAX)["later"].result(SECONDS_MAX)
    assert "etcd" in str(refused.value)
    load.go_on()
    hosts.heal()
    cluster.create(later)
    cluster.wait_until_in_sync()

    load.go_on()
    load.finish()
