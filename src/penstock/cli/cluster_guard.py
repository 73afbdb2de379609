"""Ends the processes of a local cluster when whoever started them is gone without having done so: killed, or out of memory.

A process of its own. It is told on stdin which processes there are (``+PID``, and ``-PID`` once one has ended); the end of stdin is the
end of whoever told. What is left then is killed: nodes and etcd are made to survive that.
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
    """The other end. Use it as a context manager; what was told and not taken back when the block ends is killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.cli.cluster_guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # A terminal's Ctrl-C and hang-up are not for it.
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
        """This process is to end with this one."""
        self._tell(b"+%d\n" % pid)

    def forget(self, pid: int) -> None:
        """It has ended."""
        self._tell(b"-%d\n" % pid)

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # Without the guard the cluster still runs, and is still stopped in order.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()


if __name__ == "__main__":
    main()
