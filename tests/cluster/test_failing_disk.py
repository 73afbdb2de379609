"""A disk that takes what is written and fails to make it durable: its node says so and stops, and no producer notices more than a pause."""

import os
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import NewTopic

from tests.support.clients import CONSUMERS
from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import Etcd
from tests.support.mounts import LoopDisk, NotAllowed, small_tmpfs
from tests.support.waiting import eventually

RECORDS = 300
SECONDS = 90.0
EXIT_FAILED = 1


class ThinDisk:
    """Has less below it than it says. Once that is used up, writes go to memory as ever, and a sync fails."""

    def __init__(self, below: Path) -> None:
        self._below = below
        self.loop = LoopDisk(below, size_mib=256)
        self.path = self.loop.path

    def use_up(self) -> None:
        filler = os.open(self._below / "filler", os.O_WRONLY | os.O_CREAT)
        try:
            for size in (1024 * 1024, 4096):
                try:
                    while os.write(filler, bytes(size)):
                        pass
                except OSError:
                    continue
        finally:
            os.close(filler)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ThinDisk]:
    try:
        with small_tmpfs(tmp_path, 64) as below:
            made = ThinDisk(below)
            try:
                yield made
            finally:
                made.loop.unmount()
    except NotAllowed as reason:
        pytest.skip(f"no disk of its own here: {reason}")


@pytest.mark.timeout(300)
def test_a_node_whose_disk_fails_to_sync_stops_itself_and_others_take_over(
    tmp_path: Path, etcd: Etcd, disk: ThinDisk
) -> None:
    cluster = ClusterProcesses(tmp_path, etcd.urls, gateways=False)
    failing = cluster.nodes[1]
    failing.data_dir = disk.path / "data"
    with cluster:
        cluster.create(NewTopic("t", 1, replica_assignment=[[1, 2, 3]]))
        cluster.wait_until_in_sync()
        assert cluster.leader("t") == 1
        told: list[confluent_kafka.KafkaError | None] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        for n in range(RECORDS):
            if n == RECORDS // 3:
                assert producer.flush(SECONDS) == 0
                disk.use_up()
            value = b"%d " % n + os.urandom(4096)
            producer.produce("t", value, partition=0, on_delivery=lambda error, _: told.append(error))
            producer.poll(0)
        assert producer.flush(SECONDS) == 0
        assert told == [None] * RECORDS
        assert failing.wait(SECONDS) == EXIT_FAILED
        said = failing.log_text()
        assert "syncing" in said
        assert "this node stops, and the others take over" in said
        assert "Traceback" not in said
        assert eventually(lambda: cluster.leader("t") in (2, 3), SECONDS, "another node leads")
        others = ",".join(cluster.nodes[n].bootstrap for n in (2, 3))
        found = CONSUMERS["confluent"](others, "t", RECORDS, 0)
        assert [int(record.value.split(b" ", 1)[0]) for record in found] == list(range(RECORDS))
