"""Connections that outlive a task."""

import threading
from typing import Never

import pytest

from penstock.client import BrokerRefused, CannotConnect, Cluster, NotKafka
from penstock.spark.connections import cluster_for, connected, drop, drop_all, with_retries
from penstock.spark.errors import OptionError

UNREACHED = "127.0.0.1:1"


def options(bootstrap=UNREACHED, **more):
    return {"kafka.bootstrap.servers": bootstrap, "fetchOffset.retryIntervalMs": "0", **more}


@pytest.fixture(autouse=True)
def fresh():
    yield
    drop_all()


def test_the_same_options_share_a_cluster_and_others_do_not() -> None:
    one = cluster_for(options())
    assert cluster_for(options()) is one
    other = options(**{"kafka.request.timeout.ms": "77"})
    assert cluster_for(other) is not one
    assert cluster_for(other).timeout_ms == 77


def test_a_thread_has_its_own() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(cluster_for(options())))
    thread.start()
    thread.join()
    assert found[0] is not cluster_for(options())


def test_what_a_thread_kept_is_closed_when_it_ends(penstock_broker) -> None:
    opened = []

    def connect() -> None:
        opened.append(cluster_for({"kafka.bootstrap.servers": str(penstock_broker.bootstrap)}).any_connection())

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    assert not opened[0].is_open


def test_after_an_error_connections_are_made_again() -> Never:
    with pytest.raises(KeyError), connected(options()) as first:
        raise KeyError
    assert cluster_for(options()) is not first


def test_dropped_connections_are_closed_and_not_given_out_again() -> None:
    kept, other = cluster_for(options()), cluster_for(options(**{"kafka.client.id": "other"}))
    drop(options())
    assert cluster_for(options()) is not kept
    assert cluster_for(options(**{"kafka.client.id": "other"})) is other


def test_an_invalid_address_is_an_error_of_the_option() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        cluster_for(options("127.0.0.1:0"))


def test_a_broker_that_cannot_be_reached_is_tried_as_often_as_the_option_says() -> None:
    tries = []

    def attempt(cluster: Cluster) -> None:
        tries.append(cluster)
        cluster.describe()

    with pytest.raises(CannotConnect):
        with_retries(options(**{"fetchOffset.numRetries": "4"}), attempt)
    assert len(tries) == 4
    assert len(set(tries)) == 4, "each try begins with new connections"


@pytest.mark.parametrize("error", [BrokerRefused(17), NotKafka("no")])
def test_what_waiting_does_not_cure_is_tried_once(error) -> None:
    tries = []

    def attempt(_) -> Never:
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        with_retries(options(), attempt)
    assert len(tries) == 1
