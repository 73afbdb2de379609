"""Connections that a worker process keeps from task to task. Spark reuses its Python workers, and connecting takes longer than a small
task reads.

Invariant: a :class:`~penstock.client.Cluster` belongs to one thread of one process. A forked worker does not use its parent's. After an
error, it is closed and not used again. When a thread ends, its connections are closed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import sleep
from typing import Final, NamedTuple, TypeVar

from penstock.client.cluster import Cluster, parse_bootstrap
from penstock.client.connection import CONNECT_TIMEOUT_MS, TIMEOUT_MS
from penstock.client.errors import CannotConnect, ClientError, ConnectionLost, NotKafka, RequestTimeout, TlsFailed
from penstock.client.security import ClientSecurity
from penstock.spark.errors import LOG, OptionError
from penstock.spark.options import SparkOptions, options_of
from penstock.spark.security import security_of

T = TypeVar("T")
CLIENT_ID: Final = "penstock-spark"
RETRIES_DEFAULT: Final = 3
RETRY_INTERVAL_MS_DEFAULT: Final = 1_000


class _Key(NamedTuple):
    """Queries for which this is equal share connections."""

    process: int
    bootstrap: str
    client_id: str
    timeout_ms: int
    connect_timeout_ms: int
    security: ClientSecurity


class _Clusters(dict[_Key, Cluster]):
    """The clusters of one thread, closed when it ends: Spark does not say when its threads and processes end."""

    def close(self) -> None:
        while self:
            self.popitem()[1].close()

    def __del__(self) -> None:
        self.close()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.clusters = _Clusters()


_OF_THREAD: Final = _OfThread()


def cluster_for(options: Mapping[str, str]) -> Cluster:
    """The cluster for these options: the same one until an error occurs."""
    key = _key(options_of(options))
    cluster = _OF_THREAD.clusters.get(key)
    if cluster is None:
        try:
            addresses = parse_bootstrap(key.bootstrap)
        except ValueError as error:
            raise OptionError(f"The option kafka.bootstrap.servers: {error}") from None
        cluster = Cluster(
            addresses,
            client_id=key.client_id,
            timeout_ms=key.timeout_ms,
            connect_timeout_ms=key.connect_timeout_ms,
            security=key.security,
        )
        _OF_THREAD.clusters[key] = cluster
    return cluster


def new_cluster(options: Mapping[str, str], client_id: str) -> Cluster:
    """A cluster of its own, which the caller closes."""
    found = options_of(options)
    return Cluster(found.bootstrap, client_id=client_id, security=security_of(found))


def drop(options: Mapping[str, str]) -> None:
    """Close the connections to the cluster of these options. The next use connects again."""
    cluster = _OF_THREAD.clusters.pop(_key(options_of(options)), None)
    if cluster is not None:
        cluster.close()


def drop_all() -> None:
    """Close every connection of this thread."""
    _OF_THREAD.clusters.close()


@contextmanager
def connected(options: Mapping[str, str]) -> Iterator[Cluster]:
    """The cluster for one piece of work. After any error in it, the next piece starts with new connections."""
    try:
        yield cluster_for(options)
    except BaseException:
        drop(options)
        raise


def with_retries(options: Mapping[str, str], attempt: Callable[[Cluster], T]) -> T:
    """Try ``fetchOffset.numRetries`` times, ``fetchOffset.retryIntervalMs`` apart, while the broker cannot be reached.

    Each attempt also waits as the client does: for a broker that restarts, once it was reached.
    """
    options = options_of(options)
    tries = options.integer("fetchOffset.numRetries", RETRIES_DEFAULT, at_least=1)
    interval_ms = options.integer("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS_DEFAULT)
    for left in range(tries - 1, -1, -1):
        try:
            with connected(options) as cluster:
                return attempt(cluster)
        except ClientError as error:
            if not left or not _may_pass(error):
                raise
            LOG.warning("%s; retrying in %d ms, %d more times", error, interval_ms, left)
            sleep(interval_ms / 1000)
    raise AssertionError("The last try returns or raises")


def _may_pass(error: ClientError) -> bool:
    if isinstance(error, NotKafka | TlsFailed):
        return False
    return error.retriable or isinstance(error, CannotConnect | ConnectionLost | RequestTimeout)


def _key(options: SparkOptions) -> _Key:
    prefix = options.get("groupIdPrefix", CLIENT_ID)
    return _Key(
        os.getpid(),
        options.bootstrap,
        options.get("kafka.client.id", prefix),
        options.integer("kafka.request.timeout.ms", TIMEOUT_MS, at_least=1),
        options.integer("kafka.socket.connection.setup.timeout.ms", CONNECT_TIMEOUT_MS, at_least=1),
        security_of(options),
    )
