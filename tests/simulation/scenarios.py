"""Short stories, each of which one rule alone brings to a good end. What goes wrong without it, the history finds, not the story.

A story knows who leads ``t/0`` and who follows; the followers come in the order in which they would be elected.
"""

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from penstock.core.partitions.partition import Partition
from penstock.core.partitions.replica import Replica
from penstock.core.topics.records import PartitionRecord
from penstock.limits import MIB
from penstock.records.records import read_records
from penstock.testing.simulation.faults import Faults
from penstock.testing.simulation.history import TopicPartition
from penstock.testing.simulation.machine import Machine
from penstock.testing.simulation.simulation import Simulation, SimulationPlan
from penstock.testing.simulation.store import HOST as ETCD
from penstock.testing.simulation.wire_client import KafkaLink
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.fetch_generated import FetchRequest, FetchRequestPartition, FetchRequestTopic
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest
from penstock.wire.peers import Hello, Proof, encode_known_epoch

PLACE = TopicPartition("t", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
PATIENCE_SECONDS = 20.0
QUIET = SimulationPlan(
    trouble_seconds=0.5,
    partitions_max=1,
    queue_share=0.0,
    spare_share=0.0,
    careless_share=0.0,
    near_share=0.0,
    mortal_share=0.0,
)
"""Nothing else goes on beside a story."""


class Story(Faults):
    """What happens, instead of a schedule."""

    pace_seconds = 0.05
    """How long producers wait between two batches."""
    lease_ms = 1_000
    """How long a node may be silent before others take over."""
    place = PLACE
    """What the story is about."""

    def __init__(self, world: Simulation, random: Random) -> None:
        super().__init__(world, random)
        self.world = world

    async def run(self, seconds: float) -> None:
        """Tell it to a cluster that is well."""
        await self.until(lambda: self.world.etcd.partition(*self.place) is not None and len(self.record.isr) == 3)
        order = [self.world.machines[number - 1] for number in self.record.replicas]
        leader = self.world.machines[self.record.leader - 1]
        order.remove(leader)
        await asyncio.sleep(1.0)
        await self.tell(leader, *order)
        await asyncio.sleep(seconds)

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        raise AssertionError("every story tells something")

    # What stories are made of.

    @property
    def spare(self) -> Machine:
        """The node that does not have the partition."""
        return next(machine for machine in self.world.machines if machine.number not in self.record.replicas)

    def move(self, *numbers: int) -> None:
        """The partition is to be on these nodes."""
        self.world.etcd.move(*self.place, numbers)

    @property
    def record(self) -> PartitionRecord:
        found = self.world.etcd.partition(*self.place)
        assert found is not None
        return found[1]

    async def until(self, condition: Callable[[], bool], look_seconds: float = 0.001) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - it is looked at from outside
                await asyncio.sleep(look_seconds)

    async def until_acknowledged(self, more: int, seconds: float = 2.0) -> None:
        """So many more batches, or until it is clear that they will not be."""
        counts = self.world.history.counts
        wanted = counts.get("acked", 0) + more
        try:
            async with asyncio.timeout(seconds):
                await self.until(lambda: counts.get("acked", 0) >= wanted)
        except TimeoutError:
            return

    def replicas_of(self, place: TopicPartition) -> dict[Machine, Replica]:
        return {machine: replica for machine, other, replica in self.world.replicas() if other == place}

    def knows(self, machine: Machine, other: Machine) -> bool:
        """Whether a node has heard that another one is there."""
        cluster = machine.running.broker.cluster if machine.running is not None else None
        return cluster is not None and other.number in cluster.nodes.nodes

    def move_to(self, machine: Machine) -> None:
        assert self.world.etcd.move_leader(*self.place, lambda _: machine.number) == machine.number

    def cut(self, source: str, target: str) -> None:
        self.world.network.cut(source, target)

    def part(self, one: Machine, *others: Machine) -> None:
        for other in others:
            self.cut(one.host, other.host)
            self.cut(other.host, one.host)

    def mend(self, one: str, other: str) -> None:
        self.world.network.mend(one, other)
        self.world.network.mend(other, one)


class PowerEverywhere(Story):
    """1. Everybody has written what was acknowledged, and the power fails before anybody has synced it."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        for machine in (leader, first, second):
            machine.set_disk_speed(20.0)
        await asyncio.sleep(0.5)
        for machine in (leader, first, second):
            machine.lose_power()
            machine.set_disk_speed(0.001)
        await asyncio.sleep(0.1)


class JoinUnheard(Story):
    """2. The store agrees that a follower joins, and its leader does not hear of it. Then the follower is to lead."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        first.kill()
        await self.until(lambda: first.number not in self.record.in_sync)
        self.part(leader, first)
        first.start()
        await self.until(lambda: self.knows(leader, first))
        self.cut(ETCD, leader.host)
        self.mend(leader.host, first.host)
        await self.until(lambda: first.number in self.record.in_sync)
        self.part(leader, first)
        await self.until_acknowledged(5)
        leader.kill()
        await self.until(lambda: self.record.leader == first.number)
        await asyncio.sleep(1.0)


class AloneInSync(Story):
    """2. A leader is left by its followers, and they are agreed to have left. Then it is lost, and one of them leads."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        self.part(leader, first, second)
        await self.until(lambda: self.record.in_sync == (leader.number,))
        await self.until_acknowledged(1)
        leader.kill()
        await self.until(lambda: self.record.leader in (first.number, second.number))
        await asyncio.sleep(1.0)


class OldQuestion(Story):
    """2. A follower's question from an older epoch arrives when it has cut its log since, at a leader that has not."""

    pace_seconds = 0.1

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        # The second follower lacks what comes now; the first has it, and says so, but is not heard.
        self.part(leader, second)
        await self.until(lambda: self._is_ahead(leader, second))
        self.cut(first.host, leader.host)
        await self.until(lambda: self._is_unheard(leader, first))
        await asyncio.sleep(0.05)
        # Nobody sends the same to the second one while it leads.
        for host in self.world.client_hosts:
            self.cut(host, second.host)
        self.move_to(second)
        await asyncio.sleep(0.3)
        # The first has followed it by now, and it leads no more.
        self.move_to(leader)
        for host in self.world.client_hosts:
            self.world.network.mend(host, second.host)
        self.cut(leader.host, first.host)
        await asyncio.sleep(0.1)
        self.mend(leader.host, second.host)
        await asyncio.sleep(0.4)
        self.world.network.mend(first.host, leader.host)
        await asyncio.sleep(0.2)
        leader.kill()
        await self.until(lambda: self.record.leader == first.number)
        await asyncio.sleep(0.5)

    def _is_ahead(self, leader: Machine, follower: Machine) -> bool:
        found = self.replicas_of(PLACE)
        return found[leader].log.next_offset > found[follower].log.next_offset

    def _is_unheard(self, leader: Machine, follower: Machine) -> bool:
        """Whether a follower has more than its leader knows."""
        found = self.replicas_of(PLACE)
        led = found[leader]
        assert isinstance(led, Partition)
        assert led.in_sync is not None
        return found[follower].log.synced_offset > (led.in_sync.end_of(follower.number) or 0)


class ShrinkInVain(Story):
    """3. A leader that is cut off from everybody wants its followers out of the set, and nobody can agree to that."""

    # Producers have something to send still when it wants that, and it wants that before it is replaced.
    pace_seconds = 0.6
    lease_ms = 5_000

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        self.part(leader, first, second)
        self.cut(leader.host, ETCD)
        self.cut(ETCD, leader.host)
        await self.until(lambda: self.record.leader != leader.number)
        await self.until_acknowledged(5)
        await asyncio.sleep(2.0)


class LateShrink(Story):
    """3. A change of the set by a leader that was replaced meanwhile arrives late at the store."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        self.world.etcd.late_puts[leader.host, "p/"] = 5.0
        self.part(leader, first, second)
        # Long enough for the leader to ask for the change.
        await asyncio.sleep(2.2)
        self.move_to(first)
        await self.until(lambda: leader.number not in self.record.in_sync)
        await self.until_acknowledged(5, 5.0)
        await asyncio.sleep(3.0)


class SameEpochAgain(Story):
    """4. A leader loses what it had not synced, though its followers have it, and is back before anybody is told that it was gone."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        if self.world.etcd.controller() == leader.number:
            self.move_to(first)
            leader, first = first, leader
            await asyncio.sleep(0.5)
        # Nothing that it writes from here on is synced: what its disk has is what it knows to be synced.
        leader.set_disk_speed(1e6)
        await asyncio.sleep(0.5)
        # Its producers send the lost batches again. The one whose batch is lost first comes last, so that the order is another one.
        writer = self._first_writer_of_lost_records(leader)
        self.cut(writer, leader.host)
        # Whoever decides about leaders does not hear of it.
        for machine in (first, second):
            self.cut(ETCD, machine.host)
        self.part(leader, first, second)
        leader.disk.lose_power(torn=False)
        leader.kill()
        leader.set_disk_speed(0.001)
        leader.start()
        await asyncio.sleep(0.8)
        for host in (first.host, second.host, writer):
            self.mend(leader.host, host)
        await asyncio.sleep(0.5)

    def _first_writer_of_lost_records(self, leader: Machine) -> str:
        log = self.replicas_of(PLACE)[leader].log
        lost = next(iter(read_records(log.read(log.synced_offset, MIB, log.written_offset).data, MIB)))
        assert lost.value is not None
        name = bytes(lost.value).decode().partition("-")[0]
        return next(client.host for client in self.world.clients if client.name == name)


class TwoMoves(Story):
    """5. A follower that does not know yet what is committed follows another leader for a moment, and leads itself then."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        # The leader has just called something committed that the first follower has, too, and has not told it.
        await self.until(lambda: self._is_untold(leader, first), 0.000_02)
        for machine in (leader, second):
            self.cut(machine.host, first.host)
        await asyncio.sleep(0.1)
        self.move_to(second)
        await self.until(lambda: self._follows(first))
        self.move_to(first)
        await asyncio.sleep(0.3)

    def _is_untold(self, leader: Machine, follower: Machine) -> bool:
        found = self.replicas_of(PLACE)
        led, copy = found[leader], found[follower]
        return copy.high_watermark < led.high_watermark == copy.log.next_offset

    def _follows(self, machine: Machine) -> bool:
        """Whether a node knows who leads now."""
        running = machine.running
        if running is None:
            return False
        topic = running.broker.topics.get(PLACE.topic)
        return topic is not None and running.broker.topics.partition(topic, PLACE.partition) == self.record


class TooFew(Story):
    """6. A leader is alone in sync, and producers go on."""

    pace_seconds = 0.6

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        self.part(leader, first, second)
        await self.until(lambda: self.record.in_sync == (leader.number,))
        await asyncio.sleep(2.0)


class LeftBehind(Story):
    """6. The only one that is up left the set long ago."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        first.kill()
        await self.until(lambda: first.number not in self.record.in_sync)
        await self.until_acknowledged(5)
        leader.kill()
        second.kill()
        first.start()
        await asyncio.sleep(4.0)


class DeposedTail(Story):
    """7. A leader takes records that it cannot pass on, is replaced when its lease ends, and comes back."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        self.part(leader, first, second)
        await asyncio.sleep(0.3)
        leader.pause()
        await self.until(lambda: self.record.leader != leader.number)
        await self.until_acknowledged(10, 8.0)
        leader.resume()
        self.heal()
        await asyncio.sleep(1.0)


class UnknownCommit(Story):
    """8. A group's offset is committed, and who coordinates the group next has it, but has not heard that it is."""

    place = OFFSETS

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        # Everybody has the record; its leader has not heard so, and the others will not hear that it is committed.
        await self.until(lambda: self._is_on_its_way(leader, first, second), 0.000_02)
        for machine in (first, second):
            self.cut(leader.host, machine.host)
        self.part(first, second)
        await asyncio.sleep(0.05)
        leader.kill()
        await self.until(lambda: self.record.leader != leader.number)
        # Whoever leads now cannot learn it from the other one either, while somebody asks.
        for committer in self.world.committers:
            committer.finish()
        await asyncio.sleep(1.0)

    def _is_on_its_way(self, leader: Machine, *others: Machine) -> bool:
        found = self.replicas_of(OFFSETS)
        led = found[leader]
        return led.high_watermark < led.log.next_offset and all(
            found[other].log.synced_offset == led.log.next_offset and found[other].high_watermark < led.log.next_offset
            for other in others
        )


class LostAnswers(Story):
    """9. Answers to producers are lost, and they ask another leader again."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        for host in self.world.client_hosts:
            self.cut(leader.host, host)
        await asyncio.sleep(0.5)
        self.move_to(first)
        await asyncio.sleep(0.1)
        self.world.network.break_connections(1.0)
        await asyncio.sleep(1.0)


class Forged(Story):
    """10. Somebody who does not know the cluster's secret says to the leader that the followers have everything."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        self.part(leader, first, second)
        for machine in (first, second):
            forger = self.world.client(f"forger of {machine.number}")
            self.world.loop.spawn(forger, self._forge(leader, machine.number))
        await self.until_acknowledged(5, 1.0)
        leader.kill()
        await self.until(lambda: self.record.leader != leader.number)
        await asyncio.sleep(0.5)

    async def _forge(self, leader: Machine, number: int) -> None:
        link = KafkaLink(leader.peer)
        await link.connect()
        hello = Hello(number, 2**40, leader.number, bytes(16))
        for word in (hello, Proof(bytes(32))):
            request = SaslAuthenticateRequest(auth_bytes=msgspec.json.encode(word))
            answer = await link.call(ApiKey.SASL_AUTHENTICATE, 2, request)
            self.world.history.note("forger", number, answer.error_code)
            if answer.error_code:
                return
        while leader.running is not None:
            topic = leader.running.broker.topics.require(PLACE.topic)
            partition = leader.running.broker.partition(*PLACE)
            asked = FetchRequestPartition(
                partition=PLACE.partition,
                current_leader_epoch=partition.leader_epoch,
                fetch_offset=partition.log.next_offset,
                partition_max_bytes=1,
                replica_directory_id=encode_known_epoch(2**40),
            )
            wanted = FetchRequestTopic(topic_id=topic.topic_id.bytes, partitions=[asked])
            await link.call(ApiKey.FETCH, 18, FetchRequest(max_wait_ms=5, topics=[wanted]))
