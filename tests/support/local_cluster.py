"""``penstock cluster up`` for tests: as a user runs it, on ports that were free, with a real etcd."""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0


class LocalCluster:
    """One ``penstock cluster up``. Use it as a context manager; ``stop`` is what a user's Ctrl-C does."""

    def __init__(
        self, folder: Path, nodes: int | None = 3, *, is_new: bool = True, racks: str = "", is_kept: bool = True
    ) -> None:
        """Without ``is_kept`` it chooses its own folder below ``folder``."""
        if shutil.which("etcd") is None:
            pytest.skip("etcd is not on PATH; tools/install_test_tools.sh installs it where it may")
        self.folder = folder
        self._nodes = nodes
        self._words = ["--kafka-port", "0", "--http-port", "0"] if is_new else []
        self._words += ["--racks", racks] if racks else []
        self._words += ["--data-dir", str(folder)] if is_kept else []
        self._environment = {**os.environ, "PENSTOCK__GROUPS__OFFSETS_TOPIC_PARTITIONS": "3"}
        self._environment["PENSTOCK__GROUPS__INITIAL_REBALANCE_DELAY_MS"] = "0"
        # Longer than a busy machine lets a process wait. One that is killed is missed at once all the same.
        self._environment["PENSTOCK__CLUSTER__LEASE_MS"] = "20000"
        self._environment["TMPDIR"] = str(folder)
        self.addresses: dict[int, dict[str, str]] = {}
        self.pids: dict[int, int] = {}
        """As the ready lines have them."""
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        count = [] if self._nodes is None else ["--nodes", str(self._nodes)]
        self._stderr_file = self.folder.with_name(f"{self.folder.name}.stderr")
        with self._stderr_file.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "penstock",
                    "cluster",
                    "up",
                    *count,
                    *self._words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                # Its own group, as in a terminal of its own.
                start_new_session=True,
            )
        try:
            self._read_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            # What it started goes with it.
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read_ready(self) -> None:
        assert self.process.stdout is not None
        wanted = self._nodes
        text = b""
        deadline = time.monotonic() + READY_SECONDS_MAX
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while wanted is None or len(self.addresses) < wanted:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"not ready: {self.said()}")
                piece = os.read(self.process.stdout.fileno(), 65536)
                if not piece:
                    raise RuntimeError(f"penstock cluster up ended: {self.said()}")
                text += piece
                *lines, text = text.split(b"\n")
                for line in lines:
                    self.lines.append(line.decode())
                    pairs = dict(word.partition("=")[::2] for word in line.decode().split()[2:])
                    node = int(pairs.pop("node"))
                    self.pids[node] = int(pairs.pop("pid"))
                    self.addresses[node] = pairs

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses[node]["kafka"] for node in sorted(self.addresses))

    @property
    def http(self) -> str:
        return ",".join(self.addresses[node]["http"] for node in sorted(self.addresses))

    def said(self) -> str:
        """All that it said on stderr."""
        return self._stderr_file.read_text()

    def children(self) -> dict[int, str]:
        """What it has started, each with its command line."""
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                continue
            if parent == self.process.pid:
                found[int(entry.name)] = command
        return found

    def pid_of(self, node: int) -> int:
        """One node's process."""
        [pid] = [pid for pid, command in self.children().items() if f"--node-id {node} " in command]
        return pid

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """The exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS_MAX)


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
