"""What goes wrong in a simulation, and when: a schedule from the seed. Every fault ends; some overlap.

The requests of operators (``operators.py``, ``mortal.py``) are in the same schedule.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.testing.simulation.history import TopicPartition
from penstock.testing.simulation.store import HOST as ETCD

if TYPE_CHECKING:
    from penstock.testing.simulation.machine import Machine
    from penstock.testing.simulation.simulation import Simulation

_JUMPS_MS: Final = (5_000, 120_000, 1_800_000, 10_800_000)
"""A node whose clock is hours behind refuses records, because they are too far in its future. Producers must wait or find another leader."""
_PARTITIONS_MAX: Final = 3


class Faults:
    """Causes faults, and ends them."""

    def __init__(self, world: "Simulation", random: Random) -> None:
        """The seed decides about pauses and weights: some runs are hectic, some are calm, each prefers other faults."""
        self._world = world
        self._random = random
        self._pause_seconds = random.choice((0.3, 1.0, 1.0, 2.0, 4.0))
        usual_weights: dict[Callable[[], None], int] = {
            self._kill: 10,
            self._lose_power: 10,
            self._lose_power_everywhere: 2,
            self._pause: 10,
            self._isolate: 10,
            self._cut_one_way: 5,
            self._cut_from_etcd: 6,
            self._etcd_down: 3,
            self._metadata_trouble: 8,
            self._slow_network: 4,
            self._slow_disk: 4,
            self._break_connections: 6,
            self._jump_clock: 4,
            self._stop: 5,
            self._move_leader: 6,
            self._move: 8,
            self._elect: 3,
            self._drain: 5,
            self._settings: 5,
            self._grow: 1,
            self._make_or_delete: 10,
        }
        self._actions: Final = list(usual_weights)
        weights = [weight * random.choice((0, 1, 1, 3)) for weight in usual_weights.values()]
        self._weights = weights if any(weights) else list(usual_weights.values())

    async def run(self, seconds: float) -> None:
        """Cause one fault after the other, for so long."""
        loop, random = self._world.loop, self._random
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(random.random() * 2 * self._pause_seconds)
            random.choices(self._actions, self._weights)[0]()

    def heal(self) -> None:
        """End all faults."""
        world = self._world
        world.history.note("heal")
        world.network.mend_all()
        world.network.slow = 1.0
        world.etcd.heal()
        for machine in world.machines:
            machine.set_disk_speed(world.shape.sync_seconds_max)
            machine.set_clock(0)
            machine.resume()
            machine.start()

    # Kinds.

    def _some(self) -> "Machine":
        return self._random.choice(self._world.machines)

    def _later(self, seconds_max: float, action: Callable[..., object], *arguments: Any) -> None:
        # Most faults are short: half of them end within an eighth of the longest duration.
        seconds = self._random.random() ** 3 * seconds_max
        self._world.loop.call_later(seconds, action, *arguments, context=Context())

    def _kill(self) -> None:
        machine = self._some()
        machine.kill()
        self._later(6.0, machine.start)

    def _lose_power(self) -> None:
        machine = self._some()
        machine.lose_power()
        self._later(6.0, machine.start)

    def _lose_power_everywhere(self) -> None:
        for machine in self._world.machines:
            machine.lose_power()
            self._later(3.0, machine.start)

    def _pause(self) -> None:
        machine = self._some()
        machine.pause()
        self._later(8.0, machine.resume)

    def _isolate(self) -> None:
        """A node cannot reach the others; clients can reach it, or not, and it can reach etcd, or not."""
        machine = self._some()
        hosts = [other.host for other in self._world.machines if other is not machine]
        if self._random.random() < 0.5:
            hosts.append(ETCD)
        if self._random.random() < 0.3:
            hosts += self._world.client_hosts
        self._world.history.note("isolate", machine.number, *hosts)
        pairs = [pair for host in hosts for pair in ((machine.host, host), (host, machine.host))]
        self._cut(pairs, 10.0)

    def _cut_one_way(self) -> None:
        one, other = self._random.sample(self._world.machines, 2)
        self._world.history.note("cut", one.number, other.number)
        self._cut([(one.host, other.host)], 10.0)

    def _cut_from_etcd(self) -> None:
        machine = self._some()
        ways = [(machine.host, ETCD), (ETCD, machine.host)]
        ways = self._random.choice((ways, ways[:1], ways[1:]))
        self._world.history.note("cut from etcd", *(f"{one}>{other}" for one, other in ways))
        self._cut(ways, 8.0)

    def _cut(self, pairs: list[tuple[str, str]], seconds_max: float) -> None:
        network = self._world.network
        for pair in pairs:
            network.cut(*pair)

        def mend() -> None:
            self._world.history.note("mend", *(f"{one}>{other}" for one, other in pairs))
            for pair in pairs:
                network.mend(*pair)

        self._later(seconds_max, mend)

    def _etcd_down(self) -> None:
        etcd = self._world.etcd
        if etcd.is_up:
            self._world.history.note("etcd down")
            etcd.go_down()
            self._later(6.0, self._etcd_back)

    def _etcd_back(self) -> None:
        if not self._world.etcd.is_up:
            self._world.history.note("etcd back")
            self._world.etcd.come_back()

    def _metadata_trouble(self) -> None:
        etcd = self._world.etcd
        etcd.lost_answers = self._random.choice((0.0, 0.1, 0.5))
        etcd.late_requests = self._random.choice((0.1, 0.5))
        self._world.history.note("metadata trouble", etcd.lost_answers, etcd.late_requests)
        self._later(8.0, self._metadata_well)

    def _metadata_well(self) -> None:
        etcd = self._world.etcd
        etcd.lost_answers = etcd.late_requests = 0.0

    def _slow_network(self) -> None:
        network = self._world.network
        network.slow = self._random.choice((10.0, 50.0, 200.0))
        self._world.history.note("slow network", network.slow)
        self._later(4.0, setattr, network, "slow", 1.0)

    def _slow_disk(self) -> None:
        machine = self._some()
        seconds = self._random.choice((0.1, 0.5, 2.0))
        self._world.history.note("slow disk", machine.number, seconds)
        machine.set_disk_speed(seconds)
        self._later(6.0, machine.set_disk_speed, self._world.shape.sync_seconds_max)

    def _break_connections(self) -> None:
        self._world.history.note("break connections")
        self._world.network.break_connections(self._random.choice((0.2, 0.5, 1.0)))

    def _jump_clock(self) -> None:
        self._some().set_clock(self._random.choice(_JUMPS_MS) * self._random.choice((-1, 1)))

    def _stop(self) -> None:
        machine = self._some()
        machine.stop()
        self._later(12.0, machine.start)

    def _move_leader(self) -> None:
        """The controller moves a leader to another in-sync replica, as when leaders are balanced."""
        place = self._random.choice(self._world.places)
        leader = self._world.etcd.move_leader(place.topic, place.partition, self._random.choice)
        self._world.history.note("move leader", place, leader)

    # Requests of operators.

    def _place(self) -> TopicPartition:
        """A partition of a topic that is not deleted, or sometimes of an internal topic."""
        if self._random.random() < 0.2:
            return TopicPartition(OFFSETS_TOPIC, self._random.randrange(self._world.shape.internal_partitions))
        return self._random.choice(self._world.places)

    def _move(self) -> None:
        """To any nodes, any number of them, or cancel a move."""
        numbers = [machine.number for machine in self._world.machines]
        replicas = self._random.sample(numbers, self._random.choice((1, 2, 3, 3, 3)))
        operator = self._world.operator
        operator.ask(operator.move(self._place(), None if self._random.random() < 0.2 else replicas))

    def _elect(self) -> None:
        operator = self._world.operator
        operator.ask(operator.elect(None if self._random.random() < 0.3 else self._place()))

    def _drain(self) -> None:
        machine = self._some()
        self._world.operator.drain(machine.number)
        if self._random.random() < 0.7:
            self._later(10.0, self._world.operator.undrain, machine.number)

    def _settings(self) -> None:
        operator = self._world.operator
        topic = self._random.choice(self._world.places).topic
        operator.ask(operator.demand_in_sync(topic, self._random.choice((1, 2, 3, None))))

    def _grow(self) -> None:
        world = self._world
        topic = world.places[0].topic
        count = sum(place.topic == topic for place in world.places)
        if count < _PARTITIONS_MAX:
            place = TopicPartition(topic, count)
            world.operator.ask(world.operator.grow(topic, count + 1, lambda: world.grown(place)))

    def _make_or_delete(self) -> None:
        mortal = self._world.mortal
        if mortal is None:
            return
        incarnation = mortal.latest
        wish = mortal.create() if incarnation is None or incarnation.is_deletion_asked else mortal.delete(incarnation)
        self._world.operator.ask(wish)
