"""Asks Spark again when it could not start Python in time: it waits ten seconds for a program that it starts, and no setting changes that."""

from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

AGAIN_MAX: Final = 5
TOO_SLOW: Final = "Python worker failed to connect back"


def patiently(ask: Callable[[], T], note: Callable[[BaseException], None] | None = None) -> T:
    """What ``ask`` answers, up to five times more when the machine was too busy; ``note`` is told each time."""
    for again in range(AGAIN_MAX + 1):
        try:
            return ask()
        except Exception as error:
            if again == AGAIN_MAX or TOO_SLOW not in str(error):
                raise
            if note is not None:
                note(error)
    raise AssertionError("The last one returns or raises")
