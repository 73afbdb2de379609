"""Identifies processes by pid and start time, because a pid may be reused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def birth_of(pid: int) -> str | None:
    """The start time of a process, as a text that no later process with this pid has; None if there is no such process."""
    try:
        return f"{_boot()}/{_linux_start(pid)}"
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _birth_by_ps(pid)
    except ProcessLookupError:
        return None


def lives(pid: int, birth: str) -> bool:
    """Whether the process with this start time still exists."""
    return birth_of(pid) == birth


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _linux_start(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # The name of the program is in brackets and may contain blanks and brackets itself.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)  # a zombie
    return fields[19]


def _birth_by_ps(pid: int) -> str | None:
    # macOS has no /proc.
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607  ps of the machine
    return found.stdout.strip() or None


def own_birth() -> str:
    """The start time of this process."""
    birth = birth_of(os.getpid())
    assert birth is not None, "this process exists"
    return birth
