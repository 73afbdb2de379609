"""What a system costs before and beside the work: start, memory, connections, many partitions."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from bench.peers.base import Flush, KafkaProtocolPeer, Peer
from bench.results import Cost
from penstock.bench.admin import Admin
from penstock.bench.frames import Acks
from penstock.bench.process_stats import Usage, usage_of
from penstock.bench.workloads import WORKLOADS, Options, run_workload

_CONNECTIONS = 500
_TOPIC_PARTITIONS = 100
_SETTLE_S = 2.0


def measure_cost(kind: type[Peer], home: Path, partitions: int) -> Cost:
    """Start a system anew in `home`, look at it from all sides, and stop it."""
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
            stack.enter_context(Admin(peer.bootstrap())).brokers()
        usage = usage_of(peer.pid)
    return {"connections": _CONNECTIONS, "rss_mb_with_connections": usage.rss_bytes / 1e6 if usage else None}


def _after_load(peer: KafkaProtocolPeer) -> dict[str, float | int | None]:
    """Memory must not grow with the data: write and read some, then look."""
    options = Options(seconds=3.0, warmup_s=0.5, bytes_max=1 << 30)
    by_name = {workload.name: workload for workload in WORKLOADS}
    written = run_workload(by_name["produce-1m"], Acks.LEADER, peer.bootstrap(), peer.pid, options)
    run_workload(by_name["fetch-1m"], None, peer.bootstrap(), peer.pid, options)
    usage = _settled(peer)
    return {
        "load_mb": written.records * options.value_bytes / 1e6,
        "rss_mb_after_load": usage.rss_bytes / 1e6 if usage else None,
        "rss_anon_mb_after_load": usage.rss_anon_bytes / 1e6 if usage else None,
    }


def _with_partitions(peer: KafkaProtocolPeer, partitions: int) -> dict[str, float | int | None]:
    topics = {f"many-{index}": _TOPIC_PARTITIONS for index in range(partitions // _TOPIC_PARTITIONS)}
    begin = time.perf_counter()
    with Admin(peer.bootstrap()) as admin:
        admin.create_topics(list(topics.items()))
        admin.wait_for_topics(topics, seconds_max=300)
    create_s = time.perf_counter() - begin
    stop_s = peer.stop()
    begin = time.perf_counter()
    peer.start()
    with Admin(peer.bootstrap()) as admin:
        admin.wait_for_topics(topics, seconds_max=300)
    start_s = time.perf_counter() - begin
    usage = _settled(peer)
    return {
        "partitions": sum(topics.values()),
        "create_partitions_s": create_s,
        "stop_with_partitions_s": stop_s,
        "start_with_partitions_s": start_s,
        "rss_mb_with_partitions": usage.rss_bytes / 1e6 if usage else None,
    }
