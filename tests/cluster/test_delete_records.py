"""Records that a client was told are deleted stay so, whoever leads next."""

import signal
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from tests.support.clients import PRODUCERS, Record
from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import Etcd
from tests.support.waiting import eventually

SECONDS = 60
DELETED = 4


@pytest.mark.timeout(240)
def test_deleted_records_do_not_come_back_when_the_leader_is_killed_after_its_answer(
    tmp_path: Path, etcd: Etcd
) -> None:
    # Longer than any pause here: whoever stands still stays in sync.
    settings = {"cluster.lag_ms_max": 60_000, "cluster.lease_ms": 10_000}
    with ClusterProcesses(tmp_path, etcd.urls, settings=settings, gateways=False) as cluster:
        admin = cluster.admin()
        cluster.create(NewTopic("t", 1, replica_assignment=[[1, 2, 3]]))
        PRODUCERS["confluent"](cluster.bootstrap, "t", [Record(b"v", partition=0) for _ in range(10)])
        cluster.wait_until_in_sync()
        assert cluster.leader("t") == 1
        before = [TopicPartition("t", 0, DELETED)]
        followers = [cluster.nodes[2], cluster.nodes[3]]
        for node in followers:
            node.pause()
        try:
            with pytest.raises(KafkaException) as raised:
                admin.delete_records(before, operation_timeout=0.2, request_timeout=SECONDS)[before[0]].result(SECONDS)
        finally:
            for node in followers:
                node.signal(signal.SIGCONT)
        assert raised.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
        assert admin.delete_records(before)[before[0]].result(SECONDS).low_watermark >= DELETED
        cluster.nodes[1].kill()
        assert eventually(lambda: cluster.leader("t") in (2, 3), 60, "another node leads")
        place = TopicPartition("t", 0)

        def begins() -> int:
            # A new one each time: one that was there before asks whom it knew to lead.
            anew = cluster.admin()
            asked = anew.list_offsets({place: OffsetSpec.earliest()}, request_timeout=3)
            try:
                return max(0, asked[place].result(SECONDS).offset)
            except KafkaException:
                return 0

        assert eventually(begins, 60, "the new leader answers") == DELETED
