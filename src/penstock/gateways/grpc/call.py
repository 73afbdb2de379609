"""What a handler has access to: the broker, the caller, and what all calls of the gateway share."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from penstock.core.broker import Broker
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.core.security.identity import NOBODY
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.tls import certificate_name
from penstock.transport.listener import Listener
from penstock.transport.listening import host_of as socket_host
from penstock.types import Gateway


class UndecodableRequest(NamedTuple):
    """Replaces a request that could not be decoded; if that raised an error in grpc, the client would get no explanation."""

    request: str
    why: str

    @property
    def refusal(self) -> PenstockError:
        """The error for the client."""
        return PenstockError(
            Reason.INVALID_REQUEST,
            f"The request body is not a valid {self.request} message ({self.why}). Use the .proto file of the service, or reflection.",
        )


class Serving:
    """The calls under way, and what they share."""

    def __init__(self, broker: Broker, listener: Listener) -> None:
        self._open = 0
        self.broker: Final = broker
        self.listener: Final = listener
        self.loop: Final = asyncio.get_running_loop()
        self.stopping = False
        self._calls = 0
        self._drained = asyncio.Event()
        self.streams: Final[dict[Callable[[], None], asyncio.Task[Any]]] = {}
        """The open streams: what wakes each one when the broker stops, and the task that serves it."""

    def stop(self) -> None:
        """End all streams."""
        self.stopping = True
        for wake in list(self.streams):
            wake()

    def cut_off(self) -> None:
        """Cancel the streams that did not end because their clients do not read."""
        for task in list(self.streams.values()):
            task.cancel()

    def enter(self) -> None:
        """A call begins. POLICY_VIOLATION if too many are open; every call that began must :meth:`leave`."""
        most = self.broker.settings.grpc.streams_max
        if self._open >= most:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{most} calls are open, which is the limit (grpc.streams_max). Close some, or try again later.",
            )
        self._open += 1

    def leave(self) -> None:
        """A call that began has ended."""
        self._open -= 1

    @contextmanager
    def call(self) -> Generator[None, None, None]:
        """A call with one response is under way."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self.stopping and not self._calls:
                self._drained.set()

    async def drained(self, seconds: float) -> None:
        """Wait until all calls with one response are answered, at most this long."""
        if self._calls:
            try:
                async with asyncio.timeout(seconds):
                    await self._drained.wait()
            except TimeoutError:
                pass

    @contextmanager
    def stream(self, wake: Callable[[], None]) -> Generator[None, None, None]:
        """The running task serves a stream, which ``wake`` wakes. While the broker stops, all its errors become SHUTTING_DOWN."""
        self.require_running()
        task = asyncio.current_task()
        assert task is not None
        self.streams[wake] = task
        try:
            yield
        except PenstockError:
            self.require_running()
            raise
        finally:
            del self.streams[wake]

    def require_running(self) -> None:
        """Raise SHUTTING_DOWN if the broker stops."""
        if self.stopping:
            raise PenstockError(Reason.SHUTTING_DOWN, "The broker is stopping. Connect again in a moment.")


@lru_cache(maxsize=1024)
def host_of(peer: str) -> str:
    """The client's host, from a peer in grpc's format: ``ipv4:127.0.0.1:50000``, ``ipv6:%5B::1%5D:50000``."""
    family, _, rest = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return peer
    return socket_host((unquote(rest).rpartition(":")[0].strip("[]"),))


class GrpcCall:
    """One call."""

    __slots__ = ("broker", "caller", "certificate", "context", "identity", "serving")

    def __init__(self, serving: Serving, context: Any) -> None:
        self.serving: Final = serving
        self.broker: Final = serving.broker
        self.context: Final = context
        self.caller = Caller(ANONYMOUS, Gateway.GRPC, host_of(context.peer()), listener=serving.listener.name)
        tls = serving.listener.tls
        self.certificate: Final = None if tls is None else certificate_name(context, tls)
        """The name that the rules make of the client's certificate, if it presented one."""
        self.identity = NOBODY

    def consumed(self, size_bytes: int) -> None:
        """The client was sent records, which count for its quota."""
        if self.broker.quotas.is_on:
            self.broker.quotas.consumed(self.caller, size_bytes)

    def check_quota(self) -> None:
        """QuotaExceeded if the client is over a quota: a call has no other way to slow a client down, and a refused one can be repeated."""
        if self.broker.quotas.is_on:
            self.broker.quotas.check(self.caller)
