"""The end of the event loop's turn: one write per touched log, one look per woken reader, one send per touched connection.

Requests that arrive in one turn are applied at once and only noted here. When all of them have been, ``call_soon`` brings
us back: first those who collected changes over the turn append them; then the gathered appends go to the operating system,
which lets answers and waiting readers become ready; then readers look; then answers leave. The cost of a system call is so shared by all requests of the turn.
"""

import asyncio
import logging
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.ports import Flushable

logger = logging.getLogger("penstock.log")

Action = Callable[[], None]


class Turn:
    """Collects what the end of this turn has to do. Nothing is collected twice: callers keep a flag of their own."""

    __slots__ = ("_gatherers", "_lookers", "_loop", "_scheduled", "_senders", "_targets", "_written")

    def __init__(self, loop: asyncio.AbstractEventLoop, written: Callable[[Flushable], None]) -> None:
        self._loop = loop
        self._written = written
        self._scheduled = False
        self._gatherers: list[Action] = []
        self._targets: dict[Flushable, None] = {}
        self._lookers: list[Action] = []
        self._senders: list[Action] = []

    def write(self, target: Flushable) -> None:
        """``target`` has gathered appends."""
        self._targets[target] = None
        if not self._scheduled:
            self._schedule()

    def gather(self, action: Action) -> None:
        """Somebody has changes to append before this turn is written."""
        self._gatherers.append(action)
        if not self._scheduled:
            self._schedule()

    def look(self, action: Action) -> None:
        """A reader was woken and wants to look once all is written."""
        self._lookers.append(action)
        if not self._scheduled:
            self._schedule()

    def send(self, action: Action) -> None:
        """A connection has answers."""
        self._senders.append(action)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        if self._gatherers:
            self._gather()
        while self._targets:
            targets, self._targets = self._targets, {}
            for target in targets:
                try:
                    target.write_pending()
                except PenstockError as error:
                    # Whoever waited for these appends has been told by the log itself.
                    logger.warning("%s", error.text)
                except Exception:
                    logger.exception("a log failed to write; the others are not affected")
                else:
                    self._written(target)
        while self._lookers:
            lookers, self._lookers = self._lookers, []
            for look in lookers:
                try:
                    look()
                except Exception:
                    logger.exception("a reader failed; the others are not affected")
        # Only now: what the steps above scheduled has been done in this very pass.
        self._scheduled = False
        senders, self._senders = self._senders, []
        for send in senders:
            try:
                send()
            except Exception:
                logger.exception("a connection failed to send; the others are not affected")
        # Changes that the steps above brought about wait for the next turn, so that connections get theirs in between.
        if self._targets or self._lookers or self._gatherers:
            self._schedule()

    def _gather(self) -> None:
        gatherers, self._gatherers = self._gatherers, []
        for gather in gatherers:
            try:
                gather()
            except Exception:
                logger.exception("changes could not be appended; the others are not affected")
