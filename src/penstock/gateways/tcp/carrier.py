"""Which lines of a client belong to another node, and how they get there and back.

A line belongs to the node that leads its partition, or that speaks for its group. What this node speaks for is served here, at once; the rest is
carried in its own words, one line at a time, and holds up what follows: so a client sees what it would see at a broker that is alone. Where a
partition begins and ends, its leader is asked.

Invariant: a line is tried again only while nothing can have been done, for a few seconds, while somebody is found who speaks for it. A line
that was carried here is carried no further.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.carrying import LOOK_AGAIN_SECONDS, LOOK_AGAIN_SECONDS_MAX, Carried, Find, can_be_elsewhere
from penstock.gateways.standing import standing
from penstock.gateways.tcp.answers import answer, group_answer, refusal
from penstock.gateways.tcp.errors import INVALID_FIELD, TOO_MUCH_UNSENT, Refused
from penstock.gateways.tcp.handlers import HANDLERS, commit, metrics_answer
from penstock.gateways.tcp.links import Links, signed_part
from penstock.gateways.tcp.links import Refused as RefusedThere
from penstock.gateways.tcp.requests import Request
from penstock.operations.operation import Action
from penstock.types import Gateway, NodeId, TopicName

if TYPE_CHECKING:
    from penstock.gateways.tcp.connection import TcpConnection

_OF_GROUPS: Final = frozenset({"commit", "metrics", "joinGroup", "leaveGroup", "heartbeat"})
_NOT_TWICE: Final = frozenset({"commit"})
"""What must not be sent again when it may have been done: another client's later commit would be undone."""
_NOBODY: Final = (
    "Nobody speaks for this at the moment: the node that did is gone or handing over. Nothing was done; send it again."
)


class Unsure(Exception):
    """Something was begun and its end is not known here: it is not tried again."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(error.text)
        self.error = error


class Carrier:
    """Of one client of a node of a cluster."""

    def __init__(self, connection: "TcpConnection") -> None:
        gateway = connection.gateway
        cluster = gateway.broker.cluster
        assert cluster is not None
        self._connection = connection
        self._broker = gateway.broker
        self._carrying = gateway.carrying
        self._links = Links(gateway, cluster.nodes)
        self.nonce = ""
        """What a node must have signed to be believed on this connection."""
        self.carried: Carried | None = None
        """For whom, if the client is another node that carries."""

    def greet(self, request: Request) -> bytes:
        """Another node says that it carries: first it is given a nonce, then it says for whom, and proves that it is a node."""
        if request.mark is None:
            self.nonce = self._broker.entropy.uuid().hex
            return answer({"nonce": self.nonce})
        nonce, self.nonce = self.nonce, ""
        carried = self._carrying.believed(request.mark, signed_part(nonce)) if nonce else None
        if carried is None:
            raise Refused(INVALID_FIELD, "Invalid mark: only nodes of this cluster carry; ask as a client does")
        self.carried = carried
        self._connection.caller = carried.caller(Gateway.TCP)
        return answer({})

    # Whose is it?

    def is_here(self, request: Request) -> bool:
        """Whether this node can answer at once."""
        carrying, api = self._carrying, request.type
        topic, index = request.topic or "", request.partition or 0
        try:
            if api == "fetch":
                return self.carried is not None or carrying.partition(topic, index) is None
            if api == "metrics" and carrying.partition(topic, index) is not None:
                return False
            if api == "metrics" and not request.group_id:
                return True
            return self.carried is not None or api not in _OF_GROUPS or carrying.group(request.group_id or "") is None
        except PenstockError:
            return False

    def looks_again(self, error: PenstockError | Refused) -> bool:
        """Whether a refusal of this node's core may be for the moment only."""
        return self.carried is None and isinstance(error, PenstockError) and can_be_elsewhere(error.reason)

    # There and back.

    async def serve(self, request: Request, line: bytes) -> bytes:
        """The answer, wherever it comes from. PenstockError when nothing was done; :class:`Unsure` when that is not known."""
        here: Callable[[], Awaitable[bytes]] = partial(self._handle, request)
        if request.type == "metrics":
            here = partial(self._metrics, request)
            if not request.group_id:
                return await here()
        elif request.type == "commit":
            here = partial(self._commit, request)
        if request.type == "fetch":
            find: Find = partial(self._carrying.partition, request.topic or "", request.partition or 0)
            if self._connection.gateway.unsent_bytes > self._connection.gateway.bounds.unsent_bytes_max:
                raise Refused(
                    TOO_MUCH_UNSENT, "Too many answers are not taken by their clients: fetch less, or try again later"
                )
        else:
            find = partial(self._carrying.group, request.group_id or "")
        return await self._ask(request, line, find, here)

    async def _handle(self, request: Request) -> bytes:
        return HANDLERS[request.type or ""](self._connection, request)

    async def _ask(self, request: Request, line: bytes, find: Find, here: Callable[[], Awaitable[bytes]]) -> bytes:
        """Ask whoever it belongs to, and look again while that changes."""
        if self.carried is not None:
            return await here()
        loop = asyncio.get_running_loop()
        until = loop.time() + LOOK_AGAIN_SECONDS_MAX
        while True:
            is_over = loop.time() >= until
            try:
                node = find()
                if node is None:
                    return await here()
                found = await self._ask_node(node, line)
                if not isinstance(found, RefusedThere):
                    return found
                if is_over or not self._is_for_the_moment(found.reason, request):
                    elsewhere = found.reason and can_be_elsewhere(Reason[found.reason])
                    self._connection.gateway.count_error(found.reason or "refused_there")
                    return refusal(_NOBODY if elsewhere else found.text)
            except PenstockError as error:
                lost = error.reason is Reason.LINK_LOST
                if lost and request.type in _NOT_TWICE:
                    raise Unsure(error) from error
                if not lost and not can_be_elsewhere(error.reason):
                    raise
                if is_over:
                    raise PenstockError(error.reason, f"{error.text.rstrip('.')}. {_NOBODY}") from error
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _ask_node(self, node: NodeId, line: bytes) -> bytes | RefusedThere:
        link = await self._links.to(node, self._connection.caller)
        return await link.ask(line)

    def _is_for_the_moment(self, reason: str, request: Request) -> bool:
        """Whether nothing was done there, and may be done elsewhere or a little later."""
        if not reason:
            return False
        found = Reason[reason]
        if found is Reason.UNKNOWN_TOPIC_OR_PARTITION:
            # It has not heard yet of a topic that is known here.
            return self._broker.exists(TopicName(request.topic or ""), request.partition or 0)
        return can_be_elsewhere(found)

    # Here, where it takes time.

    async def _metrics(self, request: Request) -> bytes:
        self._broker.access.require_topic(self._connection.caller, Action.DESCRIBE, request.topic or "")
        topic = self._broker.topics.require(request.topic or "")
        found = await standing(self._broker, topic, request.partition or 0)
        return metrics_answer(self._connection, request, found.start_offset, found.high_watermark)

    async def _commit(self, request: Request) -> bytes:
        stored: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()
        commit(self._connection, request, stored.set_result)
        reason = await stored
        if reason is not None:
            raise Unsure(PenstockError(reason))
        return group_answer(request.group_id or "")

    def close(self) -> None:
        """The client is gone."""
        self._links.close()

    def look_after(self, monotonic_ms: int) -> None:
        """Once a second."""
        self._links.look_after(monotonic_ms)
