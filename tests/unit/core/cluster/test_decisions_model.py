"""Nodes come and go, followers fall behind and catch up, partitions are moved and nodes drained, in any order: what was committed is always with the leader.

The model keeps, for each partition, the nodes that are sure to have everything that is committed: while as many are in sync as the topic demands, those in
sync; below that, nothing more is committed, so whoever had it has it still. When something is committed, the leader's own code says.
"""

import random
from collections.abc import Callable

import pytest

from penstock.core.cluster.decisions import TopicAndIndex, balance, decide_all
from penstock.core.cluster.election import is_led
from penstock.core.cluster.in_sync import NOT_YET, InSync
from penstock.core.cluster.moves import MovePlan
from penstock.core.cluster.reassignment import ElectionKind, Reassignments
from penstock.core.cluster.records import is_reassigning, joined, without
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC
from penstock.core.topics.records import NO_LEADER, PartitionRecord
from penstock.errors import PenstockError
from penstock.types import NodeId
from tests.support.agreed import Agreed

NODES = (1, 2, 3, 4, 5)
STEPS = 120


def _key(partition: TopicAndIndex) -> tuple[str, int]:
    return partition[0].name, partition[1]


class Model:
    def __init__(self, agreed: Agreed, seed: int) -> None:
        self.agreed = agreed
        self.random = random.Random(seed)
        self.door = Reassignments(agreed.store, agreed.topics, agreed.nodes)
        self.holders = {_key(partition): set(self.record(partition).in_sync) for partition in self.partitions}
        self.before = {_key(partition): self.record(partition) for partition in self.partitions}

    @property
    def partitions(self) -> list[TopicAndIndex]:
        return [(topic, index) for topic in self.agreed.topics for index in range(topic.partition_count)]

    def record(self, partition: TopicAndIndex) -> PartitionRecord:
        return self.agreed.topics.partition(*partition)

    def fields(self, record: PartitionRecord) -> dict[str, object]:
        return {name: getattr(record, name) for name in record.__struct_fields__}

    def check(self) -> None:
        live = self.agreed.nodes.live()
        for partition in self.partitions:
            record, before, holders = (
                self.record(partition),
                self.before[_key(partition)],
                self.holders[_key(partition)],
            )
            replicas, in_sync = set(record.replicas), set(record.in_sync)
            assert in_sync, "the set is never empty"
            assert in_sync <= replicas
            assert set(record.elr) <= replicas - in_sync
            assert set(record.adding) | set(record.removing) <= replicas
            assert not set(record.adding) & set(record.removing)
            if record.leader != NO_LEADER:
                assert record.leader in in_sync
            if (record.leader, record.leader_node_epoch) != (before.leader, before.leader_node_epoch):
                assert record.leader_epoch > before.leader_epoch
                if record.leader != NO_LEADER:
                    assert record.leader in holders, f"{before} -> {record}: it may lack something"
            # Who has just joined has everything that there was.
            holders |= in_sync
            holders &= replicas
            # As the leader does, which knows the topic as it is now.
            if is_led(record, live) and self._commits(partition, record):
                self.holders[_key(partition)] = in_sync
            assert self.holders[_key(partition)]
            self.before[_key(partition)] = record

    def _commits(self, partition: TopicAndIndex, record: PartitionRecord) -> bool:
        leader = InSync(
            NodeId(record.leader),
            record,
            log_end=0,
            leader_end=0,
            min_in_sync=partition[0].min_in_sync_of(len(record.replicas)),
            now_ms=0,
        )
        return leader.committed() != NOT_YET

    # What happens.

    async def node_goes(self) -> None:
        await self.agreed.down(self.random.choice(NODES))

    async def node_comes(self) -> None:
        await self.agreed.up(self.random.choice(NODES))

    async def follower_joins(self) -> None:
        topic, index = partition = self.random.choice(self.partitions)
        record, live = self.record(partition), self.agreed.nodes.live()
        if is_led(record, live):
            node = self.random.choice(record.replicas)
            if node in live:
                await self.agreed.change(
                    topic, index, **self.fields(joined(record, {node: live[node]}, topic.min_in_sync))
                )

    async def follower_leaves(self) -> None:
        topic, index = partition = self.random.choice(self.partitions)
        record = self.record(partition)
        others = [node for node in record.in_sync if node != record.leader]
        if others and is_led(record, self.agreed.nodes.live()):
            gone = without(record, [self.random.choice(others)], topic.min_in_sync)
            await self.agreed.change(topic, index, **self.fields(gone))

    async def somebody_moves_it(self) -> None:
        topic, index = self.random.choice(self.partitions)
        target = self.random.sample(NODES, self.random.randint(1, 3))
        await self._try(lambda: self.door.alter(topic.name, index, target))

    async def somebody_takes_it_back(self) -> None:
        topic, index = self.random.choice(self.partitions)
        await self._try(lambda: self.door.alter(topic.name, index, None))

    async def somebody_elects(self) -> None:
        topic, index = self.random.choice(self.partitions)
        await self._try(lambda: self.door.elect(topic.name, index, ElectionKind.PREFERRED))

    async def somebody_changes_what_is_demanded(self) -> None:
        demanded = str(self.random.randint(1, 3))
        await self.agreed.topics.alter("t", [ConfigChange("min.insync.replicas", ChangeKind.SET, demanded)])

    async def drain_begins(self) -> None:
        await self.agreed.drain(self.random.choice(NODES))

    async def drain_ends(self) -> None:
        await self.door.undrain(self.random.choice(NODES))

    async def _try(self, call: Callable) -> None:
        try:
            await call()
        except PenstockError:
            return

    async def controller_works(self) -> None:
        agreed = self.agreed
        for _ in range(20):
            live, avoided = agreed.nodes.live(), agreed.nodes.avoided()
            found = decide_all(agreed.topics, self.partitions, live, avoided)
            if not found:
                break
            await agreed.write(found)
            self.check()
        else:
            raise AssertionError("the controller goes round and round")
        await agreed.write(list(MovePlan(agreed.topics, agreed.nodes, 3).decisions()))
        self.check()

    async def leadership_goes_back(self) -> None:
        live, avoided = self.agreed.nodes.live(), self.agreed.nodes.avoided()
        await self.agreed.write(list(balance(self.agreed.topics, self.partitions, live, avoided, 2)))

    async def heal(self) -> None:
        """Everybody is up and catches up."""
        for node in NODES:
            if node not in self.agreed.nodes.live():
                await self.agreed.up(node)
        for _ in range(10):
            await self.controller_works()
            live = self.agreed.nodes.live()
            for topic, index in self.partitions:
                record = self.record((topic, index))
                everybody = {node: live[node] for node in record.replicas}
                await self.agreed.change(topic, index, **self.fields(joined(record, everybody, topic.min_in_sync)))
                self.check()
        await self.leadership_goes_back()
        self.check()


