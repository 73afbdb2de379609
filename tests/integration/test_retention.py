"""Retention runs by the clock alone: nobody has to read or write a topic for its old records to go."""

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from penstock.testing.process import BrokerProcess
from tests.support.clients import CONSUMERS, PRODUCERS, Record
from tests.support.waiting import eventually

DAY_MS = 24 * 3600 * 1000


def log_bytes(data_dir: Path) -> int:
    return sum(path.stat().st_size for path in data_dir.glob("topics/*/*/*.log"))


def test_old_records_of_a_topic_that_nobody_touches_are_removed_after_a_restart(tmp_path) -> None:
    old_ms = int(time.time() * 1000) - 10 * DAY_MS
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, {"log.housekeeping_interval_ms": 3_600_000}) as broker:
        PRODUCERS["confluent"](broker.bootstrap, "old", [Record(b"x" * 100, timestamp_ms=old_ms)] * 100)
        assert broker.stop() == 0
    assert log_bytes(data_dir) > 10_000
    with BrokerProcess(data_dir, {"log.housekeeping_interval_ms": 100}):
        eventually(lambda: log_bytes(data_dir) == 0, what="retention removes what is ten days old")


def test_a_compacted_topic_keeps_the_last_record_of_each_key(tmp_path) -> None:
    settings = {"log.housekeeping_interval_ms": 100}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": "10000",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
        }
        admin.create_topics([NewTopic("compacted", 1, 1, config=config)])["compacted"].result(20)
        for turn in range(40):
            sent = [Record(b"%d" % turn + b"x" * 100, b"key %d" % n) for n in range(10)]
            PRODUCERS["confluent"](broker.bootstrap, "compacted", sent)

        def compacted() -> bool:
            return log_bytes(tmp_path / "data") < 20_000

        eventually(compacted, what="compaction leaves little more than the active segment")
        broker.restart()
        got = CONSUMERS["confluent"](broker.bootstrap, "compacted", 10, offset=390)
        assert [(r.key, (r.value or b"")[:2]) for r in got] == [(b"key %d" % n, b"39") for n in range(10)]
