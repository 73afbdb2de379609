"""SIGKILL in a loop while real clients produce and commit: what was acknowledged stays, once, in order.

Between rounds files are damaged in ways that lose nothing acknowledged: bytes behind the last whole batch, flipped and
missing indexes and snapshots, a torn checkpoint. ``CRASH_ROUNDS=200 make test-crash`` for a long run.
"""

import random

import pytest

from tests.crash.conftest import ROUNDS
from tests.crash.damage import DAMAGES
from tests.crash.load import Committing, ConfluentProducing, KafkaPythonProducing, Producing, committed_offset, read_all
from tests.support.clients import PRODUCERS, Record

PARTITIONS = 3


def check_kept(bootstrap: str, topic: str, promised: dict[int, set[int]], where: str) -> None:
    for partition, numbers in promised.items():
        found = read_all(bootstrap, topic, partition)
        assert found == sorted(set(found)), f"{where}: partition {partition} has doubles or is out of order"
        lost = numbers - set(found)
        assert not lost, f"{where}: partition {partition} lost {len(lost)} acknowledged records, first {min(lost)}"


@pytest.mark.timeout(120 + 30 * ROUNDS)
@pytest.mark.parametrize("flush", ["sync", "os"])
@pytest.mark.parametrize("client", [ConfluentProducing, KafkaPythonProducing])
def test_kills_lose_nothing_acknowledged_and_double_nothing(start_broker, client, flush) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    rounds = ROUNDS if (client, flush) == (ConfluentProducing, "sync") else max(2, ROUNDS // 4)
    # Small segments, so that a kill meets rolls, new files and closed segments too.
    broker = start_broker({"log.flush": flush, "topic_defaults.segment.bytes": 20_000, "topics.partitions": PARTITIONS})
    topic = "killed"
    PRODUCERS["confluent"](broker.bootstrap, topic, [Record(b"0", partition=PARTITIONS - 1)])
    producing: Producing = client(broker.bootstrap, topic, range(PARTITIONS))
    producing.sent[PARTITIONS - 1] = 1
    producing._note(PARTITIONS - 1, 0, None)
    committing = Committing(broker.bootstrap, topic, "killed-group", 0)
    producing.start()
    committing.start()

    for number in range(rounds):
        producing.wait_for_more(rng.randrange(1, 1200))
        confirmed = committing.confirmed
        promised = producing.acknowledged()
        broker.kill()
        damages = rng.sample(sorted(DAMAGES), rng.randrange(3))
        for damage in damages:
            DAMAGES[damage](broker.data_dir, rng)
        broker.start()
        where = f"round {number}, seed {seed}, {damages}"
        check_kept(broker.bootstrap, topic, promised, where)
        assert committed_offset(broker.bootstrap, topic, "killed-group", 0) >= confirmed, where

    producing.stop()
    committing.stop()
    check_kept(broker.bootstrap, topic, producing.acknowledged(), f"the end, seed {seed}")
    if client is ConfluentProducing:
        assert producing.failed == []
        for partition in range(PARTITIONS):
            assert read_all(broker.bootstrap, topic, partition) == list(range(producing.sent[partition]))
    assert committed_offset(broker.bootstrap, topic, "killed-group", 0) >= committing.confirmed
    assert broker.stop() == 0


def test_a_kill_while_topics_are_made_and_removed_leaves_whole_topics(start_broker) -> None:
    """Whatever the moment, a topic is there with all its partitions or not at all, and the name can be used again."""
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = start_broker()
    for number in range(max(2, ROUNDS // 2)):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        names = [f"r{number}-{n}" for n in range(20)]
        futures = admin.create_topics([NewTopic(name, 3, 1) for name in names])
        futures[names[0]].result(30)
        doomed = admin.delete_topics([names[0]])  # noqa: F841 - holding the answers keeps the requests going
        broker.kill()
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topics = admin.list_topics(timeout=30).topics
        for name in names:
            if name in topics:
                assert sorted(topics[name].partitions) == [0, 1, 2]
                PRODUCERS["confluent"](broker.bootstrap, name, [Record(b"1", partition=2)])
        absent = [NewTopic(name, 3, 1) for name in names if name not in topics]
        for future in (admin.create_topics(absent) if absent else {}).values():
            future.result(30)
