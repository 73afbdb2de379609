"""How long writes are interrupted when the leader of a partition is killed or stopped.

A producer of librdkafka (idempotent, acks=all) writes one record after the other without a pause. A gap is the time between the last acknowledgement
before the node ended and the first one after it, of records that were sent in between or after.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.cluster.systems import NODES, System
from bench.saying import say
from penstock.bench.faults import BenchError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TOPIC = "failover"
_SECONDS_MAX = 90.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps of one system and one way to end, in seconds."""

    system: str
    how: str
    seconds: list[float]


class _Writing:
    """A thread that writes and records when it was answered."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": 0,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._answered = threading.Condition()
        self._answers: list[float] = []
        self.failed: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write no more."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush(_SECONDS_MAX)

    def wait_for(self, count: int) -> None:
        """Return once this many more were answered."""
        with self._answered:
            goal = len(self._answers) + count
            if not self._answered.wait_for(lambda: len(self._answers) >= goal, _SECONDS_MAX):
                raise BenchError(f"No writes went through for {_SECONDS_MAX:.0f} s")

    def longest_gap(self, since: float) -> float:
        """The longest time without an answer that began before or after a moment, and ended after it."""
        with self._answered:
            around = [at for at in self._answers if at > since - 1.0]
        pairs = [(early, late) for early, late in itertools.pairwise(around) if late > since]
        return max(late - early for early, late in pairs)

    def _run(self) -> None:
        sent = 0
        while not self._stopping.is_set():
            self._producer.produce(TOPIC, b"%d" % sent, partition=0, on_delivery=self._note)
            sent += 1
            # One at a time while all is well; some more while nobody answers.
            self._producer.poll(0.002)
            if len(self._producer) > 200:
                self._producer.poll(0.05)

    def _note(self, error: object, _message: object) -> None:
        with self._answered:
            if error is not None:
                self.failed.append(str(error))
            self._answers.append(time.perf_counter())
            self._answered.notify_all()


def measure(system: System, times: int, *, killed: bool, has_time: Callable[[], bool] = lambda: True) -> Gaps:
    """End the leader again and again, at least once; each returns and is in sync before the next one ends."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": system.bootstrap(), "log_level": 0})
    if TOPIC not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(TOPIC, 1, NODES)])[TOPIC].result(30)
    writing = _Writing(system.bootstrap())
    gaps: list[float] = []
    try:
        for number in range(times):
            if number and not has_time():
                say(f"{system.title}: {number} of {times}, the time is up")
                break
            _wait_in_sync(admin)
            writing.wait_for(200)
            leader = _leader(admin)
            node = system.nodes[leader]
            went = time.perf_counter()
            if killed:
                node.kill()
            else:
                node.stop()
            writing.wait_for(200)
            gaps.append(writing.longest_gap(went))
            say(
                f"{system.title}: node {leader} {'killed' if killed else 'stopped'} ({number + 1} of {times}): {gaps[-1]:.2f} s"
            )
            node.start()
    finally:
        writing.stop()
    if writing.failed:
        raise BenchError(f"{len(writing.failed)} writes failed, first: {writing.failed[0]}")
    return Gaps(system.name, "killed" if killed else "stopped", gaps)


def _leader(admin: AdminClient) -> int:
    leader: int = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader
    return leader


def _wait_in_sync(admin: AdminClient) -> None:
    deadline = time.perf_counter() + _SECONDS_MAX
    while time.perf_counter() < deadline:
        partition = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0]
        if partition.leader >= 0 and len(partition.isrs) == NODES:
            return
        time.sleep(0.1)
    raise BenchError(f"The replicas were not in sync after {_SECONDS_MAX:.0f} s")
