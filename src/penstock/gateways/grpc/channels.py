"""Channels to the gRPC listeners of other nodes, over which calls are carried: made for one life of a node when they are first needed, and as
many as its calls need.

A channel is connected before a call is begun on it: a node that cannot be reached is LEADER_NOT_AVAILABLE, and nothing was done. A call that
ends without the other node's word is LINK_LOST, and nobody knows. When a life of a node ends, so do all calls to it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from penstock.address import Address
from penstock.core.cluster_image import ClusterImage
from penstock.errors import PenstockError, Reason
from penstock.gateways.carrying import Carrying
from penstock.limits import GRPC_CONNECTION_STREAMS_MAX
from penstock.types import Gateway, NodeId

CONNECT_SECONDS: Final = 2.0
CALLS_MAX: Final = GRPC_CONNECTION_STREAMS_MAX // 2
"""Of one channel; the other side takes no more on one connection than twice as many, and lets the others wait."""
_KEEPALIVE_MS: Final = 20_000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000
_AHEAD_BYTES: Final = 1024 * 1024
"""What a stream may have on its way between two nodes. grpc would let it grow to many times that, for a client that takes nothing."""
_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    # What the other node sends is bounded there; what is sent was bounded when it came here.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Every gateway has its own connections, also when several nodes run in one process.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _AHEAD_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class _Channel:
    """One connection to one life of a node, and how many calls it has."""

    __slots__ = ("calls", "channel", "epoch")

    def __init__(self, epoch: int, address: Address) -> None:
        self.epoch: Final = epoch
        self.channel: Final[Any] = grpc.aio.insecure_channel(str(address), options=_OPTIONS)
        self.calls = 0


class Channels:
    """Those of one gateway."""

    def __init__(self, carrying: Carrying, nodes: ClusterImage) -> None:
        self._carrying = carrying
        self._nodes = nodes
        self._channels: dict[NodeId, list[_Channel]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        nodes.on_changed.append(self._nodes_changed)

    @asynccontextmanager
    async def to(self, node: NodeId) -> AsyncIterator[Any]:
        """A channel that is connected, for one call; LEADER_NOT_AVAILABLE when the node cannot be reached."""
        address = self._carrying.address(node, Gateway.GRPC)
        found = self._free(node, address)
        found.calls += 1
        try:
            if found.channel.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.READY:
                await _connected(found.channel, node, address)
            yield found.channel
        finally:
            found.calls -= 1

    def _free(self, node: NodeId, address: Address) -> _Channel:
        epoch = self._nodes.nodes[node].epoch
        channels = self._channels.setdefault(node, [])
        for channel in channels:
            if channel.epoch == epoch and channel.calls < CALLS_MAX:
                return channel
        channels.append(_Channel(epoch, address))
        return channels[-1]

    def _nodes_changed(self) -> None:
        for node, channels in list(self._channels.items()):
            found = self._nodes.nodes.get(node)
            if found is None or any(channel.epoch != found.epoch for channel in channels):
                self._drop(node)

    def _drop(self, node: NodeId) -> None:
        for channel in self._channels.pop(node, ()):
            task = asyncio.ensure_future(channel.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Carry nothing more."""
        if self._nodes_changed in self._nodes.on_changed:
            self._nodes.on_changed.remove(self._nodes_changed)
        for node in list(self._channels):
            self._drop(node)
        if self._closing:
            await asyncio.wait(set(self._closing))


async def _connected(channel: Any, node: NodeId, address: Address) -> None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await channel.channel_ready()
    except (TimeoutError, grpc.aio.UsageError) as error:
        raise PenstockError(
            Reason.LEADER_NOT_AVAILABLE, f"Node {node} cannot be reached at {address}. Try again in a moment."
        ) from error
