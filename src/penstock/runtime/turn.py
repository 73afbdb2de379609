"""The end of the event loop's turn: one write per changed log, one read per woken reader, one send per connection.

Requests that arrive in one turn are applied immediately, and only noted here. After all of them ``call_soon`` runs the end of
the turn: first changes that were collected over the turn are appended; then the collected appends are written, which completes
responses and wakes readers; then readers read; then responses are sent. So all requests of the turn share the system calls.
"""

import asyncio
import logging
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.ports import Flushable

logger = logging.getLogger("penstock.log")

Action = Callable[[], None]


class Turn:
    """Collects what the end of this turn has to do. Callers make sure that nothing is collected twice."""

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
        """Write the appends of ``target``."""
        self._targets[target] = None
        if not self._scheduled:
            self._schedule()

    def gather(self, action: Action) -> None:
        """Call ``action`` before this turn is written: it appends collected changes."""
        self._gatherers.append(action)
        if not self._scheduled:
            self._schedule()

    def look(self, action: Action) -> None:
        self._lookers.append(action)
        if not self._scheduled:
            self._schedule()

    def send(self, action: Action) -> None:
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
                    # The log itself has reported the failure to those that wait for these appends.
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
        # Only now: what the steps above scheduled was done in the same pass.
        self._scheduled = False
        senders, self._senders = self._senders, []
        for send in senders:
            try:
                send()
            except Exception:
                logger.exception("a connection failed to send; the others are not affected")
        # Changes that the steps above caused wait for the next turn, so that connections can be read in between.
        if self._targets or self._lookers or self._gatherers:
            self._schedule()

    def _gather(self) -> None:
        gatherers, self._gatherers = self._gatherers, []
        for gather in gatherers:
            try:
                gather()
            except Exception:
                logger.exception("changes could not be appended; the others are not affected")
