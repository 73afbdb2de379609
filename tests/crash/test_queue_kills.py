"""SIGKILL in a loop under queue load, over HTTP: no acked record comes again, no attempt is forgotten, no dead letter is lost or doubled.

``CRASH_ROUNDS=200`` makes a long run.
"""

import random
from pathlib import Path

import pytest

from penstock.testing.process import BrokerProcess
from tests.crash.conftest import ROUNDS, SETTINGS
from tests.crash.queue_load import TOPIC, Client, Ledger, Producer, Worker, check_queue, dead_letters, lag
from tests.support.waiting import eventually

PARTITIONS = 2


@pytest.mark.timeout(180 + 30 * ROUNDS)
@pytest.mark.parametrize("flush", ["sync", "os"])
def test_kills_under_queue_load_forget_no_ack_and_lose_or_double_no_dead_letter(tmp_path: Path, flush: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = ROUNDS if flush == "sync" else max(2, ROUNDS // 4)
    # Small segments, so that the state topic is compacted under way.
    settings = {**SETTINGS, "log.flush": flush, "topic_defaults.segment.bytes": 50_000}
    with BrokerProcess(tmp_path / "data", settings, http="127.0.0.1:0") as broker:
        client = Client(broker)
        assert client.ask("/v1/topics", name=TOPIC, partitions=PARTITIONS)[0] == 201
        ledger = Ledger()
        producer = Producer(broker, ledger)
        workers = [Worker(broker, ledger, f"worker {n}") for n in range(2)]
        for _ in range(rounds):
            ledger.wait_for_acks(rng.randrange(1, 150))
            broker.kill()
            broker.start()
            assert ledger.wrong == []
        producer.stop()
        eventually(lambda: lag(client) == 0 or ledger.wrong, 60, "everything produced is finished")
        for worker in workers:
            worker.stop()
        letters = dead_letters(client, PARTITIONS)
        client.close()
    check_queue(ledger, letters)
