"""Three nodes, each on a disk of its own that loses what was not synced, one, two or all of which lose power at once.

``acks=all`` is answered when every replica in sync has synced the record, and at least two are. So nothing that was acknowledged
may be lost, however many nodes are cut. Nor may a delivery of a queue be forgotten: here it leaves when its lease is committed.
``CLUSTER_ROUNDS=50 make test-cluster ARGS="-k power_cuts"`` for a long run, ``POWER_SEED=N`` to repeat the choices of an earlier
one.
"""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.cluster.load import SECONDS, STREAM, Load, Producing
from tests.crash import test_sink_kills
from tests.crash.load import KeyedProducing, check_compacted, check_kept, committed_offset
from tests.crash.power_load import COMPACTED, COMPACTION, PAUSE_SECONDS
from tests.support.cluster_processes import ClusterProcesses, NodeProcess
from tests.support.etcd import Etcd
from tests.support.mounts import NotAllowed
from tests.support.powerfs.disk import PowerDisk

CUTS = 2 * int(os.environ.get("CLUSTER_ROUNDS", "1"))
SEED = int(os.environ.get("POWER_SEED", random.randrange(2**32)))
SETTINGS = {
    # Small and often, so that a cut meets rolls, new files, checkpoints and compaction.
    "topic_defaults.segment.bytes": 20_000,
    "log.checkpoint_interval_ms": 100,
    "log.housekeeping_interval_ms": 100,
}


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[int, PowerDisk]]:
    disks: dict[int, PowerDisk] = {}
    try:
        for node_id in (1, 2, 3):
            disks[node_id] = PowerDisk(tmp_path, f"node{node_id}")
        yield disks
    except NotAllowed as reason:
        pytest.skip(f"no file system of our own here: {reason}")
    finally:
        for disk in disks.values():
            disk.close()


class Replacing(KeyedProducing):
    """Gives up a node that does not answer as soon as the other producer does."""

    more = Producing.more


class PowerLoad(Load):
    """Beside the load of the other tests a compacted topic and a sink."""

    def __init__(self, cluster: ClusterProcesses, seed: int) -> None:
        cluster.create(
            NewTopic(COMPACTED, 1, 3, config=COMPACTION),
            NewTopic(test_sink_kills.TOPIC, test_sink_kills.PARTITIONS, 3),
        )
        super().__init__(cluster)
        self.replacing = Replacing(cluster.bootstrap, COMPACTED, [0])
        # Everything is read again after each cut.
        self.producing.pause_seconds = self.replacing.pause_seconds = PAUSE_SECONDS
        self.driver = test_sink_kills.Driver(cluster.bootstrap, seed)
        self.replacing.start()
        self.driver.start()

    def go_on(self, records: int = 500, acks: int = 20) -> None:
        super().go_on(records, acks)
        self.replacing.wait_for_more(records, SECONDS)
        self.driver.committing.clear()
        assert self.driver.committing.wait(SECONDS), "the sink's driver gets nowhere"

    def check(self) -> None:
        """With every node up: what was acknowledged is there, once."""
        promised, replaced = self.producing.acknowledged(), self.replacing.acknowledged()
        confirmed = self.committing.confirmed
        self.cluster.wait_until_in_sync()
        check_kept(self.cluster.bootstrap, STREAM, promised)
        check_compacted(self.cluster.bootstrap, COMPACTED, replaced.get(0, set()))
        assert committed_offset(self.cluster.bootstrap, STREAM, "readers", 0) >= confirmed
        assert self.ledger.wrong == []
        assert self.driver.wrong == []

    def finish(self) -> None:
        self.replacing.stop()
        assert self.replacing.failed == []
        self.cluster.wait_until_in_sync()
        check_compacted(self.cluster.bootstrap, COMPACTED, set(range(self.replacing.sent[0])))
        test_sink_kills.check_sink(self.cluster.bootstrap, self.driver)
        super().finish()


def lose_power(disks: dict[int, PowerDisk], nodes: list[NodeProcess], rng: random.Random) -> None:
    """Cut these nodes at once, each at a moment of its own within half a second, or all now."""
    kind, most = rng.choice(["any", "sync", "names"]), rng.choice([0, 40])
    orders = [(disks[node.node_id], rng.randrange(2**32), kind, rng.randint(min(1, most), most)) for node in nodes]
    with ThreadPoolExecutor(len(nodes)) as pool:
        for cut in [pool.submit(disk.cut_power, *order) for disk, *order in orders]:
            cut.result()
        for node in nodes:
            node.kill()


@pytest.mark.timeout(300 + 60 * CUTS)
def test_power_cuts_of_one_or_more_nodes_lose_and_double_nothing_acknowledged(
    tmp_path: Path, etcd: Etcd, disks: dict[int, PowerDisk]
) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    with ClusterProcesses(tmp_path, etcd.urls, settings=SETTINGS, gateways=False) as cluster:
        load = PowerLoad(cluster, SEED)
        for cut in range(CUTS):
            load.go_on(rng.randrange(1, 400), rng.randrange(1, 20))
            # The short run has one cut of one node and one of two.
            count = cut + 1 if cut < 2 else rng.choice([1, 1, 2, 2, 2, 3])
            nodes = rng.sample(list(cluster.nodes.values()), count)
            print(f"cut {cut} of nodes {[node.node_id for node in nodes]}, seed {SEED}", flush=True)
            lose_power(disks, nodes, rng)
            if count == 1 and rng.random() < 0.5:
                load.go_on(rng.randrange(1, 400))
            for node in nodes:
                disks[node.node_id].power_back()
                node.start()
            # Half of the next cuts meet replicas that are still catching up.
            if rng.random() < 0.5:
                load.check()
        load.go_on()
        load.check()
        load.finish()
