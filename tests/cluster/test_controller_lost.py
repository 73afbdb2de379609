"""The controller is killed: clients that administer go on at once, those that knew it and those that come then."""

from collections.abc import Callable
from pathlib import Path

import kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic
from kafka.admin import NewTopic as PythonTopic
from kafka.errors import KafkaConnectionError, NodeNotReadyError, TopicAlreadyExistsError

from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import Etcd
from tests.support.waiting import eventually

SECONDS = 40
Make = Callable[[str], object]


def confluent(client: AdminClient) -> Make:
    return lambda name: client.create_topics([ConfluentTopic(name, 1, 2)], request_timeout=SECONDS)[name].result(
        SECONDS
    )


def python(bootstrap: str | list[str]) -> Make:
    """With a client of its own, and another one when it has met the dead node: it hands a refused connection to its caller."""

    def is_made(name: str) -> bool:
        try:
            client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
        except KafkaConnectionError:
            return False
        try:
            client.create_topics([PythonTopic(name, 1, 2)], timeout_ms=SECONDS * 1000)
        except (KafkaConnectionError, NodeNotReadyError):
            return False
        except TopicAlreadyExistsError:
            pass
        finally:
            client.close()
        return True

    return lambda name: eventually(lambda: is_made(name), SECONDS, f"{name} is made")


@pytest.mark.timeout(180)
def test_topics_are_made_at_once_by_clients_old_and_new(tmp_path: Path, etcd: Etcd) -> None:
    # Longer than anything may take here: nobody is missed in this time unless somebody notices that it is dead.
    settings = {"cluster.lease_ms": 60_000}
    with ClusterProcesses(tmp_path, etcd.urls, settings=settings, gateways=False) as cluster:
        lost = cluster.controller()
        everybody = cluster.bootstrap.split(",")
        # It knows the node that dies, and was told by it who is the controller. (kafka-python's goes on with whom it was told, for ever.)
        old = AdminClient({"bootstrap.servers": cluster.nodes[lost].bootstrap, "log_level": 0})
        old.list_topics(timeout=SECONDS)
        confluent(old)("before")
        python(cluster.nodes[lost].bootstrap)("before-python")
        cluster.nodes[lost].kill()
        confluent(cluster.admin())("new")
        confluent(old)("old")
        python(everybody)("new-python")
        made, admin = {"before", "before-python", "new", "old", "new-python"}, cluster.admin()
        # The node that made a topic knows it at once, and the others a moment later.
        eventually(
            lambda: made <= set(admin.list_topics(timeout=SECONDS).topics), SECONDS, "every node knows all of them"
        )
