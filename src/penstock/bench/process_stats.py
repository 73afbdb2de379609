"""The CPU time and resident memory of a broker's process, read from /proc.

Invariant: a process and all its running descendants are counted together. On a system without /proc, there are no numbers.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Usage:
    """One reading. RSS counts mapped files too, `rss_anon` only what the process itself holds."""

    cpu_s: float
    rss_bytes: int
    rss_anon_bytes: int


def usage_of(pid: int) -> Usage | None:
    """Read process `pid` and its descendants; None when it is gone or the system has no /proc."""
    cpu_ticks = rss_kib = anon_kib = 0
    found = False
    for member in _family(pid):
        try:
            # The command name may hold spaces and brackets: what follows its last bracket is regular.
            fields = (_PROC / str(member) / "stat").read_text().rpartition(")")[2].split()
            status = (_PROC / str(member) / "status").read_text()
        except OSError:
            continue
        found = True
        cpu_ticks += int(fields[11]) + int(fields[12])
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                rss_kib += int(line.split()[1])
            elif line.startswith("RssAnon:"):
                anon_kib += int(line.split()[1])
    return Usage(cpu_ticks / _TICKS_PER_S, rss_kib * 1024, anon_kib * 1024) if found else None


def _family(pid: int) -> list[int]:
    family = [pid]
    for member in family:
        for children in (_PROC / str(member) / "task").glob("*/children"):
            try:
                family.extend(int(child) for child in children.read_text().split())
            except OSError:
                continue
    return family


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine's loopback."""
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except OSError:
        return False


def pid_listening_on(port: int) -> int | None:
    """The process of this machine that listens on TCP `port`; None when it is not to be seen (another user's, or no /proc)."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    owners = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and _holds(entry, inodes)]
    # A forked worker holds its parent's socket too; the parent's tree covers both.
    return min(owners, default=None)


def _holds(entry: Path, inodes: set[str]) -> bool:
    try:
        links = list((entry / "fd").iterdir())
    except OSError:
        return False
    for link in links:
        try:
            if os.readlink(link) in inodes:
                return True
        except OSError:
            continue
    return False
