"""Redirects the error stream of this process and of all that it starts: Java writes there what no user asked for."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_shown = 2
"""The error stream that the user sees, also while descriptor 2 is redirected."""


def say_at_once(line: str) -> None:
    """Write a line that the user sees now, even while the error stream is redirected. Safe in a signal handler."""
    with suppress(OSError):
        os.write(_shown, f"{line}\n".encode())


@contextmanager
def stderr_into(descriptor: int) -> Iterator[None]:
    """Redirect the error stream; processes started meanwhile keep writing there."""
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
