"""Requests of operators to a simulated cluster during faults: moves, elections, drains, settings, more partitions.

Every request is sent once, to a random node; its response may be lost, and it may be applied late. When the faults are over, the
operator restores the settings, and leaves at most one node drained, if the others are enough for all replicas.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

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
    """A client with all rights."""

    def __init__(self, world: "Simulation", random: Random) -> None:
        self._world = world
        self._random = random
        self._process = world.client("operator")
        self._bootstrap = world.bootstrap()
        self._restores_at = 0.0
        self._drained_for_good: int | None = None

    def ask(self, wish: Coroutine[Any, Any, Any]) -> None:
        """Start sending a request."""
        self._world.loop.spawn(self._process, wish)

    async def request(self, key: ApiKey, version: int, request: msgspec.Struct) -> Any:
        """Send a request to a random node; None if there is no response."""
        try:
            return await self._bootstrap.ask(key, version, request)
        except Lost as lost:
            self._world.history.note("wish lost", key.name, lost)
            return None

    # Requests.

    async def move(self, place: TopicPartition, replicas: Sequence[int] | None) -> None:
        """Move a partition to these nodes; None cancels a move."""
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
        """Elect the preferred leader of a partition; None: of all partitions."""
        self._world.history.note("elect", place)
        wanted = None if place is None else [ElectLeadersRequestTopicPartitions(place.topic, [place.partition])]
        await self.request(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(_PREFERRED, wanted, _TIMEOUT_MS))

    async def demand_in_sync(self, topic: str, count: int | None) -> None:
        """Set the minimum of in-sync replicas of a topic; None: the default of the cluster."""
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
        """Increase the number of partitions."""
        self._world.history.note("grow", topic, count)
        wanted = CreatePartitionsRequestTopic(topic, count, None)
        answer = await self.request(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest([wanted], _TIMEOUT_MS))
        if answer is not None:
            self._world.history.note("grown", topic, count, answer.results[0].error_code)
            if not answer.results[0].error_code:
                on_done()

    def drain(self, number: int) -> None:
        """Drain a node."""
        self._at_a_node("drain", number, lambda door: door.drain(number))

    def keep_drained(self, number: int) -> None:
        """Leave this node drained at the end."""
        self._drained_for_good = number

    def undrain(self, number: int) -> None:
        """End the drain of a node."""
        self._at_a_node("undrain", number, lambda door: door.undrain(number))

    def _at_a_node(self, what: str, number: int, wish: Callable[[Reassignments], Coroutine[Any, Any, None]]) -> None:
        """Call a random node, if it can be reached: Kafka's protocol has no such request."""
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

    # After the faults.

    def unrestored(self) -> str | None:
        """A setting or drain that is still to be restored; sends the request for it."""
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
                return f"{name} has its own setting", partial(self._reset_in_sync, name)
        return None

    def _reset_in_sync(self, topic: str) -> None:
        self.ask(self.demand_in_sync(topic, None))

    def _odd_drain(self) -> tuple[str, Callable[[], None]] | None:
        drained = self._world.etcd.drained()
        has_spare = len(self._world.machines) > self._world.shape.replication_factor
        if self._drained_for_good not in drained and has_spare:
            self._drained_for_good = next((node for node in drained if self._random.random() < 0.5), None)
        for node in drained:
            if node != self._drained_for_good:
                return f"node {node} is drained", partial(self.undrain, node)
        return None
