"""Every kind of client of one broker whose power is cut, and what must hold when it is back."""

import random
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from penstock.testing.process import BrokerProcess
from tests.crash import queue_load, test_sink_kills
from tests.crash.load import (
    Committing,
    ConfluentProducing,
    KeyedProducing,
    check_compacted,
    check_kept,
    committed_offset,
    read_all,
    read_with_offsets,
)
from tests.support.waiting import eventually

STREAM, COMPACTED, GROUP = "stream", "compacted", "readers"
PARTITIONS = 3
QUEUE_PARTITIONS = 2
SECONDS = 60.0
PAUSE_SECONDS = 0.1
CONFIG = "max.message.bytes"
COMPACTION = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": "5000"}


class Load:
    """Producers, a committing consumer, queue workers and a sink, which run through all cuts; topics come and go."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.topics: set[str] = set()
        self.deleted: set[str] = set()
        self._config = 0
        self._create(STREAM, PARTITIONS)
        self._create(COMPACTED, 1, COMPACTION)
        self._create(queue_load.TOPIC, QUEUE_PARTITIONS)
        self._create(test_sink_kills.TOPIC, test_sink_kills.PARTITIONS)
        self.producing = ConfluentProducing(broker.bootstrap, STREAM, range(PARTITIONS))
        self.replacing = KeyedProducing(broker.bootstrap, COMPACTED, [0])
        self.committing = Committing(broker.bootstrap, STREAM, GROUP, 0)
        self.ledger = queue_load.Ledger()
        # Everything is read again after each cut.
        self.producing.pause_seconds = self.replacing.pause_seconds = PAUSE_SECONDS
        self.driver = test_sink_kills.Driver(broker.bootstrap, seed)
        self.producing.start()
        self.replacing.start()
        self.committing.start()
        self.driver.start()
        self.jobs = queue_load.Producer(broker, self.ledger)
        self.workers = [queue_load.Worker(broker, self.ledger, f"worker {n}") for n in range(2)]

    # Between cuts.

    def proceed(self, number: int, rng: random.Random) -> None:
        """Return after more of everything was acknowledged."""
        self._change_topics(number)
        self.replacing.wait_for_more(rng.randrange(1, 400))
        self.ledger.wait_for_acks(rng.randrange(1, 20))
        self.driver.committing.clear()
        assert self.driver.committing.wait(SECONDS), "the sink's driver gets nowhere"
        self.producing.wait_for_more(rng.randrange(1, 400))

    def _change_topics(self, number: int) -> None:
        """A topic is created with records, one of which is deleted, another topic is deleted, and a config is altered."""
        name, admin = f"made-{number}", self._admin()
        self._create(name, 2)
        self._create(f"doomed-{number}", 2)
        self._produce(name, [number, number])
        admin.delete_records([TopicPartition(name, 1, 1)])[TopicPartition(name, 1)].result(SECONDS)
        if number:
            self._delete(f"made-{number - 1}")
        self._config = 1_000_000 + number
        resource = ConfigResource(ResourceType.TOPIC, STREAM)
        resource.add_incremental_config(
            ConfigEntry(CONFIG, str(self._config), incremental_operation=AlterConfigOpType.SET)
        )
        (answer,) = admin.incremental_alter_configs([resource]).values()
        answer.result(SECONDS)

    def begin_changes(self, number: int) -> list[Any]:
        """Request topics to be created and deleted and do not wait, so that the cut meets it. Keep what is returned."""
        admin = self._admin()
        made = admin.create_topics([NewTopic(f"perhaps-{number}", 2, 1)])
        return [admin, made, admin.delete_topics([f"doomed-{number}"])]

    def _produce(self, name: str, numbers: list[int]) -> None:
        """These numbers to both partitions of a topic, with acks=all."""
        failed: list[Any] = []
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for partition in range(2):
            for number in numbers:
                producer.produce(
                    name,
                    b"%d" % number,
                    partition=partition,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
        assert producer.flush(SECONDS) == 0
        assert failed == []

    def _admin(self) -> AdminClient:
        """To be held until the answer is there: without it the request ends."""
        return AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

    def _create(self, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
        admin = self._admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(SECONDS)
        self.topics.add(name)

    def _delete(self, name: str) -> None:
        admin = self._admin()
        admin.delete_topics([name])[name].result(SECONDS)
        self.topics.discard(name)
        self.deleted.add(name)

    # After a cut.

    def check(self, number: int) -> None:
        """All that was acknowledged up to now is there, once."""
        promised, lasting, confirmed = (
            self.producing.acknowledged(),
            self.replacing.acknowledged(),
            self.committing.confirmed,
        )
        self._check_topics(number)
        check_kept(self.broker.bootstrap, STREAM, promised)
        for numbers in lasting.values():
            check_compacted(self.broker.bootstrap, COMPACTED, numbers)
        assert committed_offset(self.broker.bootstrap, STREAM, GROUP, 0) >= confirmed, "a committed offset is lost"
        assert self.ledger.wrong == []
        assert self.driver.wrong == []

    def _check_topics(self, number: int) -> None:
        admin = self._admin()
        found = admin.list_topics(timeout=SECONDS).topics
        for name in (f"perhaps-{number}", f"doomed-{number}"):
            assert name not in found or sorted(found[name].partitions) == [0, 1], f"half of {name} is there"
            self.topics.discard(name)
        assert self.topics <= set(found), f"topics are lost: {self.topics - set(found)}"
        assert not self.deleted & set(found), f"deleted topics are back: {self.deleted & set(found)}"
        made = f"made-{number}"
        assert read_all(self.broker.bootstrap, made, 0) == [number, number]
        kept = read_with_offsets(self.broker.bootstrap, made, 1)
        assert kept == ([number], [1], 1, 2), "a record that was deleted is back, or too much is gone"
        resource = ConfigResource(ResourceType.TOPIC, STREAM)
        config = admin.describe_configs([resource])[resource].result(SECONDS)
        assert config[CONFIG].value == str(self._config)
        if f"perhaps-{number}" not in found:
            self._create(f"perhaps-{number}", 2)
        self._produce(f"perhaps-{number}", [number])
        assert read_all(self.broker.bootstrap, f"perhaps-{number}", 1) == [number]
        self._delete(f"perhaps-{number}")
        if f"doomed-{number}" in found:
            self._delete(f"doomed-{number}")

    # In the end.

    def finish(self) -> None:
        """Stop everything and compare all that was promised with all that is there."""
        self._finish_queue()
        test_sink_kills.check_sink(self.broker.bootstrap, self.driver)
        for client in (self.producing, self.replacing, self.committing):
            client.stop()
        assert self.producing.failed == []
        assert self.replacing.failed == []
        for partition in range(PARTITIONS):
            expected = list(range(self.producing.sent[partition]))
            assert read_all(self.broker.bootstrap, STREAM, partition) == expected
        sent = range(self.replacing.sent[0])
        check_compacted(self.broker.bootstrap, COMPACTED, set(sent))
        last = {self.replacing.key(number): number for number in sent}
        assert set(last.values()) <= set(read_with_offsets(self.broker.bootstrap, COMPACTED, 0)[0])

    def _finish_queue(self) -> None:
        client, ledger = queue_load.Client(self.broker), self.ledger
        self.jobs.stop()
        eventually(lambda: queue_load.lag(client) == 0 or ledger.wrong, SECONDS, "every job is finished")
        for worker in self.workers:
            worker.stop()
        letters = queue_load.dead_letters(client, QUEUE_PARTITIONS)
        client.close()
        queue_load.check_queue(ledger, letters)
