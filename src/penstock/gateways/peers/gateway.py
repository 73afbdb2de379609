"""The peer listener: connections of other nodes. Nothing is served before a node has proved that it belongs to the cluster.

Connections that have not proved it yet have a few seconds for that, and few places: the oldest one is closed to make room for the next.
Nodes need some milliseconds, so they get in however many strangers there are, and the other places are theirs.
"""

import asyncio
import logging
from typing import Final

from penstock.core.broker import Broker
from penstock.core.cluster.copying import OnFetched
from penstock.gateways.peers.connection import PeerConnection, refusal_without_tls
from penstock.ports import EndOfTurn
from penstock.transport.listener import Accepting, Door, Listener
from penstock.transport.peer_tls import PeerTls
from penstock.transport.receive import BufferPool

logger = logging.getLogger("penstock.peers")

CONNECTIONS_MAX: Final = 10_000
"""Connections of nodes, which have a few each."""
PEERS: Final = "peer"
"""The name of the listener in the metrics."""
STRANGERS_MAX: Final = 64
"""Connections that have not proved themselves: more than the nodes that reconnect at the same time."""


class PeerGateway:
    """All connections of other nodes to this one."""

    def __init__(
        self, broker: Broker, turn: EndOfTurn, tls: PeerTls, on_fetched: OnFetched, heard_ms: dict[int, int]
    ) -> None:
        self.broker: Final = broker
        self.cluster: Final = broker.cluster
        self.turn: Final = turn
        self.tls: Final = tls
        self.on_fetched: Final = on_fetched
        self.heard_ms: Final = heard_ms
        """When each node last fetched, in monotonic time."""
        self.buffers: Final = BufferPool()
        self._door: Accepting | None = None
        self._connections: dict[PeerConnection, None] = {}
        """All connections, including strangers."""
        self._strangers: dict[PeerConnection, None] = {}
        """Connections that have not proved themselves, in the order of arrival."""
        self._gone = asyncio.Event()
        self._is_stopping = False
        broker.cluster.secret.on_changed.append(self._secret_changed)
        broker.meters.connections[PEERS] = lambda: len(self._connections)

    async def start(self, listener: Listener) -> None:
        """Serve a listener."""
        self._door = await listener.serve(Door(lambda arrival: PeerConnection(self, arrival), refusal_without_tls))

    async def stop(self) -> None:
        """Close all connections. Other nodes find the new leaders in the metadata."""
        self._is_stopping = True
        if self._door is not None:
            self._door.close()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:
            self._gone.clear()
            await self._gone.wait()

    def proved(self, connection: PeerConnection) -> bool:
        """A connection has proved that it is a node of this cluster. Returns whether there is room for it."""
        self._strangers.pop(connection, None)
        return len(self._connections) - len(self._strangers) <= CONNECTIONS_MAX

    def admit(self, connection: PeerConnection) -> None:
        """Somebody has connected."""
        if self._is_stopping:
            # It was accepted before the listener was closed.
            connection.abort()
            return
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.make_room()
            self.broker.meters.connections_refused.add((PEERS,))
        self._connections[connection] = self._strangers[connection] = None

    def _secret_changed(self) -> None:
        """A node that knows only a secret that is no longer valid does not belong to this cluster."""
        for connection in list(self._connections):
            connection.check_secret()

    def forget(self, connection: PeerConnection) -> None:
        """A connection is closed."""
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)
        self._gone.set()