@pytest.mark.parametrize("seed", range(40))
async def test_whoever_leads_has_everything_that_was_committed(seed: int) -> None:
    agreed = await Agreed.make(*NODES)
    await agreed.topic("t", (1, 2, 3), (4, 5), (2,))
    await agreed.topic(OFFSETS_TOPIC, (3, 4, 5), internal=True)
    await agreed.topic(QUEUE_STATE_TOPIC, (3, 4, 5), internal=True)
    model = Model(agreed, seed)
    steps = [
        *[model.node_goes, model.node_comes] * 2,
        *[model.follower_joins] * 4,
        model.follower_leaves,
        model.somebody_moves_it,
        model.somebody_takes_it_back,
        model.somebody_elects,
        *[model.somebody_changes_what_is_demanded] * 2,
        model.drain_begins,
        *[model.drain_ends] * 2,
        model.leadership_goes_back,
        *[model.controller_works] * 4,
    ]
    for _ in range(STEPS):
        await model.random.choice(steps)()
        model.check()
    draining = set(agreed.nodes.draining)
    await model.heal()
    live = agreed.nodes.live()
    for partition in model.partitions:
        record = model.record(partition)
        assert is_led(record, live), "everybody is up, and nobody leads it"
        assert not is_reassigning(record)
        if len(NODES) - len(draining) >= len(record.replicas):
            assert not draining & set(record.replicas), "the drained ones have nothing"
    leaders = {agreed.record(topic).leader for topic in (OFFSETS_TOPIC, QUEUE_STATE_TOPIC)}
    assert len(leaders) == 1, "what belongs together is led together"
