"""Three nodes on three members of etcd, real processes: one after the other is killed or stands still while clients go on.

One node may be away at any time: everything must go on without it, and nothing that was promised may be missing in the end.
``CLUSTER_ROUNDS=100 make test-cluster`` for a long run.
"""

import asyncio
import os
import random
import signal

import pytest

from tests.cluster.load import STREAM, Load
from tests.support.cluster_processes import QUICK, ClusterProcesses, NodeProcess
from tests.support.etcd import Etcd

ROUNDS = int(os.environ.get("CLUSTER_ROUNDS", "1"))
"""How often each fault is made."""


def leader(load: Load) -> NodeProcess:
    return load.cluster.nodes[load.cluster.leader(STREAM)]


def follower(load: Load) -> NodeProcess:
    led = load.cluster.describe().topics[STREAM].partitions[0]
    return load.cluster.nodes[next(node for node in led.replicas if node != led.leader)]


def controller(load: Load) -> NodeProcess:
    return load.cluster.nodes[load.cluster.controller()]


WHO = {"leader": leader, "follower": follower, "controller": controller}


@pytest.mark.timeout(300 + 300 * ROUNDS)
def test_nothing_promised_is_lost_whichever_node_or_member_of_etcd_fails(tmp_path, etcd_of_three) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    faults = [(who, how) for who in (*WHO, "etcd") for how in ("killed", "paused", "stopped")] * ROUNDS
    rng.shuffle(faults)
    with ClusterProcesses(tmp_path, etcd_of_three.urls, settings=QUICK, gateways=False) as cluster:
        load = Load(cluster)
        for who, how in faults:
            print(f"the {who} is {how}")
            load.go_on(rng.randrange(1, 500), rng.randrange(1, 20))
            if who == "etcd":
                fail_etcd(etcd_of_three, how, load)
            else:
                fail_node(WHO[who](load), how, load)
            cluster.wait_until_in_sync()
        load.go_on()
        load.finish()


def fail_node(node: NodeProcess, how: str, load: Load) -> None:
    if how == "paused":
        node.pause()
        load.go_on()
        node.signal(signal.SIGCONT)
    else:
        if how == "killed":
            node.kill()
        else:
            assert node.stop() == 0
        load.go_on()
        node.start()


def fail_etcd(etcd: Etcd, how: str, load: Load) -> None:
    member = asyncio.run(etcd.leader())
    if how == "paused":
        member.pause()
        load.go_on()
        member.resume()
    else:
        member.kill()
        load.go_on()
        etcd.start(member)
        asyncio.run(etcd.ready())
