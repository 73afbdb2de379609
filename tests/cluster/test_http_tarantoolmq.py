"""What TarantoolMQ's API promises holds at every node of a cluster: the same tests, through a node that leads nothing."""

from collections.abc import Iterator

import pytest

from penstock.settings import HttpSettings
from tests.conformance.tarantoolmq.conftest import curl, group, new_name, topic
from tests.conformance.tarantoolmq.test_consumers import *  # noqa: F403 - these are the tests
from tests.conformance.tarantoolmq.test_messages import *  # noqa: F403
from tests.support.gateway_cluster import GatewayNode, cluster_in_a_thread

__all__ = ["curl", "group", "new_name", "topic"]


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster_in_a_thread(folder, http=HttpSettings(session_timeout_ms=600)) as node:
        yield node
