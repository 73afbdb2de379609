"""Who a request belongs to, where that node listens, and the mark by which it knows that the request was carried to it.

A gateway that gets a request for what another node speaks for hands it on to the same listener of that node, marked, and gives the
answer back. A marked request is carried no further: the node that gets it serves it, or refuses it with a reason that
:func:`can_be_elsewhere` knows, and the first one looks again, as long as nothing can have been done.

Invariant: a mark is believed only from who knows the cluster's secret, for the request that it was made for and the node that it was sent to.
"""

import asyncio
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from penstock.address import Address
from penstock.core.access import Caller, Principal
from penstock.core.broker import Broker
from penstock.core.topic_records import NO_LEADER
from penstock.errors import PenstockError, Reason
from penstock.types import Gateway, NodeId

LOOK_AGAIN_SECONDS_MAX: Final = 5.0
"""So long a request waits for somebody to speak for it: about what it takes to notice that a node is dead, and to name another."""
LOOK_AGAIN_SECONDS: Final = 0.05
MARK_CHARS_MAX: Final = 4096

_ELSEWHERE: Final = frozenset(
    {
        Reason.NOT_LEADER_OR_FOLLOWER,
        Reason.LEADER_NOT_AVAILABLE,
        Reason.NOT_COORDINATOR,
        Reason.COORDINATOR_NOT_AVAILABLE,
        Reason.COORDINATOR_LOAD_IN_PROGRESS,
    }
)

Find = Callable[[], NodeId | None]
"""Asks the image again who a request belongs to; None is this node."""


def can_be_elsewhere(reason: Reason) -> bool:
    """Whether nothing was done because this node does not speak for it, or not yet: another try is safe."""
    return reason in _ELSEWHERE


class Carried(NamedTuple):
    """What a mark says: which node carried the request, to which, and whose request it is."""

    by_node: NodeId
    to_node: NodeId
    principal: str
    client: str

    def caller(self, gateway: Gateway) -> Caller:
        """Who asked the node that carried it."""
        return Caller(Principal(self.principal), gateway, self.client)


class _Mark(msgspec.Struct, frozen=True, array_like=True):
    by_node: int
    to_node: int
    principal: str
    client: str
    proof: bytes


class Carrying:
    """Asked by every gateway. A broker that is alone is always the one: every answer is None."""

    def __init__(self, broker: Broker) -> None:
        self._broker: Final = broker
        self._node_id: Final = broker.node_id

    # Who it belongs to. What does not exist belongs to whoever is asked, and is refused there.

    def group(self, group: str) -> NodeId | None:
        """Who speaks for a group and its queues, None for this node; COORDINATOR_NOT_AVAILABLE while nobody does."""
        cluster = self._broker.cluster
        return None if cluster is None else self._other(cluster.coordinators.node_of(group))

    def keys(self, topic: str) -> NodeId | None:
        """Who remembers the produce keys of a topic."""
        cluster = self._broker.cluster
        found = None if cluster is None else self._broker.topics.get(topic)
        return None if cluster is None or found is None else self._other(cluster.coordinators.keys_node(found))

    def sinks(self) -> NodeId | None:
        """Who speaks for all sinks."""
        cluster = self._broker.cluster
        return None if cluster is None else self._other(cluster.coordinators.sinks_node())

    def partition(self, topic: str, index: int) -> NodeId | None:
        """Who leads a partition; LEADER_NOT_AVAILABLE while nobody does."""
        broker = self._broker
        found = None if broker.cluster is None else broker.topics.get(topic)
        if found is None or not 0 <= index < found.partition_count:
            return None
        leader = broker.topics.partition(found, index).leader
        if leader == NO_LEADER:
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE,
                f"Nobody leads {topic}/{index}: no node that has all of it is up. Try again in a moment.",
            )
        return self._other(leader)

    def _other(self, node: int) -> NodeId | None:
        return None if node == self._node_id else NodeId(node)

    def address(self, node: NodeId, listener: Gateway) -> Address:
        """Where that node serves this protocol; LEADER_NOT_AVAILABLE when it is not up, or does not serve it."""
        cluster = self._broker.cluster
        assert cluster is not None, "a broker that is alone carries nothing"
        return cluster.nodes.address(node, listener.value)

    async def found(self, find: Find) -> NodeId | None:
        """What ``find`` answers, asked again for a few seconds while nobody speaks for it; then its refusal."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LOOK_AGAIN_SECONDS_MAX
        while True:
            try:
                return find()
            except PenstockError as error:
                if not can_be_elsewhere(error.reason) or loop.time() >= until:
                    raise
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    # The mark.

    def mark(self, to_node: NodeId, caller: Caller, request: bytes) -> str:
        """What a request carries to another node; ``request`` is what it is good for, as both nodes know it."""
        cluster = self._broker.cluster
        assert cluster is not None, "a broker that is alone carries nothing"
        carried = Carried(self._node_id, to_node, caller.principal, caller.client)
        return urlsafe_b64encode(
            msgspec.json.encode(_Mark(*carried, _proof(cluster.secret, carried, request)))
        ).decode()

    def believed(self, mark: str | bytes, request: bytes) -> Carried | None:
        """What the mark says, if a node of this cluster made it for this request and this node; else None: it is a client's."""
        cluster = self._broker.cluster
        if cluster is None or not cluster.secret or len(mark) > MARK_CHARS_MAX:
            return None
        try:
            read = msgspec.json.decode(urlsafe_b64decode(mark), type=_Mark)
        except (ValueError, msgspec.MsgspecError):
            return None
        carried = Carried(NodeId(read.by_node), NodeId(read.to_node), read.principal, read.client)
        is_ours = hmac.compare_digest(_proof(cluster.secret, carried, request), read.proof)
        return carried if is_ours and carried.to_node == self._node_id else None


def _proof(secret: bytes, carried: Carried, request: bytes) -> bytes:
    words = (b"carried", *(str(word).encode() for word in carried), request)
    return hmac.digest(secret, b"".join(len(word).to_bytes(4, "big") + word for word in words), "sha256")
