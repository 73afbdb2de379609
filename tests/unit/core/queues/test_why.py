"""One sentence for every reason why a record is not delivered."""

import pytest

from penstock.core.partitions.delete_records import delete_records
from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.core.queues.why import explain
from penstock.operations.queues import WhyState
from penstock.records.builder import build_batch
from penstock.records.records import Record
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE
from tests.unit.core.queues.world import GROUP, TOPIC, Answers, World


def why(world, offset, group=GROUP, topic=TOPIC, partition=0):
    answer = world.queues.why(topic, partition, offset, group)
    assert answer.sentence.endswith(".")
    return answer


def test_what_does_not_exist(world) -> None:
    assert why(world, 0, topic="nothing").state is WhyState.NO_SUCH_TOPIC
    assert why(world, 0, partition=5).state is WhyState.NO_SUCH_PARTITION
    assert why(world, 0).state is WhyState.BEYOND_END
    assert why(world, -1).state is WhyState.BEYOND_END
    world.produce(1)
    assert why(world, 0, group="nobody").state is WhyState.NO_SUCH_GROUP


def test_what_readers_cannot_see(world) -> None:
    world.produce(5)
    world.lease("a")
    target = world.broker.partition(TOPIC, 0)
    target.append(build_batch([Record(0, world.clock.now_ms(), b"k", b"v")]), world.clock.now_ms())
    assert why(world, 5).state is WhyState.NOT_COMMITTED
    world.turn()
    assert why(world, 5).state is WhyState.READY
    delete_records(target, 2)
    assert why(world, 1).state is WhyState.EXPIRED_BY_RETENTION


def test_what_is_finished(world) -> None:
    world.produce(5)
    world.lease("a", max_records=5)
    world.ack("a", 0, 2)
    below, above = why(world, 0), why(world, 2)
    assert below.state is above.state is WhyState.FINISHED
    assert "the group's committed offset is 1" in below.sentence
    assert "committed offset is still 1" in above.sentence
    world.commit(3, group="readers")
    assert why(world, 1, group="readers").state is WhyState.FINISHED
    assert why(world, 4, group="readers").state is WhyState.READY


def test_what_is_leased(world) -> None:
    world.produce(1)
    world.lease("worker 7", lease_ms=1500)
    answer = why(world, 0)
    assert answer.state is WhyState.LEASED
    assert "leased by worker 7 until 2023-11-14T22:13:21.500Z (attempt 1)" in answer.sentence
    assert (answer.owner, answer.attempts) == ("worker 7", 1)


def test_what_waits_for_its_time(world) -> None:
    later = str(world.clock.now_ms() + 5000).encode()
    world.produce(1, headers=(("penstock.backoff_ms", b"5000"),))
    world.produce(1, headers=(("penstock.not_before_ms", later),))
    assert why(world, 1, group="none yet").state is WhyState.NO_SUCH_GROUP
    world.lease("a", max_records=2)
    world.nack("a", 0, "no luck")
    backing_off, delayed = why(world, 0), why(world, 1)
    assert backing_off.state is WhyState.BACKING_OFF
    assert "after attempt 1 failed (no luck)" in backing_off.sentence
    assert "until 2023-11-14T22:13:25.000Z" in backing_off.sentence
    assert delayed.state is WhyState.DELAYED
    world.lease("b", group="other", max_records=1)
    assert why(world, 1, group="other").state is WhyState.DELAYED


def test_what_will_not_be_delivered(world) -> None:
    world.lease("a")
    world.produce(2, headers=(("penstock.idempotency_key", b"k"),))
    world.lease("a", max_records=1)
    world.ack("a", 0)
    assert why(world, 1).state is WhyState.DUPLICATE
    world.produce(1, headers=(("penstock.deadline_ms", str(world.clock.now_ms() + 10).encode()),))
    world.clock.advance(10)
    assert why(world, 2).state is WhyState.DEADLINE_PASSED


