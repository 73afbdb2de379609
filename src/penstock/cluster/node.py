"""The parts of a node that connect its broker to the cluster. ``server.py`` starts them after the broker, and stops them before it."""

import asyncio
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from penstock import __version__
from penstock.address import Address
from penstock.cluster.controller import Controller
from penstock.cluster.fetching import Fetching
from penstock.cluster.in_sync_changes import InSyncChanges
from penstock.cluster.internal_topics import InternalTopics
from penstock.cluster.links import Identity
from penstock.cluster.registration import NodeRegistration
from penstock.cluster.remote import RemotePeers
from penstock.cluster.router import OperationRouter
from penstock.cluster.watching import Watching
from penstock.core.broker import Broker
from penstock.core.cluster.image import NodeRecord
from penstock.core.topics.records import partition_key
from penstock.gateways.peers.gateway import PeerGateway
from penstock.metadata.port import SharedStore
from penstock.ports import EndOfTurn
from penstock.transport.listener import Listener
from penstock.transport.peer_tls import PeerTls

_HANDOVER_LOOK_SECONDS: Final = 0.02


class NodeRunner:
    """``start`` returns once the node is registered, so that it can be elected."""

    def __init__(
        self,
        broker: Broker,
        store: SharedStore,
        turn: EndOfTurn,
        *,
        directory: UUID,
        listeners: Mapping[str, Address],
        tls: PeerTls,
    ) -> None:
        """``listeners`` are the addresses to which other nodes and clients connect; one must be ``peer``."""
        self._broker = broker
        self._cluster: Final = broker.cluster
        settings = broker.settings.cluster
        self._handover_seconds = settings.handover_ms / 1000
        self._tls = tls
        record = NodeRecord(
            incarnation=broker.entropy.uuid(),
            directory=directory,
            listeners={name: str(address) for name, address in listeners.items()},
            rack=settings.rack or None,
            version=__version__,
            started_ms=broker.clock.now_ms(),
            peer_tls=tls.is_offered,
        )
        self.registration: Final = NodeRegistration(
            store,
            broker.node_id,
            record,
            ttl_ms=settings.lease_ms,
            on_registered=self._registered,
            lacking=lambda: [partition_key(*place) for place in self._cluster.lacking],
        )
        self.changes: Final = InSyncChanges(broker, store)
        self.peers: Final = PeerGateway(broker, turn, tls, self.changes.consider, self.changes.heard_ms)
        self.fetching: Final = Fetching(broker, self._identity)
        self.remote: Final = RemotePeers(broker, self._identity)
        self.router: Final = OperationRouter(broker, self._identity, lambda: self.registration.problem)
        self.controller: Final = Controller(broker, store, self.registration)
        self.watching: Final = Watching(broker, store, self._identity)
        self.controller.chores.append(InternalTopics(broker).make)
        # In advance, since the metadata store may be unavailable when producers need ids.
        self._cluster.replicas.on_lead.append(lambda _: broker.prepare_ids())

    def _identity(self) -> Identity:
        return Identity(self._broker.node_id, self.registration.epoch, self._cluster.secret, self._tls)

    def _registered(self, epoch: int) -> None:
        self._cluster.replicas.registered(epoch)
        if epoch >= 0:
            self._broker.prepare_ids()

    async def start(self, peer_listener: Listener) -> None:
        """Listen for other nodes, register, and begin to copy, to watch other nodes, and to be a candidate for controller."""
        await self.peers.start(peer_listener)
        await self.registration.start()
        self.fetching.start()
        self.remote.start()
        self.router.start()
        self.changes.start()
        self.controller.start()
        self.watching.start()

    async def hand_over(self) -> None:
        """Before this node stops, wait until other nodes lead its partitions, as far as they can."""
        if not await self.registration.announce_stop():
            return
        try:
            async with asyncio.timeout(self._handover_seconds):
                while any(self._can_move(*place) for place in self._led()):  # noqa: ASYNC110 - there is no event for this
                    await asyncio.sleep(_HANDOVER_LOOK_SECONDS)
        except TimeoutError:
            return

    def _led(self) -> list[tuple[str, int]]:
        return [(partition.topic.name, partition.index) for partition in self._cluster.replicas.leading()]

    def _can_move(self, topic: str, index: int) -> bool:
        """Whether another node could lead it."""
        found = self._broker.topics.get(topic)
        if found is None:
            return False
        avoided = self._cluster.nodes.avoided()
        record = self._broker.topics.partition(found, index)
        return any(node not in avoided and self._cluster.nodes.is_live(node, epoch) for node, epoch in record.isr)

    async def stop(self) -> None:
        """End this incarnation of the node."""
        await self.watching.stop()
        await self.controller.stop()
        await self.changes.stop()
        await self.fetching.stop()
        await self.router.stop()
        await self.remote.stop()
        await self.peers.stop()
        await self.registration.leave()
