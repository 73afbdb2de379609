"""What holds for JSON lines at a broker that is alone holds at every node of a cluster: the same tests, through a node that leads nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.settings import TcpSettings
from tests.conformance.tinymq.conftest import (
    IMPATIENT_MS,
    LINE_BYTES_MAX,
    SESSION_MS,
    address,
    group,
    other,
    tinymq,
    topic,
)
from tests.conformance.tinymq.test_groups import *  # noqa: F403 - these are the tests
from tests.conformance.tinymq.test_pipelining import (
    test_a_client_that_has_said_all_gets_its_answers_before_the_connection_ends,
    test_a_topic_can_be_made_used_and_deleted_in_one_go,
    test_lines_of_all_kinds_are_answered_in_their_order_as_if_one_at_a_time,
    test_ten_thousand_lines_sent_without_reading_get_ten_thousand_answers_in_order,
)
from tests.conformance.tinymq.test_transcript import *  # noqa: F403
from tests.support.gateway_cluster import GatewayNode, cluster_in_a_thread

__all__ = [
    "address",
    "group",
    "other",
    "test_a_client_that_has_said_all_gets_its_answers_before_the_connection_ends",
    "test_a_topic_can_be_made_used_and_deleted_in_one_go",
    "test_lines_of_all_kinds_are_answered_in_their_order_as_if_one_at_a_time",
    "test_ten_thousand_lines_sent_without_reading_get_ten_thousand_answers_in_order",
    "tinymq",
    "topic",
]


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    tcp = TcpSettings(line_bytes_max=LINE_BYTES_MAX, session_timeout_ms=SESSION_MS)
    with cluster_in_a_thread(tmp_path_factory.mktemp("cluster"), tcp=tcp) as node:
        yield node


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[GatewayNode]:
    with cluster_in_a_thread(tmp_path, tcp=TcpSettings(session_timeout_ms=IMPATIENT_MS)) as node:
        yield node
