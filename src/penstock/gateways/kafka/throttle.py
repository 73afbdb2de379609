"""What quotas do to one connection (KIP-219): a request over a quota is answered at once, and then the connection is not read for a while.

The answer says for how long, if its version can. A byte quota counts the requests of a producer as they arrive, and the records of a
consumer before they are sent: over the quota, it gets an empty answer instead (``handlers/k01_fetch.py``). The time of a request is what
its handler takes of the event loop.
"""

from collections.abc import Awaitable, Generator
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core.quotas.names import QuotaKey
from penstock.core.quotas.quotas import Allowance
from penstock.core.security.access import Caller
from penstock.limits import CLIENT_ID_CHARS_MAX, REQUEST_THROTTLE_MS_MAX, THROTTLE_MS_MAX
from penstock.transport.receive import LENGTH_BYTES, FrameReader
from penstock.wire.kafka.apis import ApiKey

if TYPE_CHECKING:
    from penstock.gateways.kafka.connection import KafkaConnection
    from penstock.gateways.kafka.context import RequestContext

_CLIENT_ID_AT: Final = 8
"""After the API key, the version and the correlation id."""
_LENGTH: Final = Struct(">h")
_PERCENT: Final = 100
"""A request that takes a second takes 100 % of a second."""


class Lane(Protocol):
    """A fast lane."""

    @property
    def is_answered(self) -> bool:
        """Whether its requests have answers."""
        ...

    def take(self, frames: FrameReader, start: int, end: int, version: int, correlation_id: int, /) -> bool:
        """Handle the request, unless it returns False."""
        ...


class Throttle:
    """The quotas of a connection. Nothing here is called while no quota is set."""

    __slots__ = ("_allowance", "_caller", "_clock", "_connection", "_quotas", "_raw_id")

    def __init__(self, connection: "KafkaConnection") -> None:
        self._connection = connection
        self._quotas = connection.broker.quotas
        self._clock = connection.broker.clock
        self._allowance: Allowance | None = None
        self._caller: Caller | None = None
        self._raw_id = b""
        """The client id of the last request, as it was sent."""

    def begin(self, api_key: int, buffer: bytearray, start: int, end: int) -> int:
        """A request has arrived. Counts the bytes of a producer; returns for how long its answer throttles the client."""
        rate = self._identified(buffer, start, end).produce
        if api_key != ApiKey.PRODUCE or rate is None:
            return 0
        delay_ms = min(rate.record(end - start + LENGTH_BYTES, self._clock.monotonic_ms()), THROTTLE_MS_MAX)
        if delay_ms:
            self._mute(QuotaKey.PRODUCE, delay_ms)
        return delay_ms

    def lane(self, lane: Lane, frames: FrameReader, start: int, end: int, version: int, correlation_id: int) -> bool:
        """Let a lane take the request. Its answer cannot throttle, so it must not be due."""
        rate = self.allowance().request
        if rate is None:
            return lane.take(frames, start, end, version, correlation_id)
        now_ms = self._clock.monotonic_ms()
        if rate.delay_ms(now_ms):
            return False
        began = perf_counter()
        taken = lane.take(frames, start, end, version, correlation_id)
        if taken and lane.is_answered:
            rate.record((perf_counter() - began) * _PERCENT, now_ms)
        return taken

    def finish(self, context: "RequestContext", response: object) -> None:
        """A request is answered: count its time, tell the client for how long it is throttled, and mute the connection."""
        delay_ms, key = context.throttle_ms, context.throttled_by
        rate = self.allowance().request
        if rate is not None:
            spent = min(rate.record(context.seconds * _PERCENT, self._clock.monotonic_ms()), REQUEST_THROTTLE_MS_MAX)
            if spent > delay_ms:
                delay_ms, key = spent, QuotaKey.REQUEST
        if not delay_ms:
            return
        if hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = delay_ms
        # The bytes of a producer have muted the connection as they arrived.
        if key is not None:
            self._mute(key, delay_ms)

    def _mute(self, key: QuotaKey, delay_ms: int) -> None:
        connection = self._connection
        connection.mute(delay_ms, connection.gateway.loop)
        self._quotas.count(self.allowance(), key, delay_ms)

    def allowance(self) -> Allowance:
        """What limits the client now."""
        found, caller = self._allowance, self._connection.caller
        if found is None or found.version != self._quotas.version or caller is not self._caller:
            found = self._allowance = self._quotas.of(caller)
            self._caller = caller
        return found

    def _identified(self, buffer: bytearray, start: int, end: int) -> Allowance:
        """The same for the client id in a request, which a lane does not decode."""
        at = start + _CLIENT_ID_AT
        (length,) = _LENGTH.unpack_from(buffer, at) if at + _LENGTH.size <= end else (0,)
        first = at + _LENGTH.size
        raw_id = buffer[first : min(first + max(length, 0), end)]
        if raw_id != self._raw_id:
            self._raw_id = bytes(raw_id)
            self._connection.client_is(raw_id.decode(errors="replace")[:CLIENT_ID_CHARS_MAX])
        return self.allowance()


class Timed:
    """Awaits a handler, and adds the time that it takes of the event loop to its request."""

    __slots__ = ("_awaited", "_context")

    def __init__(self, awaited: Awaitable[Any], context: "RequestContext") -> None:
        self._awaited = awaited
        self._context = context

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaited.__await__()
        context, sent, thrown = self._context, None, None
        while True:
            began = perf_counter()
            try:
                waits_for = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as ended:
                return ended.value
            finally:
                context.seconds += perf_counter() - began
            sent = thrown = None
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is for the handler, for instance that it is cancelled
                thrown = error
