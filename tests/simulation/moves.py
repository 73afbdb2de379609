"""Stories of partitions that move to other nodes, in which what a node says of a copy that it had is heard when it is to have another."""

import asyncio

from penstock.testing.simulation.machine import Machine
from penstock.testing.simulation.store import HOST as ETCD
from tests.simulation.scenarios import Story


class Moving(Story):
    """What these stories have in common: a node more than there are replicas, which does not decide about moves itself."""

    async def quiet_spare(self) -> Machine:
        spare = self.spare
        if self.world.etcd.controller() == spare.number:
            spare.stop()
            await self.until(lambda: spare.running is None)
            await self.until(lambda: self.world.etcd.controller() not in (None, spare.number))
            spare.start()
            await self.until(lambda: spare.running is not None)
        return spare

    async def until_moved(self, *numbers: int) -> None:
        self.move(*numbers)
        await self.until(lambda: self.record.replicas == numbers and not self.record.adding)

    async def hear(self, spare: Machine) -> None:
        """The node that did not hear what was agreed does now."""
        await asyncio.sleep(0.5)
        self.world.network.mend(ETCD, spare.host)
        await asyncio.sleep(2.0)


class ObserverMadeReplica(Moving):
    """A node that observes a partition is to have it. Its leader hears of that first, and of how far the observer is."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        spare = await self.quiet_spare()
        assert spare.running is not None
        broker = spare.running.broker
        self.world.loop.call_soon(broker.observe, *self.place, context=spare.running.process.context())
        await asyncio.sleep(1.0)
        self.cut(ETCD, spare.host)
        self.move(spare.number)
        await self.hear(spare)


class AddedAgain(Moving):
    """A node has a partition, then not, then it is to have it again, and hears of all that at once."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        spare = await self.quiet_spare()
        await self.until_moved(leader.number, first.number, spare.number)
        await asyncio.sleep(0.5)
        self.cut(ETCD, spare.host)
        await self.until_moved(leader.number, first.number, second.number)
        self.move(spare.number)
        await self.hear(spare)
