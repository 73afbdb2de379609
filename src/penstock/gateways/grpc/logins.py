"""Who makes a call: the credential in its metadata, or the certificate of its connection.

Every call is authenticated by itself, before its request is read; the authenticator remembers what it has checked. As connections at the
other listeners, the calls that wait for their login are limited, for each address and in total; the next one is refused at once. A stream ends
when its identity does. Health can be asked by everyone, reflection cannot.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Final

from grpc_reflection.v1alpha._async import ReflectionServicer

from penstock.core.security.attempts import network_of
from penstock.core.security.identity import Identity
from penstock.errors import PenstockError, Reason
from penstock.gateways.authorization import NAME, credential_in
from penstock.gateways.grpc.call import GrpcCall, Serving
from penstock.gateways.grpc.errors import code_of, details_of
from penstock.limits import GRPC_CONNECTION_STREAMS_MAX
from penstock.settings import LimitSettings

_NAME: Final = NAME.decode()


class Strangers:
    """The calls whose credential is being checked. Those with the same one count as one, so a client may begin with many calls at once."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits: Final = limits
        self._by_network: Final[dict[str, dict[bytes, int]]] = {}
        """How many calls wait for each credential, by the address of the client."""
        self._count = 0
        """Different credentials of all addresses."""

    @contextmanager
    def checking(self, client: str, given: bytes) -> Generator[None, None, None]:
        """One call waits within the block. POLICY_VIOLATION if too many do."""
        network = network_of(client)
        calls = self._by_network.get(network, {})
        is_new = given not in calls
        if sum(calls.values()) >= GRPC_CONNECTION_STREAMS_MAX or (is_new and self._is_full(calls)):
            raise PenstockError(
                Reason.POLICY_VIOLATION, "Too many calls wait for their login at the moment. Try again later"
            )
        calls[given] = calls.get(given, 0) + 1
        self._by_network[network] = calls
        self._count += is_new
        try:
            yield
        finally:
            calls[given] -= 1
            if not calls[given]:
                del calls[given]
                self._count -= 1
            if not calls:
                del self._by_network[network]

    def _is_full(self, calls: Mapping[bytes, int]) -> bool:
        return len(calls) >= self._limits.strangers_per_address_max or self._count >= self._limits.strangers_max


class Logins:
    """Of all calls of a gateway."""

    def __init__(self, serving: Serving, limits: LimitSettings) -> None:
        self.serving: Final = serving
        self._authenticator: Final = serving.broker.authenticator
        self.is_required: Final = self._authenticator.is_required
        self._strangers: Final = Strangers(limits)
        self._streams: Final[dict[asyncio.Task[Any], Identity]] = {}
        self._ended: Final[set[asyncio.Task[Any]]] = set()
        self._authenticator.on_changed.append(self._end_streams)

    async def call(self, context: Any) -> GrpcCall:
        """The call with its caller. AUTHENTICATION_REQUIRED without a credential, AUTHENTICATION_FAILED with a wrong one."""
        call = GrpcCall(self.serving, context)
        if self.is_required:
            call.identity = await self._identity(call)
            call.caller = call.identity.on(call.caller)
        return call

    async def _identity(self, call: GrpcCall) -> Identity:
        metadata = call.context.invocation_metadata() or ()
        given = [_bytes(value) for name, value in metadata if name == _NAME]
        credential = credential_in(given)
        host = call.caller.client
        is_private = self.serving.listener.is_private or _is_loopback(host)
        if credential is None:
            if call.certificate is None:
                raise PenstockError(
                    Reason.AUTHENTICATION_REQUIRED,
                    "Authentication is required; send the metadata authorization: Basic with a user and password, or Bearer with an API key or token",
                )
            return self._authenticator.certified(call.certificate)
        found = self._authenticator.remembered(credential, is_private=is_private)
        if found is not None:
            return self._authenticator.session(found)
        with self._strangers.checking(host, given[0]):
            return await self._authenticator.authenticate(credential, host, is_private=is_private)

    @contextmanager
    def stream(self, call: GrpcCall) -> Generator[None, None, None]:
        """The running task serves a stream of this call. AUTHENTICATION_FAILED when its identity ends."""
        if not self.is_required:
            yield
            return
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = call.identity
        timer = self._at_its_end(task, call.identity)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            raise PenstockError(
                Reason.AUTHENTICATION_FAILED,
                "The credential of this call is no longer valid; call again with another one",
            ) from None
        finally:
            if timer is not None:
                timer.cancel()
            del self._streams[task]
            self._ended.discard(task)

    def _at_its_end(self, task: "asyncio.Task[Any]", identity: Identity) -> asyncio.TimerHandle | None:
        if identity.expires_ms is None:
            return None
        left_ms = identity.expires_ms - self.serving.broker.clock.now_ms()
        return self.serving.loop.call_later(max(left_ms, 0) / 1000, self._end, task)

    def _end_streams(self) -> None:
        for task, identity in list(self._streams.items()):
            if not self._authenticator.is_current(identity):
                self._end(task)

    def _end(self, task: "asyncio.Task[Any]") -> None:
        if task in self._streams and task not in self._ended:
            self._ended.add(task)
            task.cancel()


class GuardedReflection(ReflectionServicer):  # type: ignore[misc]
    """Reflection, for callers that have authenticated."""

    def __init__(self, logins: Logins, names: tuple[str, ...], pool: Any) -> None:
        super().__init__(names, pool=pool)
        self._logins = logins

    async def ServerReflectionInfo(  # noqa: N802  grpc's name
        self, request_iterator: AsyncIterable[Any], context: Any
    ) -> AsyncIterator[Any]:
        """The answers to all requests of a stream."""
        try:
            await self._logins.call(context)
        except PenstockError as error:
            await context.abort(code_of(error.reason), details_of(error))
        async for answer in super().ServerReflectionInfo(request_iterator, context):
            yield answer


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        # A socket of the file system.
        return host.startswith("unix:")
