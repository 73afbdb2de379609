"""What a handler knows: the broker, who calls, and what all calls of the gateway share."""

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

from grpc import StatusCode

from penstock.core.access import ANONYMOUS, Action, Caller
from penstock.core.broker import Broker
from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.carrying import Carried
from penstock.gateways.grpc.errors import topic_not_found
from penstock.gateways.grpc.progress import Progress
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.gateways.grpc.carrier import Carrier

_T = TypeVar("_T")
_NOWHERE: Final[Mapping[int, int]] = {}


class Begun(PenstockError):
    """Something was begun, and then refused: whether it was done is not known here, and it is not tried again."""


class Garbled(NamedTuple):
    """In the place of a request whose bytes are none. grpc would end the call itself, and say to the client only that something was unknown."""

    request: str
    why: str

    @property
    def refusal(self) -> PenstockError:
        """What the client is told."""
        return PenstockError(
            Reason.INVALID_REQUEST,
            f"The request body is not a valid {self.request} message ({self.why}). Use the .proto file of the service, or reflection.",
        )


class Told(Exception):
    """Another node's status, for the client."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Serving:
    """What all calls share while the gateway serves."""

    def __init__(self, broker: Broker) -> None:
        self.broker: Final = broker
        self.loop: Final = asyncio.get_running_loop()
        self.stopping = False
        self.carrier: Carrier | None = None
        """Hands calls to other nodes, where there are any."""
        self._calls = 0
        self._drained = asyncio.Event()
        self.streams: Final[dict[Callable[[], None], asyncio.Task[Any]]] = {}
        """What wakes each open stream, so that it sees that the broker stops, and the task that serves it."""
        self.followers: Final[dict[tuple[str, str, str], Callable[[], None]]] = {}
        """By group, topic and consumer: what tells a subscription that a newer one of the same name took its place."""

    def stop(self) -> None:
        """Have every stream end."""
        self.stopping = True
        for wake in list(self.streams):
            wake()

    def cut_off(self) -> None:
        """End the streams that did not end by themselves: their clients read nothing, so that nothing can be told to them."""
        for task in list(self.streams.values()):
            task.cancel()

    @contextmanager
    def call(self) -> Generator[None, None, None]:
        """A call is under way that has one answer."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self.stopping and not self._calls:
                self._drained.set()

    async def drained(self, seconds: float) -> None:
        """Until every call with one answer has it, but not for ever."""
        if self._calls:
            try:
                async with asyncio.timeout(seconds):
                    await self._drained.wait()
            except TimeoutError:
                pass

    @contextmanager
    def stream(self, wake: Callable[[], None]) -> Generator[None, None, None]:
        """The running task serves a stream, which ``wake`` wakes. SHUTTING_DOWN when the broker stops."""
        self.require_running()
        task = asyncio.current_task()
        assert task is not None
        self.streams[wake] = task
        try:
            yield
        finally:
            del self.streams[wake]

    def require_running(self) -> None:
        """SHUTTING_DOWN when the broker stops."""
        if self.stopping:
            raise PenstockError(Reason.SHUTTING_DOWN, "The broker is stopping. Connect again in a moment.")


@lru_cache(maxsize=1024)
def host_of(peer: str) -> str:
    """The client's host, of what grpc calls a peer: ``ipv4:127.0.0.1:50000``, ``ipv6:%5B::1%5D:50000``."""
    family, _, rest = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return peer
    return unquote(rest).rpartition(":")[0].strip("[]")


class Call:
    """One call under way."""

    __slots__ = ("broker", "caller", "carried", "context", "next_offsets", "progress", "serving")

    def __init__(
        self, serving: Serving, context: Any, carried: Carried | None = None, next_offsets: Mapping[int, int] = _NOWHERE
    ) -> None:
        self.serving: Final = serving
        self.broker: Final = serving.broker
        self.context: Final = context
        self.carried: Final = carried
        """By whom, if another node carried it here: then it is carried no further."""
        self.next_offsets: Final = next_offsets
        """Where a subscription stands that was begun at another node."""
        self.progress: Progress | None = None
        """Of a subscription that may go on at another node."""
        if carried is None:
            self.caller = Caller(ANONYMOUS, Gateway.GRPC, host_of(context.peer()))
        else:
            self.caller = carried.caller(Gateway.GRPC)

    def stands(self, partition: int) -> int | None:
        """Where the subscription stands in a partition, if it was begun elsewhere."""
        if self.progress is not None and partition in self.progress.next_offsets:
            return self.progress.next_offsets[partition]
        return self.next_offsets.get(partition)

    async def started(self, consumer_id: str, metadata: Any) -> None:
        """A subscription stands: its client is told, once, wherever it goes on later."""
        progress = self.progress
        if progress is None or not progress.is_told:
            await self.context.send_initial_metadata(metadata)
        if progress is not None:
            progress.is_told = True
            progress.consumer_id = consumer_id

    def topic(self, name: str, action: Action) -> Topic:
        """The topic, if the caller may do this to it."""
        access = self.broker.access
        if not access.allows_all:
            access.require_topic(self.caller, action, name)
        found = self.broker.topics.get(name)
        if found is None:
            raise topic_not_found(name)
        return found

    def group(self, name: str, action: Action) -> str:
        """The name of a group that the caller may do this to."""
        if not name:
            raise PenstockError(Reason.INVALID_GROUP_ID, "consumer_group is empty: specify the group")
        access = self.broker.access
        if not access.allows_all:
            access.require_group(self.caller, action, name)
        return name


async def told(start: Callable[[Callable[[_T], None]], None]) -> _T:
    """What a core call that takes time says: ``start`` hands it the callback on which it says so."""
    answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    def done(what: _T) -> None:
        # Whoever asked may be gone by now.
        if not answer.done():
            answer.set_result(what)

    start(done)
    return await answer


async def stored(start: Callable[[Callable[[Reason | None], None]], None]) -> None:
    """The same for a core call that says None, or why it could not be."""
    reason = await told(start)
    if reason is not None:
        raise Begun(reason)
