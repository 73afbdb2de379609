"""A topic that is created, deleted and created again with the same name, during faults.

Each of its incarnations has its own id, producer and reader, which use the id: no record of one incarnation may appear in
another. Acknowledged records of an incarnation may be lost after a request to delete it, and must then be removed completely.
"""

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.core.topics.topics import MIN_IN_SYNC
from penstock.testing.simulation.clients import SimulatedProducer, SimulatedReader
from penstock.testing.simulation.history import MORTAL, TopicPartition, label
from penstock.testing.simulation.loop import Process
from penstock.testing.simulation.wire_client import Lost
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_topics_generated import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
)
from penstock.wire.kafka.delete_topics_generated import DeleteTopicsRequest, DeleteTopicsRequestTopic

if TYPE_CHECKING:
    from penstock.testing.simulation.simulation import Simulation

_CREATE_VERSION: Final = 7
_DELETE_VERSION: Final = 6
_TIMEOUT_MS: Final = 3_000
_ALREADY_EXISTS: Final = 36
_PACE_SECONDS: Final = 0.2


class Incarnation:
    """One topic of that name."""

    def __init__(self, topic_id: UUID) -> None:
        self.topic_id: Final = topic_id
        self.place: Final = TopicPartition(label(MORTAL, topic_id), 0)
        self.is_deletion_asked = False
        self.is_deleted = False
        """Whether a node confirmed the deletion."""
        self.producer: SimulatedProducer | None = None
        self.clients: Final[list[Process]] = []


class MortalTopic:
    """All incarnations of the topic."""

    def __init__(self, world: "Simulation", random: Random) -> None:
        self._world = world
        self._random = random
        self.incarnations: Final[dict[UUID, Incarnation]] = {}

    @property
    def latest(self) -> Incarnation | None:
        """The latest known incarnation."""
        return next(reversed(self.incarnations.values()), None)

    # Requests of operators.

    async def create(self) -> None:
        """Create it, with a random number of replicas and partitions."""
        world, random = self._world, self._random
        factor = random.choice((1, 2, 3, 3))
        configs = [CreateTopicsRequestConfig(MIN_IN_SYNC, str(random.randint(1, factor)))]
        wanted = CreateTopicsRequestTopic(MORTAL, random.randint(1, 2), factor, [], random.choice(([], configs)))
        world.history.note("make", MORTAL, factor)
        request = CreateTopicsRequest([wanted], _TIMEOUT_MS)
        answer = await world.operator.request(ApiKey.CREATE_TOPICS, _CREATE_VERSION, request)
        if answer is not None:
            made = answer.topics[0]
            world.history.note("made", MORTAL, made.error_code)
            if made.error_code == 0:
                self._begin(UUID(bytes=made.topic_id))
            elif made.error_code == _ALREADY_EXISTS:
                # By a request whose response was lost.
                await self._find()

    async def _find(self) -> None:
        try:
            answer = await self._world.bootstrap().metadata(MORTAL)
        except Lost:
            return
        for topic in answer.topics:
            if not topic.error_code:
                self._begin(UUID(bytes=topic.topic_id))

    def _begin(self, topic_id: UUID) -> None:
        if topic_id in self.incarnations or self._world.is_ending:
            return
        world = self._world
        incarnation = self.incarnations[topic_id] = Incarnation(topic_id)
        name = f"{MORTAL}{len(self.incarnations)}"
        world.history.note("incarnation", name, incarnation.place)
        producer, reading = world.client(f"producer {name}"), world.client(f"reader {name}")
        incarnation.clients.extend((producer, reading))
        incarnation.producer = SimulatedProducer(
            name, incarnation.place, world.bootstrap(topic_id.bytes), world.history, Random(self._random.random())
        )
        world.producers.append(incarnation.producer)
        world.loop.spawn(producer, incarnation.producer.run(_PACE_SECONDS))
        reader = SimulatedReader(f"reader {name}", incarnation.place, world.bootstrap(topic_id.bytes), world.history)
        world.loop.spawn(reading, reader.run())

    async def delete(self, incarnation: Incarnation) -> None:
        """Delete an incarnation without notifying its clients."""
        world = self._world
        incarnation.is_deletion_asked = True
        world.history.note("delete", incarnation.place)
        request = DeleteTopicsRequest([DeleteTopicsRequestTopic(None, incarnation.topic_id.bytes)], [], _TIMEOUT_MS)
        answer = await world.operator.request(ApiKey.DELETE_TOPICS, _DELETE_VERSION, request)
        if answer is not None:
            code = answer.responses[0].error_code
            world.history.note("deleted", incarnation.place, code)
            incarnation.is_deleted = incarnation.is_deleted or code == 0
        self.retire(incarnation)

    def retire(self, incarnation: Incarnation) -> None:
        """Stop the clients of an incarnation."""
        for client in incarnation.clients:
            client.kill()
        if incarnation.producer in self._world.producers:
            self._world.producers.remove(incarnation.producer)

    # In the end.

    def retire_doomed(self) -> None:
        """Stop the clients of incarnations that are to be deleted."""
        for incarnation in self.incarnations.values():
            if incarnation.is_deletion_asked:
                self.retire(incarnation)

    def check(self, found: Mapping[TopicPartition, Mapping[int, bytes]]) -> dict[TopicPartition, Mapping[int, bytes]]:
        """Check that only requested deletions happened, and these completely; returns the records of the remaining incarnation."""
        history = self._world.history
        there = {record.id for name, record in self._world.etcd.topics() if name == MORTAL}
        for incarnation in self.incarnations.values():
            if incarnation.topic_id in there and incarnation.is_deleted:
                history.violate(f"{incarnation.place} was deleted, and is there")
            if incarnation.topic_id not in there:
                history.excused.add(incarnation.place)
                if not incarnation.is_deletion_asked:
                    history.violate(f"{incarnation.place} was deleted without a request")
        return {
            incarnation.place: found.get(incarnation.place, {})
            for incarnation in self.incarnations.values()
            if incarnation.topic_id in there
        }
