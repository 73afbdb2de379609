"""Calls the rules that work by the clock (``Broker.timed``) when one of their deadlines is due.

One timer of the event loop is set for the earliest deadline. A new earlier deadline moves the timer (``Broker.wake_at``), so
each is met within a millisecond if the event loop is idle.
"""

import asyncio
import logging
from typing import Final

from penstock.core.broker import Broker
from penstock.ports import Timed

logger = logging.getLogger("penstock.ticker")

_PIECE_MS: Final = 5
"""The pause before rules continue with remaining work: clients have the event loop in between."""
_TICK_MS_MAX: Final = 100
"""The longest pause, for deadlines that can move without a call of ``wake_at``: wall time that was set forward, retries."""


class Ticker:
    """The deadlines of one node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms: float = 0

    def start(self) -> None:
        """Set the first timer."""
        self._broker.on_sooner = self._wake_at
        self._set(self._broker.clock.monotonic_ms() + _PIECE_MS)

    def stop(self) -> None:
        """Cancel the timer."""
        self._at_ms = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, at_ms: int) -> None:
        self._at_ms = at_ms
        # Never early: the clock's milliseconds are rounded down.
        self._timer = self._loop.call_later(max(at_ms - self._broker.clock.monotonic_ms(), 0) / 1000, self._tick)

    def _wake_at(self, at_ms: int) -> None:
        if at_ms >= self._at_ms:
            return
        if self._timer is None:
            # During a tick, which sets the timer at its end.
            self._at_ms = at_ms
        else:
            self._timer.cancel()
            self._set(at_ms)

    def _tick(self) -> None:
        self._timer, self._at_ms = None, float("inf")
        due: list[float | None] = [self._tick_one(rules) for rules in self._broker.timed]
        # Including deadlines that were set during the tick, perhaps after their rules were called.
        due.append(self._at_ms)
        now_ms = self._broker.clock.monotonic_ms()
        times = [at_ms if at_ms > now_ms else now_ms + _PIECE_MS for at_ms in due if at_ms is not None]
        self._set(int(min(now_ms + _TICK_MS_MAX, *times)))

    def _tick_one(self, rules: Timed) -> int | None:
        """Call these rules if their deadline is due; returns their next deadline."""
        clock = self._broker.clock
        try:
            due_ms = rules.next_deadline_ms()
            if due_ms is not None and due_ms <= clock.monotonic_ms():
                rules.tick(clock.monotonic_ms())
                due_ms = rules.next_deadline_ms()
        except Exception:
            logger.exception("handling a deadline failed (%s)", type(rules).__name__)
            return None
        return due_ms