def test_what_is_being_moved(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"1"),))
    world.lease("a")
    world.nack("a", 0, "bad", turn=False)
    answer = why(world, 0)
    assert answer.state is WhyState.MOVING
    assert "dlq.orders/0" in answer.sentence
    assert "(bad)" in answer.sentence


def test_what_is_ready_and_for_whom_it_waits() -> None:
    world = World(in_flight_max=2).boot()
    world.create()
    world.produce(5)
    world.lease("a", max_records=1)
    assert "no worker is connected" in why(world, 1).sentence
    owner = world.attach("b", credit=0)
    assert "all 1 workers hold as many records as they can" in why(world, 1).sentence
    owner.worker.grant(1)
    world.turn()
    assert "2 records of the queue are in flight" in why(world, 2).sentence
    world.nack("a", 0, "bad")
    world.ack("b", 1)
    answer = why(world, 0)
    assert answer.state is WhyState.READY
    assert "(attempt 1 ended with: bad)" in answer.sentence
    world.close()


@pytest.mark.parametrize("offset", [1, 2])
def test_what_compaction_took(offset) -> None:
    world = World().boot()
    world.create()
    world.produce(4)
    world.lease("a")
    piece = world.queues._context.cache.piece(world.broker.partition(TOPIC, 0), 0)
    assert piece is not None
    del piece.records[1:3]
    piece.offsets = [record.offset for record in piece.records]
    assert why(world, offset).state is WhyState.NO_RECORD
    world.close()


def test_a_dead_letter_is_named_with_what_it_died_of(world) -> None:
    world.produce(2, headers=(("penstock.max_attempts", b"1"),))
    world.lease("a", max_records=2)
    world.nack("a", 0, "no box")
    world.advance(1000)
    why = world.queues.why(TOPIC, 0, 0, GROUP)
    assert why.state is WhyState.DEAD_LETTER
    assert (why.attempts, why.last_error) == (1, "no box")
    assert "attempt 1: no box" in why.sentence
    assert "dlq.orders/0@0; inspect it with penstock dlq show orders" in why.sentence
    assert world.queues.why(TOPIC, 0, 0, "another").state is WhyState.NO_SUCH_GROUP
    answers = Answers()
    world.queues.finish("dlq.orders", REDRIVE_GROUP, 0, [0], "purge", answers)
    world.turn()
    assert "been redriven or purged" in world.queues.why(TOPIC, 0, 0, GROUP).sentence


def test_a_record_that_came_back_for_another_group_says_so(world) -> None:
    world.lease("a")
    world.produce(1, headers=(("penstock.for_group", b"others"),))
    assert world.queues.why(TOPIC, 0, 0, GROUP).state is WhyState.FOR_ANOTHER_GROUP


async def test_what_is_not_committed_because_too_few_are_in_sync_says_who_is_missing(tmp_path) -> None:
    async with ClusterNode(tmp_path) as node:
        topic = await node.place("t", (NODE, OTHER, THIRD))
        explained = explain(node.broker, None, "t", 0, 0, "g")
        assert explained.state is WhyState.BEYOND_END
        assert "min.insync.replicas" not in explained.sentence
        await node.set_record(topic, 0, isr=((NODE, node.cluster.nodes.live()[NODE]),))
        explained = explain(node.broker, None, "t", 0, 0, "g")
        assert explained.sentence.endswith(
            "Nothing new is committed to t/0 for acks=all at the moment: 1 of the 2 replicas required by min.insync.replicas are in sync; nodes 8, 9 are missing."
        )
        now_ms = node.clock.now_ms()
        node.broker.partition("t", 0).append(build_batch([Record(0, now_ms, b"k", b"v")]), now_ms)
        explained = explain(node.broker, None, "t", 0, 0, "g")
        assert explained.state is WhyState.NOT_COMMITTED
        assert "nodes 8, 9 are missing" in explained.sentence
