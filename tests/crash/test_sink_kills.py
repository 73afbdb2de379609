"""SIGKILL in a loop under a driver that stages and commits, over the network: every record of every batch is there once, in order.

``CRASH_ROUNDS=200`` makes a long run.
"""

import random
import threading
import time
from pathlib import Path

import pytest

from penstock.client import (
    Admin,
    At,
    BatchSender,
    ClientError,
    Cluster,
    Consumer,
    SinkClient,
    StagedPart,
    http_addresses,
    list_offsets,
)
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.testing.process import BrokerProcess
from tests.crash.conftest import ROUNDS, SETTINGS

TOPIC, SINK = "out", "query.0"
PARTITIONS = 2
BATCHES_PER_PARTITION = 8
"""In each batch of the query: more than a log remembers of a producer."""
RECORDS = 5
NOW_MS = int(time.time() * 1000)


class Driver(threading.Thread):
    """A query that never ends: when the broker is gone it comes back, asks for the last batch, and goes on behind it."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._rng = random.Random(seed)
        self.committing = threading.Event()
        """Set when a commit is about to be asked for."""
        self.over = threading.Event()
        self.answered = -1
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with (
                    Cluster(self._servers, timeout_ms=5_000) as cluster,
                    SinkClient(http_addresses(cluster), timeout_ms=5_000) as sinks,
                ):
                    self._work(cluster, sinks)
            except ClientError:
                continue

    def _work(self, cluster: Cluster, sinks: SinkClient) -> None:
        opened = sinks.open(SINK)
        last = -1 if opened.last_batch_id is None else opened.last_batch_id
        if last < self.answered:
            self.wrong.append(f"batch {self.answered} was answered, and {last} is the last one")
        sender = BatchSender(cluster)
        while not self.over.is_set():
            last += 1
            plan = [(p, n) for p in range(PARTITIONS) for n in range(BATCHES_PER_PARTITION)]
            # Tasks end in any order; within a partition the parts say which comes first.
            self._rng.shuffle(plan)
            for partition, number in plan:
                sender.send(opened.staging_topic, 0, _numbered(last, partition, number), RECORDS)
            placed = dict(zip(plan, sender.flush(), strict=True))
            parts = [
                StagedPart(TOPIC, p, [(0, placed[p, n].base_offset, RECORDS) for n in range(BATCHES_PER_PARTITION)])
                for p in range(PARTITIONS)
            ]
            self.committing.set()
            sinks.commit(SINK, last, parts, staging_id=opened.staging_id)
            self.answered = last


def _numbered(batch_id: int, partition: int, number: int) -> bytearray:
    return build_batch(
        [Record(n, NOW_MS, b"k", b"%d/%d/%d/%d" % (batch_id, partition, number, n)) for n in range(RECORDS)]
    )


def read_all(bootstrap: str, partition: int) -> list[bytes | None]:
    with Cluster(bootstrap) as cluster:
        consumer = Consumer(cluster)
        consumer.assign({(TOPIC, partition): 0})
        end = list_offsets(cluster, {(TOPIC, partition): At.LATEST})[TOPIC, partition].offset
        found: list[bytes | None] = []
        while len(found) < end:
            found += [record.value for record in consumer.poll(timeout_ms=1000)]
        return found


def check_sink(bootstrap: str, driver: Driver) -> None:
    """Stop the driver; what was committed is there once, in order."""
    driver.over.set()
    driver.join(60)
    assert not driver.is_alive()
    assert driver.wrong == []
    with Cluster(bootstrap) as cluster, SinkClient(http_addresses(cluster)) as sinks:
        last = sinks.open(SINK).last_batch_id
    assert last is not None
    assert last >= driver.answered
    for partition in range(PARTITIONS):
        assert read_all(bootstrap, partition) == [
            b"%d/%d/%d/%d" % (batch_id, partition, number, n)
            for batch_id in range(last + 1)
            for number in range(BATCHES_PER_PARTITION)
            for n in range(RECORDS)
        ]


@pytest.mark.timeout(120 + 30 * ROUNDS)
@pytest.mark.parametrize("flush", ["sync", "os"])
def test_kills_lose_and_double_nothing_that_a_sink_commits(tmp_path: Path, flush: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = ROUNDS if flush == "sync" else max(2, ROUNDS // 4)
    settings = {**SETTINGS, "log.flush": flush, "topic_defaults.segment.bytes": 20_000}
    with BrokerProcess(tmp_path / "data", settings, http="127.0.0.1:0") as broker:
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS)
        driver = Driver(broker.bootstrap, seed)
        driver.start()
        for _ in range(rounds):
            for _ in range(rng.randrange(1, 6)):
                driver.committing.clear()
                assert driver.committing.wait(60), "the driver gets nowhere"
            broker.kill()
            broker.start()
        driver.committing.clear()
        assert driver.committing.wait(60), "the driver gets nowhere"
        check_sink(broker.bootstrap, driver)
        assert driver.answered >= rounds
