"""Open streams end when their callers lose the right to them, and readers of topics that are no streams check theirs again."""

from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.core.operations.handling import HANDLERS, OnEnd, OnItems, OpenStream
from penstock.core.operations.rights import authorise
from penstock.core.security.access import Caller
from penstock.errors import PenstockError
from penstock.operations.operation import AnyOperation, Stream

if TYPE_CHECKING:
    from penstock.core.broker import Broker

R = TypeVar("R")


class OpenStreams:
    """The streams of one node, which were admitted when they were opened."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._open: Final[dict[_Guarded, None]] = {}
        broker.access.on_changed.append(self._check)

    def start(self, stream: Stream[R], caller: Caller, on_items: OnItems[R], on_end: OnEnd) -> OpenStream:
        """Open an admitted stream."""
        run = HANDLERS[type(stream)].run
        flow: OpenStream
        if self._broker.access.allows_all:
            flow = run(self._broker, stream, caller, on_items, on_end)
            return flow
        guarded = _Guarded(self._open, stream, caller, on_end)
        guarded.begin(run(self._broker, stream, caller, on_items, guarded.ended))
        return guarded

    def _check(self) -> None:
        """The rules have changed."""
        for guarded in list(self._open):
            try:
                authorise(self._broker, guarded.stream, guarded.caller)
            except PenstockError as error:
                guarded.refuse(error)


class _Guarded:
    """One open stream."""

    __slots__ = ("_flow", "_is_over", "_on_end", "_open", "caller", "stream")

    def __init__(
        self, open_streams: "dict[_Guarded, None]", stream: Stream[Any], caller: Caller, on_end: OnEnd
    ) -> None:
        self._open = open_streams
        self.stream = stream
        self.caller = caller
        self._on_end = on_end
        self._flow: OpenStream | None = None
        self._is_over = False

    def begin(self, flow: OpenStream) -> None:
        """It is open, unless it has ended already."""
        self._flow = flow
        if not self._is_over:
            self._open[self] = None

    def grant(self, count: int) -> None:
        """Allow this many more items."""
        if self._flow is not None:
            self._flow.grant(count)

    def close(self) -> None:
        """Stop the stream."""
        self._end()
        if self._flow is not None:
            self._flow.close()

    def ended(self, error: PenstockError | None) -> None:
        """The stream has ended by itself."""
        self._end()
        self._on_end(error)

    def refuse(self, error: PenstockError) -> None:
        """Its caller has lost the right to it."""
        self.close()
        self._on_end(error)

    def _end(self) -> None:
        self._is_over = True
        self._open.pop(self, None)


class KeptRight:
    """The right to an operation, for a reader that continues without asking the door each time."""

    __slots__ = ("_asked", "_broker", "_caller", "_version")

    def __init__(self, broker: "Broker", asked: AnyOperation[Any], caller: Caller) -> None:
        self._broker = broker
        self._asked = asked
        self._caller = caller
        self._version = 0
        """Of the rules by which it was checked last."""

    def check(self) -> None:
        """PenstockError if the caller has lost the right."""
        version = self._broker.access.version
        if version != self._version:
            authorise(self._broker, self._asked, self._caller)
            self._version = version
