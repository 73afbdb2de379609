"""What a system costs before and beside the work: start, memory, connections, many partitions."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from bench.peers.base import Flush, KafkaProtocolPeer, Peer
from bench.results import Cost
from penstock.bench import batches, frames
from penstock.bench.admin import Admin, connect
from penstock.bench.faults import BenchError
from penstock.bench.frames import PRODUCE_VERSIONS, Acks, Api
from penstock.bench.process_stats import Usage, usage_of
from penstock.bench.raw_client import ProduceCounter
from penstock.bench.workloads import WORKLOADS, Options, run_workload

_CONNECTIONS = 500
_TOPIC_PARTITIONS = 100
_SETTLE_S = 2.0
_MANY_S_MAX = 300.0


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
    """Many partitions that are in use.

    Each gets a record, and after the restart each must say that it still has it: a broker may open a partition only when it is first
    used, and then its metadata alone would show a start that has not happened yet.
    """
    topics = {f"many-{index}": _TOPIC_PARTITIONS for index in range(partitions // _TOPIC_PARTITIONS)}
    begin = time.perf_counter()
    with Admin(peer.bootstrap()) as admin:
        admin.create_topics(list(topics.items()))
        admin.wait_for_topics(topics, seconds_max=_MANY_S_MAX)
        create_s = time.perf_counter() - begin
        _wait_until_served(admin, topics, 0)
        _store_one_in_each(peer, admin, topics)
        fill_s = time.perf_counter() - begin
        filled = usage_of(peer.pid)
    stop_s = peer.stop()
    if peer.was_killed:
        raise BenchError(f"it did not stop by itself in {stop_s:.0f} s, so its next start would be a recovery")
    begin = time.perf_counter()
    ready_s = peer.start()
    with Admin(peer.bootstrap()) as admin:
        _wait_until_served(admin, topics, 1)
    served_s = time.perf_counter() - begin
    usage = _settled(peer)
    return {
        "partitions": sum(topics.values()),
        "create_partitions_s": create_s,
        "fill_partitions_s": fill_s,
        "rss_mb_with_filled_partitions": filled.rss_bytes / 1e6 if filled else None,
        "stop_with_partitions_s": stop_s,
        "ready_with_partitions_s": ready_s,
        "served_with_partitions_s": served_s,
        "rss_mb_with_partitions": usage.rss_bytes / 1e6 if usage else None,
    }


def _wait_until_served(admin: Admin, topics: dict[str, int], records: int) -> None:
    """Wait until every partition says that it ends after `records` records."""
    deadline = time.monotonic() + _MANY_S_MAX
    for name, partitions in topics.items():
        while (ends := admin.ends_of(name, list(range(partitions)))) is None:
            if time.monotonic() > deadline:
                raise BenchError(f"partitions of {name} are not served after {_MANY_S_MAX:.0f} s")
            time.sleep(0.05)
        if len(ends) != partitions or set(ends.values()) != {records}:
            raise BenchError(f"partitions of {name} end at {sorted(set(ends.values()))} instead of {records}")


def _store_one_in_each(peer: KafkaProtocolPeer, admin: Admin, topics: dict[str, int]) -> None:
    version = admin.version_of(Api.PRODUCE, PRODUCE_VERSIONS)
    batch = batches.batch_of([b"v" * 100], int(time.time() * 1000))
    with connect(peer.bootstrap()) as sock:
        sock.settimeout(_MANY_S_MAX)
        for name, partitions in topics.items():
            requests = [frames.produce_request(version, i, name, i, Acks.ALL, batch) for i in range(partitions)]
            sock.sendall(b"".join(requests))
            counter = ProduceCounter(frames.produce_answer(version, name), partitions)
            answered = 0
            while answered < partitions:
                data = sock.recv(1 << 16)
                if not data:
                    raise BenchError("the broker closed a connection while partitions were filled")
                answered += counter.feed(memoryview(data))
