"""Waiting for something that another process does: asked again until it holds or the deadline has passed."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.02


def eventually(check: Callable[[], T], seconds: float = 60.0, what: str = "") -> T:
    """The first true answer of ``check``; AssertionError with its last answer when there is none in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what or 'the condition'}; last answer {answer!r}")
        pause.wait(PAUSE_SECONDS)


def growing(seconds: float, most: float = 60.0) -> Iterator[float]:
    """Spans of time, each four times the one before: for a test in which something must be done within a span that it waits for
    to end. Where the machine had no time for it, the test tries again with the next."""
    while seconds <= most:
        yield seconds
        seconds *= 4


class Deadline:
    """A moment after which a test gives up; ``left`` is what a client's own timeout may be."""

    def __init__(self, seconds: float, what: str) -> None:
        self._end = time.monotonic() + seconds
        self._what = what

    @property
    def left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise AssertionError(f"not in time: {self._what}")
        return left
