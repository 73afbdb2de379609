"""Processes that outlive us, told apart from others that got their number later."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def birth_of(pid: int) -> str | None:
    """When a process was born, as a text that no later process of this number has; None when there is none."""
    try:
        return f"{_boot()}/{_linux_start(pid)}"
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _birth_by_ps(pid)
    except ProcessLookupError:
        return None


def lives(pid: int, birth: str) -> bool:
    """Whether the process that was born then is still there."""
    return birth_of(pid) == birth


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _linux_start(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # The name of the program stands in brackets and may hold blanks and brackets itself.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)  # dead, and only not yet asked for by its parent
    return fields[19]


def _birth_by_ps(pid: int) -> str | None:
    # macOS has no /proc.
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607  ps of the machine
    return found.stdout.strip() or None


def own_birth() -> str:
    """Of this process."""
    birth = birth_of(os.getpid())
    assert birth is not None, "whoever asks is alive"
    return birth
