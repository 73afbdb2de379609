"""What a system costs apart from the load: start, memory, connections, many partitions."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.peers.base import Flush, KafkaProtocolPeer, Peer
from bench.results import Cost
from penstock.bench.context import Case, Endpoints, Options
from penstock.bench.faults import BenchError
from penstock.bench.process_stats import Usage, usage_of
from penstock.bench.run import run_case, select
from penstock.client import Admin, At, Cluster, Producer, list_offsets

_CONNECTIONS = 500
_TOPIC_PARTITIONS = 100
_SETTLE_S = 2.0
_MANY_MS_MAX = 300_000


def measure_cost(kind: type[Peer], home: Path, partitions: int) -> Cost:
    """Start a system with empty data in `home`, measure its cost, and stop it."""
    peer = kind(home, Flush.OS)
    try:
        cold_start_s = peer.start()
        idle = _settled(peer)
        measured: dict[str, float | int | None] = {}
        if isinstance(peer, KafkaProtocolPeer):
            measured |= _with_connections(peer)
            measured |= _after_load(peer)
            if partitions:
                measured |= _with_partitions(peer, partitions)
        return Cost(
            system=peer.name,
            cold_start_s=cold_start_s,
            idle_rss_mb=idle.rss_bytes / 1e6 if idle else None,
            idle_rss_anon_mb=idle.rss_anon_bytes / 1e6 if idle else None,
            **measured,  # type: ignore[arg-type]
        )
    finally:
        peer.stop()
        shutil.rmtree(home, ignore_errors=True)


def _settled(peer: Peer) -> Usage | None:
    # Lazy parts of a start (a JVM's compiler, first snapshots) are over by then.
    time.sleep(_SETTLE_S)
    return usage_of(peer.pid)


def _with_connections(peer: KafkaProtocolPeer) -> dict[str, float | int | None]:
    with ExitStack() as stack:
        for _ in range(_CONNECTIONS):
            stack.enter_context(Cluster([peer.bootstrap()])).describe()
        usage = usage_of(peer.pid)
    return {"connections": _CONNECTIONS, "rss_mb_with_connections": usage.rss_bytes / 1e6 if usage else None}


def _after_load(peer: KafkaProtocolPeer) -> dict[str, float | int | None]:
    """Memory must not grow with the data: write and read some, then look."""
    options = Options(seconds=3.0, warmup_s=0.5, bytes_max=1 << 30)
    produce, fetch = select(["produce-1m", "fetch-1m"])
    endpoints = Endpoints(peer.bootstrap())
    written = run_case(Case(produce, "1"), endpoints, peer.pid, options)
    run_case(Case(fetch), endpoints, peer.pid, options)
    usage = _settled(peer)
    return {
        "load_mb": written.records * options.value_bytes / 1e6,
        "rss_mb_after_load": usage.rss_bytes / 1e6 if usage else None,
        "rss_anon_mb_after_load": usage.rss_anon_bytes / 1e6 if usage else None,
    }


def _with_partitions(peer: KafkaProtocolPeer, partitions: int) -> dict[str, float | int | None]:
    """Many partitions that are in use.

    Each gets a record, and after the restart each must still report it: a broker may open a partition only when it is first
    used, and its metadata alone would then show a start that has not happened yet.
    """
    names = [f"many-{index}" for index in range(partitions // _TOPIC_PARTITIONS)]
    begin = time.perf_counter()
    with Cluster([peer.bootstrap()]) as cluster, Producer(cluster) as producer:
        for name in names:
            Admin(cluster).create_topic(name, partitions=_TOPIC_PARTITIONS)
        _wait_until_served(cluster, names, 0)
        create_s = time.perf_counter() - begin
        for name in names:
            for partition in range(_TOPIC_PARTITIONS):
                producer.send(name, b"v" * 100, partition=partition)
            producer.flush()
        fill_s = time.perf_counter() - begin
        filled = usage_of(peer.pid)
    stop_s = peer.stop()
    if peer.was_killed:
        raise BenchError(f"The system did not stop within {stop_s:.0f} s, so its next start would be a recovery")
    begin = time.perf_counter()
    ready_s = peer.start()
    with Cluster([peer.bootstrap()]) as cluster:
        _wait_until_served(cluster, names, 1)
    served_s = time.perf_counter() - begin
    usage = _settled(peer)
    return {
        "partitions": len(names) * _TOPIC_PARTITIONS,
        "create_partitions_s": create_s,
        "fill_partitions_s": fill_s,
        "rss_mb_with_filled_partitions": filled.rss_bytes / 1e6 if filled else None,
        "stop_with_partitions_s": stop_s,
        "ready_with_partitions_s": ready_s,
        "served_with_partitions_s": served_s,
        "rss_mb_with_partitions": usage.rss_bytes / 1e6 if usage else None,
    }


def _wait_until_served(cluster: Cluster, names: list[str], records: int) -> None:
    """Wait until every partition reports that it ends after `records` records."""
    for name in names:
        places = dict.fromkeys([(name, partition) for partition in range(_TOPIC_PARTITIONS)], At.LATEST)
        ask = partial(list_offsets, cluster, places)
        ends = {found.offset for found in cluster.retry(ask, unknown_topics=True, timeout_ms=_MANY_MS_MAX).values()}
        if ends != {records}:
            raise BenchError(f"Partitions of {name} end at {sorted(ends)} instead of {records}")
