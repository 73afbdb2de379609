"""`python -m bench.cluster.scaling`: the constants of the capacity model in `docs/scaling.md`, measured on three nodes with one member of etcd.

Node 1 leads all of the measured partitions, node 2 follows them, and node 3 only knows of them, so that each role is a process of its own. A kill of
node 1 is then a failover of all of them at once, and its return is as many changes of in-sync sets.

Invariant: everything that is started is stopped, and all files are in one temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bench.cluster.systems import PenstockCluster
from bench.peers.base import Flush, Peer
from bench.peers.penstock import Penstock
from bench.results import table
from bench.saying import machine, save, say
from penstock.bench.context import Options
from penstock.bench.faults import BenchError
from penstock.bench.process_stats import usage_of
from penstock.client import Cluster
from penstock.client.moves import Moves
from penstock.client.status import StatusClient
from penstock.core.cluster.decisions import decide_all
from penstock.core.topics.records import PartitionRecord, TopicRecord, encode, partition_key, topic_key
from penstock.core.topics.topics import Topics
from penstock.metadata.etcd.store import OPERATIONS_MAX, EtcdStore
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Put
from penstock.operations.cluster import ClusterDescription
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_LEADER, _FOLLOWER, _BYSTANDER = 1, 2, 3
_ROLES = {"node 1": "as leader", "node 2": "as follower", "node 3": "where it is not"}
_SECONDS_MAX = 180.0
_SETTLE_S = 2.0
_LOOK_S, _LOOK_SHARE = 0.05, 4
_PARTITIONS_A_TOPIC = 5_000
_SAMPLES = 16
"""Partitions that are written to while their leader goes."""
_ABSENT = range(1001, 1101)
"""Nodes that there are not: their partitions are known to all, and had by nobody."""
_VALUE_BYTES = 1024
_PUTS, _SENT = "etcd_mvcc_put_total", "etcd_network_client_grpc_sent_bytes_total"
_SIZE = "etcd_mvcc_db_total_size_in_use_in_bytes"


@dataclass(slots=True)
class Row:
    """One number, what it is of, and what it was measured with."""

    what: str
    of: str
    value: float
    unit: str


@dataclass(slots=True)
class ScalingReport:
    """What a run found."""

    machine: dict[str, str | int | float]
    rows: list[Row] = field(default_factory=list)

    def add(self, what: str, of: str, value: float, unit: str) -> None:
        """Note one, and say it."""
        self.rows.append(Row(what, of, value, unit))
        say(f"{what}, {of}: {value:,.3g} {unit}")


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one process at one moment."""

    cpu_s: float
    rss_anon_bytes: int
    descriptors: int


