"""The pytest plugin and the helpers that users get, as users use them."""

import subprocess
import sys
import threading
import time

import confluent_kafka
import pytest

from penstock.client import Cluster
from penstock.testing.broker import BrokerThread
from penstock.testing.secure import SecureBroker
from tests.support.clients import CONSUMERS, PRODUCERS, Record

SECONDS_MAX = 60


def test_the_fixture_is_a_real_broker(penstock_broker) -> None:
    PRODUCERS["confluent"](penstock_broker.bootstrap, "fixture", [Record(b"v")])
    assert [r.value for r in CONSUMERS["kafka-python"](penstock_broker.bootstrap, "fixture", 1)] == [b"v"]
    assert penstock_broker.data_dir.is_dir()


def test_the_fixture_is_the_same_broker_for_the_whole_run(penstock_broker, request) -> None:
    assert request.getfixturevalue("penstock_broker") is penstock_broker


def test_the_factory_starts_brokers_with_settings_of_their_own(penstock_broker_factory) -> None:
    one = penstock_broker_factory({"topics.partitions": 3})
    two = penstock_broker_factory()
    assert one.bootstrap != two.bootstrap
    PRODUCERS["confluent"](one.bootstrap, "t", [Record(b"v", partition=2)])
    assert [r.value for r in CONSUMERS["confluent"](one.bootstrap, "t", 1, partition=2)] == [b"v"]


def test_a_restart_keeps_the_data_and_the_port(penstock_broker_factory) -> None:
    broker = penstock_broker_factory()
    PRODUCERS["confluent"](broker.bootstrap, "t", [Record(b"v")])
    before = broker.bootstrap
    broker.restart()
    assert broker.bootstrap == before
    assert [r.value for r in CONSUMERS["confluent"](broker.bootstrap, "t", 1)] == [b"v"]


def test_a_broker_is_a_context_manager_and_stops_twice_without_harm(tmp_path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        assert broker.running
        broker.stop()
    assert not broker.running


def test_a_broker_that_cannot_start_raises_why(tmp_path) -> None:
    with BrokerThread(tmp_path / "data"), pytest.raises(Exception, match="data"):
        BrokerThread(tmp_path / "data").start()


def test_a_setting_that_is_not_known_is_an_error(tmp_path) -> None:
    with pytest.raises(Exception, match=r"topics\.partitons"):
        BrokerThread(tmp_path / "data", {"topics.partitons": 3}).start()


def test_an_address_that_is_not_there_is_an_error(tmp_path) -> None:
    with BrokerThread(tmp_path / "data") as broker, pytest.raises(RuntimeError, match="http"):
        broker.address("http")


def test_loading_the_plugin_imports_nothing_of_the_broker() -> None:
    """Every pytest run of every project that has Penstock installed pays for this import."""
    program = (
        "import sys, penstock.testing.plugin; "
        "print([m for m in sys.modules if m.startswith('penstock') or m in ('uvloop', 'msgspec', 'sqlite3', 'asyncio')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import pytest; {program}"], capture_output=True, text=True, check=True
    )
    loaded = {name for name in eval(done.stdout) if name.startswith("penstock")}
    assert loaded == {"penstock", "penstock.testing", "penstock.testing.plugin"}


def test_the_secure_broker_takes_its_user_and_nobody_else(penstock_secure_broker) -> None:
    config = penstock_secure_broker.librdkafka_config()
    producer = confluent_kafka.Producer(config)
    producer.produce("secure-fixture", b"v")
    assert producer.flush(SECONDS_MAX) == 0
    consumer = confluent_kafka.Consumer({**config, "group.id": "secure", "auto.offset.reset": "earliest"})
    consumer.subscribe(["secure-fixture"])
    assert [message.value() for message in consumer.consume(1, SECONDS_MAX)] == [b"v"]
    consumer.close()
    refused = threading.Event()
    wrong = {
        **config,
        "sasl.password": "wrong",
        "error_cb": lambda error: error.code() == confluent_kafka.KafkaError._AUTHENTICATION and refused.set(),
    }
    stranger = confluent_kafka.Producer(wrong)
    deadline = time.monotonic() + SECONDS_MAX
    while not refused.is_set() and time.monotonic() < deadline:
        stranger.poll(0.1)
    assert refused.is_set()


def test_a_secure_broker_keeps_its_user_over_a_restart(tmp_path) -> None:
    with SecureBroker(tmp_path) as broker:
        broker.restart()
        with Cluster(broker.bootstrap, security=broker.security) as cluster:
            assert cluster.describe().nodes
