"""What operators ask of a simulated cluster, in the midst of trouble: moves, elections, drains, other settings, more partitions.

Every wish is sent once, to whichever node; its answer may be lost, and it may come true late. When the trouble is over, the operator sees to it that what is left of
the wishes can be lived with: settings are as they were, and at the most one node is drained, if the others are enough for all replicas.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core.cluster.image import DRAINS_PREFIX
from penstock.core.cluster.reassignment import Reassignments
from penstock.core.topics.topics import MIN_IN_SYNC
from penstock.errors import PenstockError
from penstock.testing.simulation.history import TopicPartition
from penstock.testing.simulation.wire_client import Lost
from penstock.wire.kafka.alter_partition_reassignments_generated import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
)
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_partitions_generated import CreatePartitionsRequest, CreatePartitionsRequestTopic
from penstock.wire.kafka.elect_leaders_generated import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from penstock.wire.kafka.incremental_alter_configs_generated import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)

if TYPE_CHECKING:
    from penstock.testing.simulation.simulation import Simulation

_TIMEOUT_MS: Final = 3_000
_TOPIC: Final = 2
_SET: Final = 0
_DELETE: Final = 1
_PREFERRED: Final = 0
_AGAIN_SECONDS: Final = 0.5


class Operator:
    """Somebody with the rights to ask for anything."""

    def __init__(self, world: "Simulation", random: Random) -> None:
        self._world = world
        self._random = random
        self._process = world.client("operator")
        self._bootstrap = world.bootstrap()
        self._restores_at = 0.0
        self._drained_for_good: int | None = None

    def ask(self, wish: Coroutine[Any, Any, Any]) -> None:
        """Send a wish on its way."""
        self._world.loop.spawn(self._process, wish)

    async def request(self, key: ApiKey, version: int, request: msgspec.Struct) -> Any:
        """Ask some node; None when nobody answers."""
        try:
            return await self._bootstrap.ask(key, version, request)
        except Lost as lost:
            self._world.history.note("wish lost", key.name, lost)
            return None

    # Wishes.

    async def move(self, place: TopicPartition, replicas: Sequence[int] | None) -> None:
        """Let these nodes have a partition; None takes a move back."""
        self._world.history.note("move", place, replicas)
        partition = AlterPartitionReassignmentsRequestPartition(
            place.partition, None if replicas is None else list(replicas)
        )
        topic = AlterPartitionReassignmentsRequestTopic(place.topic, [partition])
        request = AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=[topic])
        answer = await self.request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        if answer is not None:
            self._world.history.note("move agreed", place, answer.responses[0].partitions[0].error_code)

    async def elect(self, place: TopicPartition | None) -> None:
        """Let the preferred replica lead a partition; None: all partitions."""
        self._world.history.note("elect", place)
        wanted = None if place is None else [ElectLeadersRequestTopicPartitions(place.topic, [place.partition])]
        await self.request(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(_PREFERRED, wanted, _TIMEOUT_MS))

    async def demand_in_sync(self, topic: str, count: int | None) -> None:
        """Let a topic demand so many replicas in sync; None: as many as the cluster does."""
        self._world.history.note("min in sync", topic, count)
        config = IncrementalAlterConfigsRequestConfig(
            MIN_IN_SYNC, _DELETE if count is None else _SET, None if count is None else str(count)
        )
        resource = IncrementalAlterConfigsRequestResource(_TOPIC, topic, [config])
        request = IncrementalAlterConfigsRequest([resource])
        answer = await self.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        if answer is not None:
            self._world.history.note("min in sync set", topic, count, answer.responses[0].error_code)

    async def grow(self, topic: str, count: int, on_done: Callable[[], None]) -> None:
        """Let a topic have so many partitions."""
        self._world.history.note("grow", topic, count)
        wanted = CreatePartitionsRequestTopic(topic, count, None)
        answer = await self.request(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest([wanted], _TIMEOUT_MS))
        if answer is not None:
            self._world.history.note("grown", topic, count, answer.results[0].error_code)
            if not answer.results[0].error_code:
                on_done()

    def drain(self, number: int) -> None:
        """Let a node have nothing."""
        self._at_a_node("drain", number, lambda door: door.drain(number))

    def keep_drained(self, number: int) -> None:
        """This node is to be drained in the end, too."""
        self._drained_for_good = number

    def undrain(self, number: int) -> None:
        """Let it have something again."""
        self._at_a_node("undrain", number, lambda door: door.undrain(number))

    def _at_a_node(self, what: str, number: int, wish: Callable[[Reassignments], Coroutine[Any, Any, None]]) -> None:
        """Some node takes it, if it is reached: Kafka's protocol has no word for it."""
        world, machine = self._world, self._random.choice(self._world.machines)
        running = machine.running
        world.history.note(what, number, "asked of", machine.number)
        if running is None or world.network.is_cut(self._process.host, machine.host):
            return
        door = running.broker.cluster.reassignments

        async def at_the_node() -> None:
            await asyncio.sleep(world.network.latency())
            try:
                await wish(door)
                world.history.note(what, number, "agreed")
            except PenstockError as error:
                world.history.note(what, number, error.reason.name)

        world.loop.spawn(running.process, at_the_node())

    # When the trouble is over.

    def unrestored(self) -> str | None:
        """What is not as it should be in the end; somebody is asked to change it."""
        found = self._odd_setting() or self._odd_drain()
        if found is None:
            return None
        why, wish = found
        if self._world.loop.time() >= self._restores_at:
            self._restores_at = self._world.loop.time() + _AGAIN_SECONDS
            wish()
        return why

    def _odd_setting(self) -> tuple[str, Callable[[], None]] | None:
        for name, record in self._world.etcd.topics():
            if MIN_IN_SYNC in record.config:
                return f"{name} has a setting of its own", partial(self._let_be, name)
        return None

    def _let_be(self, topic: str) -> None:
        self.ask(self.demand_in_sync(topic, None))

    def _odd_drain(self) -> tuple[str, Callable[[], None]] | None:
        drained = [int(key.removeprefix(DRAINS_PREFIX)) for key in self._world.etcd.keys(DRAINS_PREFIX)]
        has_spare = len(self._world.machines) > self._world.shape.replication_factor
        if self._drained_for_good not in drained and has_spare:
            self._drained_for_good = next((node for node in drained if self._random.random() < 0.5), None)
        for node in drained:
            if node != self._drained_for_good:
                return f"node {node} is drained", partial(self.undrain, node)
        return None