class Bench:
    """Three nodes, and how to look at them."""

    def __init__(self, system: PenstockCluster) -> None:
        from confluent_kafka.admin import AdminClient

        self.system = system
        self.many: list[tuple[str, int]] = []
        """The measured partitions."""
        self.admin: AdminClient = AdminClient({"bootstrap.servers": system.bootstrap(), "log_level": 0})

    def peers(self) -> dict[str, Peer]:
        """The processes by name."""
        nodes: dict[str, Peer] = {f"node {number}": node for number, node in self.system.nodes.items()}
        return nodes | {"etcd": self.system.etcd}

    def read(self) -> dict[str, Reading]:
        """Of every process."""
        return {name: _reading(peer.pid) for name, peer in self.peers().items()}

    def settled(self) -> dict[str, Reading]:
        """The same after a moment in which what was asked for can come to its end."""
        time.sleep(_SETTLE_S)
        return self.read()

    def status(self, number: int = _BYSTANDER) -> ClusterDescription:
        """As a node knows it."""
        node = self.system.nodes[number]
        assert isinstance(node, Penstock)
        with StatusClient(str(node.endpoints().http), timeout_ms=60_000) as client:
            return client.cluster()

    def etcd(self) -> dict[str, float]:
        """Its own counters, and the size of its database."""
        with urllib.request.urlopen(f"http://{self.system.etcd.client}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = {name: re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in (_PUTS, _SENT, _SIZE)}
        return {name: float(each[1]) for name, each in found.items() if each}

    def create(self, name: str, partitions: int, replicas: list[int]) -> None:
        """A topic whose partitions all have these replicas; one that is left of two takes writes."""
        from confluent_kafka.admin import NewTopic

        in_sync = str(max(1, len(replicas) - 1))
        topic = NewTopic(
            name, partitions, replica_assignment=[replicas] * partitions, config={"min.insync.replicas": in_sync}
        )
        self.admin.create_topics([topic], request_timeout=120)[name].result(120)

    def wait(self, what: str, holds: Callable[[ClusterDescription], bool]) -> float:
        """Seconds until the status is as wanted."""
        began = time.perf_counter()
        while time.perf_counter() - began < _SECONDS_MAX:
            asked = time.perf_counter()
            if holds(self.status()):
                return time.perf_counter() - began
            # With very many partitions the status takes the node some time, which must not become its main work.
            time.sleep(max(_LOOK_S, _LOOK_SHARE * (time.perf_counter() - asked)))
        raise BenchError(f"Timed out after {_SECONDS_MAX:.0f} s: {what}")

    def leads(self, status: ClusterDescription, number: int) -> int:
        """How many partitions a node leads."""
        return next((node.leads for node in status.nodes if node.node == number), 0)


def _reading(pid: int) -> Reading:
    usage = usage_of(pid)
    if usage is None:
        raise BenchError(f"Cannot inspect process {pid}: this requires /proc")
    return Reading(usage.cpu_s, usage.rss_anon_bytes, len(list(Path(f"/proc/{pid}/fd").iterdir())))


@contextmanager
def _running() -> Iterator[Bench]:
    home = Path(tempfile.mkdtemp(prefix="penstock-scaling-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        system = PenstockCluster(home, Flush.SYNC)
        for node in system.nodes.values():
            assert isinstance(node, Penstock)
            node.others = "127.0.0.1:0"
            node.ready_s_max = _SECONDS_MAX
        stack.callback(system.stop)
        system.start()
        bench = Bench(system)
        bench.wait(
            "all replicas are in sync", lambda status: not status.under_replicated_count and status.partitions > 0
        )
        yield bench


# Partitions.


def partitions(bench: Bench, counts: list[int], idle_s: float, report: ScalingReport) -> None:
    """More and more of them on one node: what they cost, and how long it takes until another one leads all of them."""
    had = 0
    for count in counts:
        _grow(bench, had, count, report)
        had = count
        _idle(bench, count, idle_s, report)
        _failover(bench, count, report)
        _return(bench, count, report)


def _grow(bench: Bench, had: int, count: int, report: ScalingReport) -> None:
    before, etcd_before, known, began = bench.settled(), bench.etcd(), bench.status().partitions, time.perf_counter()
    new = []
    for first in range(had, count, _PARTITIONS_A_TOPIC):
        some = min(_PARTITIONS_A_TOPIC, count - first)
        bench.create(f"many-{first}", some, [_LEADER, _FOLLOWER])
        new += [(f"many-{first}", index) for index in range(some)]
    bench.wait("all are there", lambda status: status.partitions >= known + len(new) and not status.offline_count)
    size = f"{len(new):,} partitions more"
    report.add("made in", size, time.perf_counter() - began, "s")
    empty, etcd_after = bench.settled(), bench.etcd()
    report.add("etcd: puts each", size, _grown(etcd_before, etcd_after, _PUTS) / len(new), "")
    report.add("etcd: size each", size, _grown(etcd_before, etcd_after, _SIZE) / len(new), "bytes")
    began = time.perf_counter()
    _write_one_each(bench, new)
    report.add("a first record in each, copied and synced, in", size, time.perf_counter() - began, "s")
    used = bench.settled()
    for name, role in _ROLES.items():
        memory = [(each[name].rss_anon_bytes - before[name].rss_anon_bytes) / len(new) / 1024 for each in (empty, used)]
        report.add(f"memory each, empty, {role}", size, memory[0], "KiB")
        report.add(f"memory each, with a record in it, {role}", size, memory[1], "KiB")
        opened = (used[name].descriptors - before[name].descriptors) / len(new)
        report.add(f"descriptors each, with a record in it, {role}", size, opened, "")
    bench.many += new


def _write_one_each(bench: Bench, places: list[tuple[str, int]]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bench.system.bootstrap(), "acks": "all", "log_level": 0})
    for topic, index in places:
        producer.produce(topic, b"first", partition=index)
        producer.poll(0)
    if producer.flush(_SECONDS_MAX):
        raise BenchError(f"Not all of {len(places)} partitions took a record")


def _idle(bench: Bench, count: int, idle_s: float, report: ScalingReport) -> None:
    before, began = bench.read(), time.perf_counter()
    time.sleep(idle_s)
    after, seconds = bench.read(), time.perf_counter() - began
    for name, reading in after.items():
        report.add(
            f"idle CPU of {name}",
            f"{count:,} partitions",
            (reading.cpu_s - before[name].cpu_s) / seconds * 100,
            "% of a core",
        )


def _failover(bench: Bench, count: int, report: ScalingReport, beside: str = "") -> None:
    from confluent_kafka import Producer

    etcd_before, size = bench.etcd(), f"{count:,} partitions led{beside}"
    producer = Producer({"bootstrap.servers": bench.system.bootstrap(), "acks": "1", "linger.ms": 0, "retry.backoff.ms": 20,
                         "retry.backoff.max.ms": 100, "reconnect.backoff.max.ms": 100, "log_level": 0})  # fmt: skip
    places = bench.many[:: max(1, count // _SAMPLES)]
    # The producer knows the leaders before they go.
    for topic, index in places:
        producer.produce(topic, b"before", partition=index)
    producer.flush(60)
    written: list[float] = []
    began = time.perf_counter()
    bench.system.kill(_LEADER)
    for topic, index in places:
        producer.produce(topic, b"after", partition=index, on_delivery=lambda *_: written.append(time.perf_counter()))
    led = bench.wait("node 2 leads them", lambda status: bench.leads(status, _FOLLOWER) >= count)
    producer.flush(_SECONDS_MAX)
    if len(written) < len(places):
        raise BenchError(
            f"{len(places) - len(written)} of {len(places)} partitions took no write after their leader was killed"
        )
    report.add("killed: all have a leader after", size, led, "s")
    report.add("killed: the first write goes through after", size, min(written) - began, "s")
    report.add("killed: the last of the sampled writes after", size, max(written) - began, "s")
    etcd_after = bench.etcd()
    report.add("killed: puts in etcd for each", size, _grown(etcd_before, etcd_after, _PUTS) / count, "")
    report.add(
        "killed: bytes that etcd sends for each, to all nodes",
        size,
        _grown(etcd_before, etcd_after, _SENT) / count,
        "bytes",
    )


def _return(bench: Bench, count: int, report: ScalingReport) -> None:
    size = f"{count:,} partitions"
    etcd_before = bench.etcd()
    seconds = bench.system.nodes[_LEADER].start()
    report.add("a killed node is ready again after", size, seconds, "s")
    report.add("and has used", size, _reading(bench.system.nodes[_LEADER].pid).cpu_s, "s of CPU")
    in_sync = bench.wait("all are in sync again", lambda status: not status.under_replicated_count)
    report.add("and is in sync with all after", size, in_sync, "s more")
    changes = _grown(etcd_before, bench.etcd(), _PUTS)
    report.add("its return: puts in etcd for each", size, changes / count, "")
    began = time.perf_counter()
    with Cluster(bench.system.bootstrap(), timeout_ms=120_000) as cluster:
        Moves(cluster).elect(None)
    bench.wait("node 1 leads again", lambda status: bench.leads(status, _LEADER) >= count)
    report.add("leadership is given back, asked for, in", size, time.perf_counter() - began, "s")


def _grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before[name]


# Everybody's image.


def image(bench: Bench, count: int, idle_s: float, fresh: Reading, report: ScalingReport) -> None:
    """Partitions that no node has, as the other nodes of a large cluster have them: what knowing of them costs.

    ``fresh`` is node 3 when it had just started.
    """
    size, before, etcd_before = f"{count:,} partitions elsewhere", bench.read(), bench.etcd()
    known, began = bench.status().partitions, time.perf_counter()
    transactions = asyncio.run(_write_image(bench, count))
    wrote = time.perf_counter() - began
    bench.wait("node 3 knows of all", lambda status: status.partitions >= known + count)
    after, etcd_after = bench.read(), bench.etcd()
    report.add(f"etcd: transactions of {OPERATIONS_MAX}, one after the other", size, transactions / wrote, "a second")
    report.add("etcd: size each", size, _grown(etcd_before, etcd_after, _SIZE) / count, "bytes")
    report.add(
        "etcd: bytes sent for each, to four watchers", size, _grown(etcd_before, etcd_after, _SENT) / count, "bytes"
    )
    for name, reading in after.items():
        report.add(f"CPU each in {name}", size, (reading.cpu_s - before[name].cpu_s) / count * 1e6, "us")
    memory = after["etcd"].rss_anon_bytes - before["etcd"].rss_anon_bytes
    report.add("memory each in etcd", size, memory / count / 1024, "KiB")
    _idle(bench, bench.status().partitions, idle_s, report)
    node = bench.system.nodes[_BYSTANDER]
    node.stop()
    report.add("a node that has none of them is ready after", size, node.start(), "s")
    report.add("and has used", size, _reading(node.pid).cpu_s, "s of CPU")
    # Only a new process shows what they take: an older one has room left from what it did before.
    taken = bench.settled()[f"node {_BYSTANDER}"].rss_anon_bytes - fresh.rss_anon_bytes
    report.add("memory each in a node that has none of them", size, taken / (count + len(bench.many)) / 1024, "KiB")
    _failover(bench, len(bench.many), report, f", {count:,} more elsewhere")


async def _write_image(bench: Bench, count: int) -> int:
    """The records of partitions, as a controller would write them; how many transactions."""
    store = await EtcdStore.open("bench", [bench.system.etcd.client])
    transactions = 0
    try:
        for first in range(0, count, _PARTITIONS_A_TOPIC):
            topic_id, some = uuid.uuid4(), min(_PARTITIONS_A_TOPIC, count - first)
            puts = [Put(partition_key(topic_id, index), encode(_absent(first + index))) for index in range(some)]
            for at in range(0, some, OPERATIONS_MAX):
                await store.txn([], puts[at : at + OPERATIONS_MAX])
                transactions += 1
            topic = TopicRecord(topic_id, some, 3, 0, 0)
            await store.txn([], [Put(topic_key(f"elsewhere-{first}"), encode(topic))])
    finally:
        await store.close()
    return transactions


def _absent(place: int) -> PartitionRecord:
    """Three replicas, placed as a cluster of a hundred nodes places them. Nobody leads, so that nobody decides anything."""
    turn, step = place % len(_ABSENT), place // len(_ABSENT) % (len(_ABSENT) - 2)
    replicas = tuple(_ABSENT[(turn + more) % len(_ABSENT)] for more in (0, 1 + step, 2 + step))
    return PartitionRecord(-1, 1, replicas, (), elr=replicas[:1])


def looking(count: int, report: ScalingReport) -> None:
    """What it costs a controller to look at every partition, which it does whenever a node comes or goes. In this process."""
    live, image = (
        {node: node for node in _ABSENT},
        Topics(store := MemoryStore(), SystemClock(), SystemEntropy(), Settings()),
    )
    asyncio.run(_fill(store, image, count))
    places = [(topic, index) for topic in image for index in range(topic.partition_count)]
    began = time.process_time()
    decided = decide_all(image, places, live, ())
    seconds = time.process_time() - began
    assert not decided, "all of them are led"
    report.add("a controller looks at one partition in", f"{count:,} partitions", seconds / count * 1e6, "us of CPU")


async def _fill(store: MemoryStore, image: Topics, count: int) -> None:
    topic_id = uuid.uuid4()
    for index in range(count):
        record = _absent(index)
        isr, leader = tuple((node, node) for node in record.replicas), record.replicas[0]
        led = replace(record, leader=leader, leader_node_epoch=leader, isr=isr, elr=())
        await store.txn([], [Put(partition_key(topic_id, index), encode(led))])
    await store.txn([], [Put(topic_key("looked-at"), encode(TopicRecord(topic_id, count, 3, 0, 0)))])
    await image.load()


# Bytes.


def bytes_(bench: Bench, total: int, report: ScalingReport) -> None:
    """What it costs to take, keep and copy bytes: CPU of the leader and of a follower, with small batches and with large ones."""
    for replicas, batch_bytes in (([1], 16_384), ([1, 2, 3], 16_384), ([1], 1_000_000), ([1, 2, 3], 1_000_000)):
        name = f"bytes-{len(replicas)}-{batch_bytes}"
        bench.create(name, 1, replicas)
        bench.wait("it is in sync", lambda status: not status.under_replicated_count)
        before, began = bench.read(), time.perf_counter()
        _produce(bench, name, total, batch_bytes)
        seconds, after = time.perf_counter() - began, bench.read()
        size = f"{len(replicas)} replica{'s' if len(replicas) > 1 else ''}, batches of {batch_bytes // 1000} kB"
        report.add("bytes taken with acks=all", size, total / seconds / 1e6, "MB/s")
        for number in replicas:
            used = after[f"node {number}"].cpu_s - before[f"node {number}"].cpu_s
            report.add(
                f"CPU of the {'leader' if number == 1 else 'follower'}, node {number}",
                size,
                used / (total / 1e9),
                "s a GB",
            )


def _produce(bench: Bench, topic: str, total: int, batch_bytes: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bench.system.bootstrap(), "acks": "all", "linger.ms": 5, "batch.size": batch_bytes,
                         "queue.buffering.max.messages": 50_000, "max.in.flight.requests.per.connection": 5, "log_level": 0})  # fmt: skip
    failed: list[str] = []
    value = os.urandom(_VALUE_BYTES)

    def note(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    for _ in range(total // _VALUE_BYTES):
        while True:
            try:
                producer.produce(topic, value, on_delivery=note)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    producer.flush(_SECONDS_MAX)
    if failed:
        raise BenchError(f"{len(failed)} records were not taken, the first: {failed[0]}")


# The run.


def markdown(report: ScalingReport) -> str:
    """The table."""
    about = "".join(f"- {name}: {value}\n" for name, value in report.machine.items() if name != "method")
    rows = [[row.what, row.of, f"{row.value:,.3g} {row.unit}".strip()] for row in report.rows]
    return f"# Constants of the capacity model\n\n{about}\n{table(['what', 'of', 'value'], rows)}"


def _counts(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def main() -> int:
    """Exit code 0 when everything was measured, 1 when something failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.scaling", description=__doc__)
    parser.add_argument(
        "--partitions", type=_counts, default=[100, 1_000, 5_000], help="led by one node; each goes through a failover"
    )
    parser.add_argument(
        "--elsewhere", type=int, default=100_000, help="partitions that the nodes only know of; 0 leaves them out"
    )
    parser.add_argument(
        "--bytes", type=int, default=200_000_000, help="written for each row of bytes; 0 leaves them out"
    )
    parser.add_argument("--idle", type=float, default=10.0, help="seconds in which nothing happens, each time")
    given = parser.parse_args()
    if (reason := PenstockCluster.why_missing()) is not None:
        parser.error(reason)
    # On SIGTERM it still stops what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report, code = ScalingReport(machine(0, 0, Options())), 0
    try:
        looking(50_000, report)
        with _running() as bench:
            fresh = bench.settled()[f"node {_BYSTANDER}"]
            if given.bytes:
                bytes_(bench, given.bytes, report)
            partitions(bench, given.partitions, given.idle, report)
            if given.elsewhere:
                image(bench, given.elsewhere, given.idle, fresh, report)
    except BenchError as error:
        say(f"FAILED {error}")
        code = 1
    report.machine["load after"] = f"{os.getloadavg()[0]:.2f}"
    tables = markdown(report)
    written = save(report, tables, "-scaling")
    print(tables)
    say(f"written to {written[0]} and {written[1]}")
    return code


if __name__ == "__main__":
    sys.exit(main())
