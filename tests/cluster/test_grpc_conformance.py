"""What holds for gRPC at a broker that is alone holds at every node of a cluster: the same tests, through a node that leads nothing."""

import pytest

from tests.conformance.mq.conftest import client, original, original_code, others, today_code, topic
from tests.conformance.mq.test_groups import *  # noqa: F403 - these are the tests
from tests.conformance.mq.test_original import *  # noqa: F403
from tests.conformance.mq.test_publish_stream import *  # noqa: F403
from tests.conformance.mq.test_queues import *  # noqa: F403
from tests.conformance.mq.test_replay import *  # noqa: F403
from tests.conformance.mq.test_topics import *  # noqa: F403
from tests.support.gateway_cluster import cluster_in_a_thread

__all__ = ["client", "original", "original_code", "others", "today_code", "topic"]

del test_after_a_kill_what_was_acked_is_not_given_again  # noqa: F821 - it kills a broker that is alone


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with cluster_in_a_thread(tmp_path_factory.mktemp("cluster")) as node:
        yield node
