"""The peer listener: connections of other nodes. Nothing is served before a node has proved that it belongs to the cluster.

Whoever has not proved it yet has a few seconds for that and little room: strangers may be many, and the one that has taken longest makes place for
the next. Nodes need some milliseconds for it, so they get in however many strangers there are, and have the other room for themselves.
"""

import asyncio
import logging
import socket
from typing import Final

from penstock.core.broker import Broker
from penstock.core.cluster.copying import OnFetched
from penstock.gateways.peers.connection import PeerConnection
from penstock.ports import EndOfTurn
from penstock.transport.receive import BufferPool

logger = logging.getLogger("penstock.peers")

CONNECTIONS_MAX: Final = 10_000
"""Of nodes that have proved themselves: each has a few."""
PEERS: Final = "peer"
"""How the listener is called where connections are counted."""
STRANGERS_MAX: Final = 64
"""Of who has not, or not yet: more than there are nodes that come back at the same moment."""


class PeerGateway:
    """All connections of other nodes to this one."""

    def __init__(
        self, broker: Broker, turn: EndOfTurn, secret: bytes, on_fetched: OnFetched, heard_ms: dict[int, int]
    ) -> None:
        self.broker: Final = broker
        self.cluster: Final = broker.cluster
        self.turn: Final = turn
        self.secret: Final = secret
        self.on_fetched: Final = on_fetched
        self.heard_ms: Final = heard_ms
        """When each node last asked for anything, in monotonic time."""
        self.buffers: Final = BufferPool()
        self._server: asyncio.Server | None = None
        self._connections: dict[PeerConnection, None] = {}
        """All of them, strangers too."""
        self._strangers: dict[PeerConnection, None] = {}
        """Who has not proved itself, in the order in which they came."""
        self._gone = asyncio.Event()
        self._is_stopping = False
        broker.meters.connections[PEERS] = lambda: len(self._connections)

    async def start(self, listener: socket.socket) -> None:
        """Listen on a bound socket, which is the gateway's from here on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: PeerConnection(self), sock=listener)

    async def stop(self) -> None:
        """Hang up. Other nodes find out who leads by the records."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:
            self._gone.clear()
            await self._gone.wait()

    def proved(self, connection: PeerConnection) -> bool:
        """It is a node of this cluster; whether there is room for it."""
        self._strangers.pop(connection, None)
        return len(self._connections) - len(self._strangers) <= CONNECTIONS_MAX

    def admit(self, connection: PeerConnection) -> None:
        """Somebody connected."""
        if self._is_stopping:
            # It was taken before the listener was closed, and is told of only now.
            connection.abort()
            return
        if len(self._strangers) >= STRANGERS_MAX:
            slowest = next(iter(self._strangers))
            del self._strangers[slowest]
            slowest.cut_off()
            self.broker.meters.connections_refused.add((PEERS,))
        self._connections[connection] = self._strangers[connection] = None

    def forget(self, connection: PeerConnection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)
        self._gone.set()
