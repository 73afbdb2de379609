"""One client's connection: lines are applied in the order they came, and answered in that order.

All lines of one received piece are handled at once, and everything that is ready leaves with one send at the end of the
loop's turn. A client sees what it would see if it waited for each answer before its next request, however many it sends ahead:
produce lines and commits do not wait for each other to be durable, but whatever could see them waits for them.

Nothing here grows without bound: reading pauses while too many lines are unanswered, or the client takes no answers.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from penstock.core.partition import Partition
from penstock.core.publish import NewRecord
from penstock.errors import PenstockError
from penstock.gateways.connections import ClientConnection
from penstock.gateways.settled import settled
from penstock.gateways.tcp.answers import refusal
from penstock.gateways.tcp.carrier import Carrier, Unsure
from penstock.gateways.tcp.errors import INTERNAL_ERROR, LINE_TOO_LONG, UNKNOWN_TYPE, Refused, text_for
from penstock.gateways.tcp.handlers import ENDS_MATTER, HANDLERS, SLOW_HANDLERS, commit, committed, reads_up_to
from penstock.gateways.tcp.produce import ProduceRun
from penstock.gateways.tcp.requests import CARRY, Request, new_record, parse
from penstock.types import Gateway
from penstock.wire.jsonlines import Line, LineSplitter

if TYPE_CHECKING:
    from penstock.gateways.tcp.gateway import TcpGateway

_PRODUCE: Final = "produce"
_COMMIT: Final = "commit"
_FETCH: Final = "fetch"
_KEPT_BYTES_FREE: Final = 16 * 1024
"""A line of this length every client may have on its way, however many there are."""


class Slot:
    """A place in the order of answers, for one line or more, empty until they are ready."""

    __slots__ = ("_connection", "api", "arrived", "data", "lines")

    def __init__(self, connection: "TcpConnection", api: str, lines: int) -> None:
        self._connection = connection
        self.api = api
        self.lines = lines
        self.arrived = connection.arrived
        self.data: bytes | None = None

    def complete(self, data: bytes) -> None:
        """These are the answers; they leave when those before them have."""
        assert self.data is None
        self.data = data
        self._connection.completed(self)


class TcpConnection(ClientConnection, asyncio.Protocol):
    """Lines in, handlers called, lines out."""

    def __init__(self, gateway: "TcpGateway") -> None:
        super().__init__(Gateway.TCP, gateway.turn, gateway.broker.clock.monotonic_ms())
        self.gateway: Final = gateway
        self.broker: Final = gateway.broker
        self.arrived = 0.0
        """When bytes last came: lines that came together share it."""
        self._bounds: Final = gateway.bounds
        self._splitter = LineSplitter(gateway.settings.line_bytes_max)
        self._kept_bytes = 0
        self._backlog: deque[Line] = deque()
        self._out: deque[bytes | Slot] = deque()
        self._held_bytes = 0
        """Of answers that are ready and not sent."""
        self._pending_lines = 0
        """Lines whose answers are not ready."""
        self._under_way = {_PRODUCE: 0, _COMMIT: 0}
        self._working: asyncio.Task[None] | None = None
        self._settled: Line = None
        """The line for which acknowledged records were waited for."""
        self._carrier: Final = None if gateway.broker.cluster is None else Carrier(self)
        self._closing = False
        self._lost = False

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        opened = self._open(transport, self._bounds.pending_output_bytes_max)
        refused = self.gateway.admit(self)
        if refused is not None:
            self._closing = True
            opened.write(refusal(refused))
            opened.close()

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone; what it waits for is dropped, what it produced stays, and what was begun comes to its end."""
        self._closing = self._lost = True
        self.gateway.forget(self)
        if self._carrier is not None and self._working is None:
            self._carrier.close()
        self._keep(0)
        self._backlog.clear()
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        """The next bytes are there."""
        if self._closing:
            return
        self._active = True
        self.arrived = perf_counter()
        splitter = self._splitter
        self._backlog += splitter.feed(data)
        if splitter.kept_bytes != self._kept_bytes and not self._keep(splitter.kept_bytes):
            splitter.skip()
            self._keep(0)
            self._backlog.append(None)
        if self._backlog:
            self._run()

    def _keep(self, kept_bytes: int) -> bool:
        """Whether a line that has not ended may be kept, with all those of other clients."""
        gateway = self.gateway
        gateway.kept_bytes += kept_bytes - self._kept_bytes
        self._kept_bytes = kept_bytes
        return kept_bytes <= _KEPT_BYTES_FREE or gateway.kept_bytes <= self._bounds.kept_bytes_max

    def eof_received(self) -> bool:
        """The client has said all: it gets its answers, then the connection ends."""
        self._ended = True
        if not self._closing:
            self._backlog += self._splitter.end()
            self._run()
        return True

    def pause_writing(self) -> None:
        """The client takes its answers too slowly."""
        self._choked = True
        self._update_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._choked = False
        self._run()

    @property
    def is_busy(self) -> bool:
        """Whether an answer is still to be made, and not just to be taken."""
        return self._pending_lines > 0 or self._working is not None

    @property
    def unsent_bytes(self) -> int:
        """Of answers that the client has not taken."""
        return self._held_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    # Requests.

    def _run(self) -> None:
        """Apply what may be applied now."""
        backlog, bounds = self._backlog, self._bounds
        while (
            backlog
            and self._working is None
            and not self._choked
            and self._pending_lines < bounds.pending_lines_max
            and self._held_bytes < bounds.pending_output_bytes_max
        ):
            request = self._take_produces()
            if request is None:
                continue
            if self._must_wait(request) or self._settles(request):
                break
            line = backlog.popleft()
            assert line is not None, "it was parsed"
            self._apply(request, line)
        if self._paused or backlog:
            self._update_reading()
        if self._ended or self._closing:
            self._leave_if_done()

    def _take_produces(self) -> Request | None:
        """Publish the produce lines that are next, all of them with one call; gives back the request behind them, if any."""
        backlog = self._backlog
        room = self._bounds.pending_lines_max - self._pending_lines
        lines: list[Request] = []
        records: list[NewRecord] = []
        behind: Request | None = None
        refused: Refused | None = None
        while backlog and room > len(lines):
            line = backlog[0]
            try:
                if line is None:
                    raise self._too_long()
                request = parse(line)
                if request.type != _PRODUCE:
                    behind = request
                    break
                records.append(new_record(request))
            except Refused as error:
                refused = error
                backlog.popleft()
                break
            lines.append(request)
            backlog.popleft()
        if lines:
            ProduceRun(self, lines, records).publish(self._reserve(_PRODUCE, len(lines)))
        if refused is not None:
            self.gateway.count_error(refused.kind)
            self._answer(refusal(refused.text))
        return behind

    def _too_long(self) -> Refused:
        most = self.gateway.settings.line_bytes_max
        return Refused(
            LINE_TOO_LONG,
            f"Line too long: at most {most} bytes, less while many clients send long ones; the rest was skipped",
        )

    def _must_wait(self, request: Request) -> bool:
        """Whether something before it has to be durable first, so that this request sees it."""
        under_way = self._under_way
        return under_way[_PRODUCE] > 0 or (under_way[_COMMIT] > 0 and request.type != _COMMIT)

    def _settles(self, request: Request) -> bool:
        """Whether the request has to wait for records that are acknowledged and not committed yet; it is looked at again then."""
        if request.type not in ENDS_MATTER or self._settled is self._backlog[0]:
            self._settled = None
            return False
        partition = self.broker.opened(request.topic or "", request.partition or 0)
        if partition is None or not partition.is_settling(partition.acknowledged_offset):
            return False
        if request.type == _FETCH and reads_up_to(request) <= partition.high_watermark:
            return False
        self._settled = self._backlog[0]
        self._working = asyncio.ensure_future(self._settle(partition))
        return True

    async def _settle(self, partition: Partition) -> None:
        await settled(partition)
        self._working = None
        self._run()

    def _apply(self, request: Request, line: bytes) -> None:
        api, carrier = request.type or "", self._carrier
        try:
            if carrier is not None and not carrier.is_here(request):
                self._carry(carrier, request, line)
            elif api == _COMMIT:
                self._commit(request)
            elif api == CARRY:
                if carrier is None:
                    raise Refused(UNKNOWN_TYPE, f"Unknown type: {CARRY}")
                self._answer(carrier.greet(request))
            elif (slow := SLOW_HANDLERS.get(api)) is not None:
                self._working = asyncio.ensure_future(self._work(request, slow(self, request)))
            else:
                self._answer(HANDLERS[api](self, request))
                self.gateway.observe(api, perf_counter() - self.arrived, 1)
        except (PenstockError, Refused) as error:
            if carrier is not None and carrier.looks_again(error):
                self._carry(carrier, request, line)
            else:
                self._answer(self.refused(request, error))
        except Exception as error:  # noqa: BLE001 - it is reported, and the connection outlives it
            self._answer(self._bug(error))

    def _carry(self, carrier: Carrier, request: Request, line: bytes) -> None:
        """It is another node's, or a part of it is, or it will be somebody's in a moment."""
        self._working = asyncio.ensure_future(self._work(request, carrier.serve(request, line)))

    def _commit(self, request: Request) -> None:
        slot = self._reserve(_COMMIT, 1)
        try:
            commit(self, request, partial(committed, self, request, slot))
        except PenstockError:
            self._withdraw(slot)
            raise

    async def _work(self, request: Request, work: Coroutine[object, object, bytes]) -> None:
        """Something that takes time and holds up what follows."""
        try:
            data = await work
        except (PenstockError, Refused) as error:
            data = self.refused(request, error)
        except Unsure as unsure:
            data = self.refused(request, unsure.error, was_begun=True)
        except Exception as error:  # noqa: BLE001 - it is reported, and the connection outlives it
            data = self._bug(error)
        self._working = None
        if self._carrier is not None and self._lost:
            self._carrier.close()
        self.gateway.observe(request.type or "", perf_counter() - self.arrived, 1)
        self._answer(data)

    def refused(self, request: Request, error: PenstockError | Refused, *, was_begun: bool = False) -> bytes:
        """The line that says why not; a node that carried the request here also learns whether it may look elsewhere."""
        if isinstance(error, Refused):
            self.gateway.count_error(error.kind)
            return refusal(error.text)
        self.gateway.count_error(error.reason.name)
        text = text_for(error, self.broker, request.topic, request.partition, request.offset)
        if was_begun or self._carrier is None or self._carrier.carried is None:
            return refusal(text)
        return refusal(text, error.reason.name)

    def _bug(self, error: Exception) -> bytes:
        self.gateway.count_error(INTERNAL_ERROR)
        self.gateway.report_bug(self, error)
        return refusal(f"Internal error: {type(error).__name__}; see the broker's log")

    # Answers.

    def _reserve(self, api: str, lines: int) -> Slot:
        slot = Slot(self, api, lines)
        self._out.append(slot)
        self._pending_lines += lines
        self._under_way[api] += 1
        return slot

    def _withdraw(self, slot: Slot) -> None:
        """The last place is not needed: nothing was begun."""
        assert self._out[-1] is slot
        self._out.pop()
        self._pending_lines -= slot.lines
        self._under_way[slot.api] -= 1

    def _answer(self, data: bytes) -> None:
        self._out.append(data)
        self._held_bytes += len(data)
        self.ready()

    def completed(self, slot: Slot) -> None:
        """The answers of a slot are there."""
        self._under_way[slot.api] -= 1
        self._pending_lines -= slot.lines
        self._held_bytes += len(slot.data or b"")
        self.gateway.observe(slot.api, perf_counter() - slot.arrived, slot.lines)
        self.ready()

    def _send(self) -> None:
        self._sending = False
        out = self._out
        ready: list[bytes] = []
        while out:
            first = out[0]
            data = first if isinstance(first, bytes) else first.data
            if data is None:
                break
            ready.append(data)
            out.popleft()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if ready:
            data = b"".join(ready)
            self._held_bytes -= len(data)
            transport.write(data)
        if self._backlog or self._paused or self._ended or self._closing:
            self._run()

    # Bounds.

    def _update_reading(self) -> None:
        # What is left of the last piece must be applied before there is more.
        pause = self._choked or bool(self._backlog) or self._closing
        if pause is not self._paused and not self._ended:
            self._pause_reading(pause)

    def look_after(self, monotonic_ms: int) -> None:
        """Once a second: close what was silent too long."""
        if self._carrier is not None:
            self._carrier.look_after(monotonic_ms)
        self._close_if_idle(monotonic_ms, self.gateway.limits.connection_idle_ms_max, is_busy=self.is_busy)

    def close(self) -> None:
        """Take no more lines; go once everything begun is answered."""
        self._closing = True
        self._backlog.clear()
        self._update_reading()
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        done = not self._backlog and not self._out and self._working is None
        if done and (self._ended or self._closing) and self._transport is not None:
            self._transport.close()
