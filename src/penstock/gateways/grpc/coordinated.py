"""A stream of a subscription at the coordinator of its group. It is opened again when the coordinator has moved."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from penstock.core.operations.door import ELSEWHERE
from penstock.core.operations.handling import OnItems, OpenStream
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import GrpcCall
from penstock.operations.operation import Stream

R = TypeVar("R")

MOVED: Final = ELSEWHERE | {Reason.LINK_LOST, Reason.SHUTTING_DOWN}
"""The errors after which a stream can be opened again: its coordinator has moved, or is about to."""
RETRY_SECONDS: Final = 0.05


class CoordinatedStream(Generic[R]):
    """The stream of one subscription. When it ends, ``on_end`` is called and ``woken`` is set."""

    def __init__(
        self,
        call: GrpcCall,
        stream: Stream[R],
        on_items: OnItems[R],
        woken: asyncio.Event,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._call: Final = call
        self._stream: Final = stream
        self._on_items: Final = on_items
        self._woken: Final = woken
        self._on_end: Final = on_end
        self._flow: OpenStream | None = None
        self.ended: PenstockError | None = None
        """Why the stream has ended, if it has."""

    async def ready(self) -> None:
        """Open the stream, unless it is open. PenstockError if it cannot be opened again, or no coordinator is found in time."""
        if self._flow is not None and self.ended is None:
            return
        if self.ended is not None:
            if self.ended.reason not in MOVED:
                raise self.ended
            await asyncio.sleep(RETRY_SECONDS)
        self.ended = None
        call = self._call
        try:
            async with asyncio.timeout(None) as limit:
                # A broker that stops ends the wait.
                with call.serving.stream(partial(limit.reschedule, 0)):
                    self._flow = await call.broker.open(self._stream, call.caller, self._on_items, self._end)
        except TimeoutError:
            call.serving.require_running()
            raise

    def grant(self, count: int) -> None:
        """Allow this many more items."""
        if self._flow is not None:
            self._flow.grant(count)

    def close(self) -> None:
        """No more items are wanted."""
        if self._flow is not None:
            self._flow.close()

    def _end(self, error: PenstockError | None) -> None:
        self.ended = error or PenstockError(Reason.COORDINATOR_NOT_AVAILABLE)
        self._on_end()
        self._woken.set()
