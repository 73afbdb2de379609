"""The controller is killed: clients that administer go on at once, those that knew it and those that come then."""

from collections.abc import Callable
from pathlib import Path

import kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic
from kafka.admin import NewTopic as PythonTopic

from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import Etcd

SECONDS = 40
Make = Callable[[str], object]


def confluent(client: AdminClient) -> Make:
    return lambda name: client.create_topics([ConfluentTopic(name, 1, 2)], request_timeout=SECONDS)[name].result(
        SECONDS
    )


def python(client: kafka.KafkaAdminClient) -> Make:
    return lambda name: client.create_topics([PythonTopic(name, 1, 2)], timeout_ms=SECONDS * 1000)


@pytest.mark.timeout(180)
def test_topics_are_made_at_once_by_clients_old_and_new(tmp_path: Path, etcd: Etcd) -> None:
    # Longer than anything may take here: nobody is missed in this time unless somebody notices that it is dead.
    settings = {"cluster.lease_ms": 60_000}
    with ClusterProcesses(tmp_path, etcd.urls, settings=settings, gateways=False) as cluster:
        lost = cluster.controller()
        everybody = cluster.bootstrap.split(",")
        # They know the node that dies, and were told by it who is the controller.
        old = AdminClient({"bootstrap.servers": cluster.nodes[lost].bootstrap, "log_level": 0})
        old.list_topics(timeout=SECONDS)
        old_python = kafka.KafkaAdminClient(bootstrap_servers=cluster.nodes[lost].bootstrap, retry_backoff_ms=100)
        try:
            confluent(old)("before")
            python(old_python)("before-python")
            cluster.nodes[lost].kill()
            confluent(cluster.admin())("new")
            confluent(old)("old")
            new_python = kafka.KafkaAdminClient(bootstrap_servers=everybody)
            try:
                python(new_python)("new-python")
            finally:
                new_python.close()
            python(old_python)("old-python")
        finally:
            old_python.close()
        made = cluster.admin().list_topics(timeout=SECONDS).topics
        assert {"before", "before-python", "new", "old", "new-python", "old-python"} <= set(made)
