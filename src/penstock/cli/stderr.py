"""The error stream of this process and of all that it starts, led elsewhere for a while: Java writes there what no user asked for."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_shown = 2
"""The error stream that the user sees, also while descriptor 2 leads elsewhere."""


def say_at_once(line: str) -> None:
    """Write a line that the user sees now, even while the error stream leads elsewhere. Safe in a signal handler."""
    with suppress(OSError):
        os.write(_shown, f"{line}\n".encode())


@contextmanager
def stderr_into(descriptor: int) -> Iterator[None]:
    """What is started meanwhile keeps writing there."""
    global _shown  # noqa: PLW0603  there is one error stream in a process
    sys.stderr.flush()
    saved, before = os.dup(2), _shown
    _shown = saved if before == 2 else before
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        _shown = before
        os.close(saved)
