"""Whether a running broker holds a data directory."""

import fcntl
from pathlib import Path
from typing import Final

LOCK: Final = "lock"
"""The file in a data directory that its broker keeps locked."""


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock. The check takes a shared lock, so that two checks do not see each other."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
