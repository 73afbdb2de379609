"""Finds every process of a program, wherever it ended up: parents die and sessions change, but each one inherits the environment."""

import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.spark.pipelines.process import birth_of

VARIABLE: Final = "PENSTOCK_TEST_MARK"


class Mark:
    """``environment`` goes to the program; ``pids`` is then that program and all that it started."""

    def __init__(self) -> None:
        self.environment: Final = {VARIABLE: uuid.uuid4().hex}
        self._entry = f"{VARIABLE}={self.environment[VARIABLE]}".encode()

    def pids(self) -> list[int]:
        """Of the processes that live now; one that only waits for its parent to ask for its exit code does not."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self._entry in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return [pid for pid in found if birth_of(pid) is not None]

    def commands(self) -> dict[int, list[str]]:
        """How each of them was started."""
        found = {}
        for pid in self.pids():
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").rstrip("\0").split("\0")
        return found

    def signal(self, number: int) -> None:
        """To all of them at once, as systemd signals a control group."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """kill -9, until none is left: one may start another before its own turn."""
        while self.pids():
            self.signal(signal.SIGKILL)
