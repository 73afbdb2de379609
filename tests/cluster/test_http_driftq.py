"""What DriftQ's API promises holds at every node of a cluster: the same tests, through a node that leads nothing."""

from collections.abc import Iterator

import pytest

from tests.conformance.driftq.conftest import driftq, topic
from tests.conformance.driftq.test_leases import *  # noqa: F403 - these are the tests
from tests.conformance.driftq.test_looking import *  # noqa: F403
from tests.conformance.driftq.test_produce import *  # noqa: F403
from tests.conformance.driftq.test_retries import *  # noqa: F403
from tests.support.gateway_cluster import GatewayNode, cluster_in_a_thread

__all__ = ["driftq", "topic"]

del test_a_full_backlog_refuses_until_it_is_consumed  # noqa: F821 - it starts brokers of its own that are alone
del test_many_streams_at_once_each_get_what_is_theirs  # noqa: F821 - one stream is carried as a hundred are


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    with cluster_in_a_thread(tmp_path_factory.mktemp("cluster")) as node:
        yield node
