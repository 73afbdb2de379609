"""Every row of the gateways, for a moment, against a real broker: what the load says it did is in the log."""

import http.client
import itertools
import json

import pytest

from penstock.address import parse_address
from penstock.bench.context import Case, Endpoints, Options, RowContext, WorkloadKind
from penstock.bench.gateways.queue import GROUP
from penstock.bench.gateways.workloads import GATEWAY_WORKLOADS
from penstock.bench.kafka import create_topic
from penstock.bench.run import run_case
from penstock.client import Cluster
from penstock.testing.process import BrokerProcess

ANY = "127.0.0.1:0"
MOMENT = Options(seconds=0.2, warmup_s=0.0, value_bytes=100, records_max=200_000)
BY_NAME = {workload.name: workload for workload in GATEWAY_WORKLOADS}
# How many records may be under way when the time is up: they are stored, and not counted.
UNDER_WAY = {
    "http-single": 64,
    "http-v1-single": 64,
    "http-batch-100": 64 * 100,
    "http-ndjson": 100 * 100,
    "tcp-64": 64,
    "tcp-pipelined-1": 10_000,
    "tcp-pipelined-16": 16 * 1000,
    "grpc-unary": 4 * 16,
    "grpc-stream": 4 * 8 * 100,
}
QUEUES = ("queue-1", "queue-batch", "queue-consume")
numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(
        tmp_path_factory.mktemp("broker") / "data", {"log.flush": "os"}, http=ANY, tcp=ANY, grpc=ANY
    ) as process:
        yield process


@pytest.fixture
def endpoints(broker):
    return Endpoints(*(parse_address(broker.addresses[name]) for name in ("kafka", "http", "tcp", "grpc")))


def run_on_a_topic_that_stays(name, endpoints, broker):
    """The row, and what its topic holds afterwards."""
    workload = BY_NAME[name]
    if reason := workload.why_not(endpoints):
        pytest.skip(reason)
    topic_name = f"moment-{next(numbers)}"
    with Cluster([endpoints.kafka]) as cluster:
        topic = create_topic(cluster, topic_name, 1)
        context = RowContext(workload, None, endpoints, cluster, topic, broker.pid, MOMENT)
        return workload.run(context), context.stored(), topic_name


@pytest.mark.parametrize("name", UNDER_WAY)
def test_what_a_row_says_it_produced_is_in_the_log(name, endpoints, broker) -> None:
    row, stored, _ = run_on_a_topic_that_stays(name, endpoints, broker)
    assert 0 < row.records <= stored <= row.records + UNDER_WAY[name]
    assert row.workload == name
    assert row.p50_us > 0
    assert row.broker_cpu_s is not None


@pytest.mark.parametrize("name", QUEUES)
def test_what_a_row_says_it_worked_off_is_finished_in_the_queue(name, endpoints, broker) -> None:
    row, stored, topic = run_on_a_topic_that_stays(name, endpoints, broker)
    connection = http.client.HTTPConnection(*endpoints.http, timeout=30)
    connection.request("GET", f"/v1/queues/{topic}/{GROUP}")
    status = json.loads(connection.getresponse().read())
    connection.close()
    (partition,) = status["partitions"]
    finished = partition["floor"] + partition["finished_above_floor"]
    # An ack under way when the time is up counts in the queue alone: at the most what 16 workers or one stream hold.
    assert 0 < row.records <= finished <= stored
    assert finished <= row.records + 10_000


def test_a_subscription_reads_every_record_that_is_there(endpoints, broker) -> None:
    row, stored, _ = run_on_a_topic_that_stays("grpc-subscribe-batch", endpoints, broker)
    assert row.records > 0
    assert stored > 0


@pytest.mark.parametrize("name", [one.name for one in GATEWAY_WORKLOADS if one.kind is WorkloadKind.DELIVERY])
def test_every_record_is_delivered_to_a_live_consumer(name, endpoints, broker) -> None:
    row, stored, _ = run_on_a_topic_that_stays(name, endpoints, broker)
    assert row.records == stored == 200
    assert 0 < row.p50_us <= row.p99_us


def test_a_row_s_own_topic_is_gone_afterwards(endpoints, broker) -> None:
    run_case(Case(BY_NAME["tcp-64"]), endpoints, broker.pid, MOMENT)
    connection = http.client.HTTPConnection(*endpoints.http, timeout=30)
    connection.request("GET", "/v1/topics")
    names = json.loads(connection.getresponse().read())["topics"]
    connection.close()
    assert [name for name in names if name.startswith("bench-")] == []
