"""The connections to the other nodes' HTTP listeners: kept, bounded, and closed when the node at the other end is taken for dead.

A stream or a request that may wait has a connection of its own. Short calls share one per node and go out one behind another,
so what one client sends in a row is served in that order.

Invariant: a connection belongs to one life of a node. When the cluster's image has that life no more, its connections are closed,
and whoever waits for an answer is told.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.http.peer_connection import Exchange, PeerConnection
from penstock.limits import MIB
from penstock.types import Gateway, NodeId

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

CONNECT_SECONDS_MAX: Final = 2.0
FREE_MAX: Final = 32
"""Connections to one node that are kept although nothing is asked on them."""
FREE_SECONDS_MAX: Final = 30.0
"""Less than the other node waits before it closes one: a request must not meet the end of its connection."""
CONNECTIONS_MAX: Final = 1_100
"""To one node: every stream of this gateway, and some calls."""
SHARED_UNSENT_BYTES_MAX: Final = 16 * MIB
SHARED_COUNT_MAX: Final = 10_000
"""Short calls on their way to one node."""

_Life = tuple[NodeId, int]


class _Node:
    """The connections to one life of a node."""

    def __init__(self) -> None:
        self.all: set[PeerConnection] = set()
        self.free: list[PeerConnection] = []
        self.shared: PeerConnection | None = None
        self.sharing: asyncio.Task[PeerConnection] | None = None


class PeerPool:
    """All of them. PenstockError from :meth:`ask` means that nothing was sent."""

    def __init__(self, gateway: "HttpGateway") -> None:
        self._gateway = gateway
        self._nodes: dict[_Life, _Node] = {}
        cluster = gateway.broker.cluster
        assert cluster is not None
        self._image: Final = cluster.nodes
        self._image.on_changed.append(self._look)

    async def ask(self, node_id: NodeId, request: bytes, *, alone: bool, is_head: bool = False) -> Exchange:
        """Send a request to a node, on a connection that it has ``alone`` or behind others."""
        found = self._image.nodes.get(node_id)
        life = (node_id, -1 if found is None else found.epoch)
        # Raises when it is not up.
        self._image.address(node_id, Gateway.HTTP.value)
        node = self._nodes.setdefault(life, _Node())
        if alone or is_head:
            connection = self._free_one(node) or await self._connect(life, node)
            return _alive(connection, node_id).begin(request, is_head=is_head)
        shared = _alive(await self._shared(life, node), node_id)
        if shared.unsent_bytes > SHARED_UNSENT_BYTES_MAX or shared.count >= SHARED_COUNT_MAX:
            raise _too_many(node_id)
        return shared.begin(request)

    def look_after(self, now: float) -> None:
        """Once a second: close what nobody used for long."""
        for node in self._nodes.values():
            for connection in [each for each in node.free if now - each.free_since > FREE_SECONDS_MAX]:
                connection.abort()
            shared = node.shared
            if shared is not None and not shared.count and now - shared.free_since > FREE_SECONDS_MAX:
                shared.abort()

    def close(self) -> None:
        """Every connection ends. Fine when they have."""
        if self._look in self._image.on_changed:
            self._image.on_changed.remove(self._look)
        for life in list(self._nodes):
            self._close(life)

    def _look(self) -> None:
        nodes = self._image.nodes
        for life in list(self._nodes):
            found = nodes.get(life[0])
            if found is None or found.epoch != life[1]:
                self._close(life)

    def _close(self, life: _Life) -> None:
        node = self._nodes.pop(life)
        for connection in list(node.all):
            connection.abort()

    def _free_one(self, node: _Node) -> PeerConnection | None:
        now = self._gateway.loop.time()
        while node.free:
            connection = node.free.pop()
            if now - connection.free_since < FREE_SECONDS_MAX:
                return connection
            connection.abort()
        return None

    async def _shared(self, life: _Life, node: _Node) -> PeerConnection:
        shared = node.shared
        if shared is not None and (shared.count or self._gateway.loop.time() - shared.free_since < FREE_SECONDS_MAX):
            return shared
        if shared is not None:
            shared.abort()
        if node.sharing is None:
            node.sharing = asyncio.ensure_future(self._share(life, node))
        # Whoever gives up does not end it for the others.
        return await asyncio.shield(node.sharing)

    async def _share(self, life: _Life, node: _Node) -> PeerConnection:
        try:
            node.shared = await self._connect(life, node)
            return node.shared
        finally:
            node.sharing = None

    async def _connect(self, life: _Life, node: _Node) -> PeerConnection:
        if len(node.all) >= CONNECTIONS_MAX:
            raise _too_many(life[0])
        address = self._image.address(life[0], Gateway.HTTP.value)

        def is_free(connection: PeerConnection) -> None:
            if connection is node.shared:
                return
            if len(node.free) < FREE_MAX:
                node.free.append(connection)
            else:
                connection.abort()

        def is_lost(connection: PeerConnection) -> None:
            node.all.discard(connection)
            if connection in node.free:
                node.free.remove(connection)
            if connection is node.shared:
                node.shared = None

        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, connection = await self._gateway.loop.create_connection(
                    lambda: PeerConnection(is_free, is_lost), address.host, address.port
                )
        except (OSError, TimeoutError) as error:
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE,
                f"Node {life[0]} cannot be reached at {address}: {str(error) or 'no answer'}.",
            ) from None
        if life not in self._nodes:
            # It was taken for dead meanwhile.
            connection.abort()
            raise _not_up(life[0])
        node.all.add(connection)
        return connection


def _alive(connection: PeerConnection, node_id: int) -> PeerConnection:
    """The connection, unless it ended before anything was sent on it."""
    if connection.is_lost:
        raise _not_up(node_id)
    return connection


def _not_up(node_id: int) -> PenstockError:
    return PenstockError(Reason.LEADER_NOT_AVAILABLE, f"Node {node_id} is not up.")


def _too_many(node_id: int) -> PenstockError:
    return PenstockError(
        Reason.POLICY_VIOLATION,
        f"Too many requests are on their way to node {node_id}, which they belong to. Ask it directly, or try again later.",
    )
