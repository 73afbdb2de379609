"""Ends the processes of a local cluster if the process that started them was killed or ran out of memory.

It is a process of its own. It reads from stdin which processes there are (``+PID``, and ``-PID`` once one has ended); the end of stdin
means that their parent has ended. The processes that are left are killed: nodes and etcd survive that.
"""

import contextlib
import os
import signal
import subprocess
import sys
from typing import Final

_WAIT_SECONDS_MAX: Final = 10.0


def main() -> None:
    """What ``python -m penstock.cli.cluster_guard`` runs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left: set[int] = set()
    for line in sys.stdin.buffer:
        pid = int(line[1:])
        if line.startswith(b"+"):
            left.add(pid)
        else:
            left.discard(pid)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Guard:
    """The parent's side. Use it as a context manager; processes that are watched and not forgotten when the block ends are killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.cli.cluster_guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # It must survive Ctrl-C and hang-up of the terminal.
            start_new_session=True,
        )

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(_WAIT_SECONDS_MAX)

    def watch(self, pid: int) -> None:
        """End a process if this one ends."""
        self._send(b"+%d\n" % pid)

    def forget(self, pid: int) -> None:
        """Do not watch a process that has ended."""
        self._send(b"-%d\n" % pid)

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # Without the guard the cluster still runs, and is still stopped in order.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()


if __name__ == "__main__":
    main()
