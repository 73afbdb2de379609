"""Stories of partitions that move to other nodes, in which what a node says of a copy that it had is heard when it has another."""

import asyncio

from penstock.testing.simulation.machine import Machine
from tests.simulation.scenarios import Story


class ObserverMadeReplica(Story):
    """A node that observes a partition is to have it. Its leader hears of that first, and of how far the observer is."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        spare = self.spare
        assert spare.running is not None
        broker = spare.running.broker
        self.world.loop.call_soon(broker.observe, *self.place, context=spare.running.process.context())
        await asyncio.sleep(1.0)
        self.cut("etcd", spare.host)
        self.move(spare.number)
        await asyncio.sleep(0.5)
        self.mend("etcd", spare.host)
        await asyncio.sleep(2.0)


class AddedAgain(Story):
    """A node is given a partition, and then not, and then again; what it said in between arrives late."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        spare = self.spare
        # It gets on, but is not heard, so that it cannot join.
        self.move(spare.number, first.number, second.number)
        await asyncio.sleep(0.02)
        self.cut(spare.host, leader.host)
        await asyncio.sleep(0.5)
        self.move(leader.number, first.number, second.number)
        await asyncio.sleep(0.2)
        self.cut("etcd", spare.host)
        self.move(spare.number)
        self.world.network.mend(spare.host, leader.host)
        await asyncio.sleep(0.5)
        self.mend("etcd", spare.host)
        await asyncio.sleep(2.0)
