"""Workers of a queue in a simulated cluster: they lease records from the coordinator of their group, and ack, nack or forget them.

They call the core on the coordinator's node, with the network's latency in both directions: calls to a node that is cut off,
paused or killed are lost or late. Rules: an acked record is not delivered again, no dead letter is there twice, and no record is
lost.
"""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.core.broker import Broker
from penstock.errors import PenstockError, Reason
from penstock.operations.queues import Ack, Delivery, Lease, Nack
from penstock.testing.simulation.history import History, TopicPartition
from penstock.testing.simulation.loop import Process
from penstock.testing.simulation.machine import Machine

if TYPE_CHECKING:
    from penstock.testing.simulation.simulation import Simulation

LEASE_MS: Final = 1_000
_WAIT_MS: Final = 500
_ANSWER_SECONDS: Final = 3.0
_BACKOFF_SECONDS: Final = 0.1
_NACK_SHARE: Final = 0.3
_FORGET_SHARE: Final = 0.1

Answer = Callable[[Any], None]


class NoResponse(Exception):
    """The node did not respond: the outcome is unknown."""


class QueueHistory:
    """The deliveries to the workers of one queue, and their acks."""

    def __init__(self, history: History, place: TopicPartition, group: str) -> None:
        self._history = history
        self.place: Final = place
        self.group: Final = group
        self.acked: Final[dict[int, float]] = {}
        """Acked offsets, and when they were."""
        self.perhaps_acked: Final[set[int]] = set()
        """Offsets of acks without a response."""
        self.values: Final[dict[int, bytes]] = {}

    def delivered(self, worker: str, delivery: Delivery, asked_at: float) -> None:
        """A worker received a record, for a lease request at this time."""
        self._history.note("delivered", worker, self.place, delivery.offset, delivery.attempts)
        self.values[delivery.offset] = delivery.value or b""
        acked_at = self.acked.get(delivery.offset)
        if acked_at is not None and acked_at < asked_at:
            self._history.violate(
                f"{self.place} offset {delivery.offset} was acked for {self.group} at {acked_at:.4f} s, and delivered again to {worker}, "
                f"which asked at {asked_at:.4f} s"
            )

    def check(self, records: Mapping[int, bytes], letters: Mapping[int, bytes]) -> None:
        """Check that every record was acked or is a dead letter, and not both, and that no dead letter is there twice."""
        dead: set[bytes] = set()
        for value in letters.values():
            if value in dead:
                self._history.violate(f"{value!r} of {self.place} is among the dead letters twice")
            dead.add(value)
        for offset, value in records.items():
            if offset in self.acked and value in dead:
                self._history.violate(f"{value!r} of {self.place} was acked, and is among the dead letters")
            if offset not in self.acked and offset not in self.perhaps_acked and value not in dead:
                self._history.violate(f"{value!r} of {self.place} was neither acked nor is it a dead letter")


class SimulatedWorker:
    """One worker. It works until its process ends."""

    def __init__(self, name: str, process: Process, queue: QueueHistory, world: "Simulation", random: Random) -> None:
        self.name: Final = name
        self._process = process
        self._queue = queue
        self._world = world
        self._random = random
        self._context = process.context()

    async def run(self) -> None:
        """Work."""
        while True:
            machine = self._coordinator()
            try:
                if machine is not None:
                    await self._work(machine)
            except NoResponse:
                pass
            except PenstockError as error:
                self._world.history.note("worker refused", self.name, error.reason.name)
            await asyncio.sleep(_BACKOFF_SECONDS)

    def _coordinator(self) -> Machine | None:
        """The coordinator of the group, as a random node knows it."""
        some = self._random.choice(self._world.machines)
        if some.running is None:
            return None
        try:
            number = some.running.broker.cluster.coordinators.node_of(self._queue.group)
        except PenstockError:
            return None
        return self._world.machines[number - 1]

    async def _work(self, machine: Machine) -> None:
        place, group = self._queue.place, self._queue.group
        asked_at = self._world.loop.time()

        def lease(broker: Broker, answer: Answer) -> None:
            broker.queues.lease(Lease(place.topic, group, self.name, 3, LEASE_MS, _WAIT_MS), answer)

        for delivery in await self._call(machine, lease):
            self._queue.delivered(self.name, delivery, asked_at)
            await asyncio.sleep(self._random.random() * 0.1)
            fate = self._random.random()
            if fate < _FORGET_SHARE:
                continue
            if fate < _FORGET_SHARE + _NACK_SHARE:
                await self._nack(machine, delivery)
            else:
                await self._ack(machine, delivery)

    async def _ack(self, machine: Machine, delivery: Delivery) -> None:
        place, group, offset = self._queue.place, self._queue.group, delivery.offset

        def ack(broker: Broker, answer: Answer) -> None:
            broker.queues.ack(Ack(place.topic, group, self.name, place.partition, [offset]), answer)

        self._queue.perhaps_acked.add(offset)
        found: Reason | None = await self._call(machine, ack)
        self._world.history.note("ack", self.name, place, offset, found)
        if found is None:
            self._queue.acked.setdefault(offset, self._world.loop.time())

    async def _nack(self, machine: Machine, delivery: Delivery) -> None:
        place, group, offset = self._queue.place, self._queue.group, delivery.offset

        def nack(broker: Broker, answer: Answer) -> None:
            broker.queues.nack(Nack(place.topic, group, self.name, place.partition, [offset], "no"), answer)

        found = await self._call(machine, nack)
        self._world.history.note("nack", self.name, place, offset, found)

    async def _call(self, machine: Machine, ask: Callable[[Broker, Answer], object]) -> Any:
        """Call the core of a node over the network."""
        loop, network = self._world.loop, self._world.network
        future: asyncio.Future[Any] = loop.create_future()
        process = machine.process
        here, there = self._process.host, machine.host

        def told(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, PenstockError):
                future.set_exception(result)
            else:
                future.set_result(result)

        def answer(result: Any) -> None:
            if not network.is_cut(there, here):
                loop.call_later(network.latency(), told, result, context=self._context)

        def asked() -> None:
            running = machine.running
            if running is None or running.process is not process or network.is_cut(here, there):
                return
            try:
                ask(running.broker, answer)
            except PenstockError as error:
                answer(error)

        if process is not None:
            loop.call_later(network.latency(), asked, context=process.context())
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await future
        except TimeoutError:
            raise NoResponse from None
