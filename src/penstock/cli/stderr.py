"""The error stream of this process and of all that it starts, led elsewhere for a while: Java writes there what no user asked for."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stderr_into(descriptor: int) -> Iterator[None]:
    """What is started meanwhile keeps writing there."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
