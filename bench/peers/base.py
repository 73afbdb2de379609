"""What a system in the comparison offers: start, stop, restart, and run one row.

Invariant: a peer ends exactly the processes it started, by their id, and they end with this process even if it is killed. All its files
are in a folder of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TypeVar

from bench.saying import fail, say
from penstock.address import Address
from penstock.bench.context import Case, Endpoints, Options
from penstock.bench.faults import BenchError
from penstock.bench.rows import Row
from penstock.bench.run import run_case
from penstock.client import ClientError, Cluster
from penstock.client.security import UNSECURED, ClientSecurity

_PARENT_DEATH_SIGNAL = 1
_STOP_S_MAX = 300.0
_LOG_TAIL_BYTES = 1500


class Flush(Enum):
    """When an acknowledged record is on the disk: when the kernel writes it, or before the acknowledgement."""

    OS = "os"
    SYNC = "sync"


class Peer(ABC):
    """One system with one flush setting."""

    name: str
    title: str
    ready_s_max = 60.0

    def __init__(self, home: Path, flush: Flush) -> None:
        self.home = home
        self.flush = flush
        self.was_killed = False
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)

    @classmethod
    @abstractmethod
    def why_missing(cls) -> str | None:
        """Why this system cannot run on this machine; None if it can. Fetches what it needs."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """How to start it, and what to add to the environment."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers."""

    @abstractmethod
    def run(self, case: Case, options: Options) -> Row | None:
        """Measure one row; None if the row does not apply to this system."""

    def before_first_start(self) -> None:  # noqa: B027  not every system needs files before its first start
        """Make files that the first start needs."""

    @property
    def log_path(self) -> Path:
        """What the process prints."""
        return self.home / "output.log"

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start it and wait until it answers; seconds from cold to ready."""
        begin = self.start_without_waiting()
        self.wait_until_ready(begin)
        return time.perf_counter() - begin

    def start_without_waiting(self) -> float:
        """Start it; the moment at which it was."""
        if not (self.home / "data").exists():
            (self.home / "data").mkdir()
            self.before_first_start()
        arguments, environment = self.command()
        begin = time.perf_counter()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env=os.environ | environment,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  there are no other threads yet, and it makes one system call
            )
        return begin

    def wait_until_ready(self, begin: float | None = None) -> None:
        """Return once it answers."""
        assert self._process is not None
        begin = time.perf_counter() if begin is None else begin
        while not self._answers():
            if self._process.poll() is not None:
                raise BenchError(
                    f"{self.title} ended with {self._process.returncode} while starting: {self._log_tail()}"
                )
            if time.perf_counter() - begin > self.ready_s_max:
                self.stop()
                raise BenchError(f"{self.title} was not ready after {self.ready_s_max:.0f} s: {self._log_tail()}")
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> float:
        """Stop it, or kill it if it does not stop; how many seconds it took.

        `was_killed` is set then: what is measured after a kill is a recovery, not a start.
        """
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return 0.0
        begin = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.was_killed = True
            process.kill()
            process.wait()
        return time.perf_counter() - begin

    def _answers(self) -> bool:
        with contextlib.suppress(BenchError, ClientError, OSError):
            return self.is_ready()
        return False

    def _log_tail(self) -> str:
        return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")


class KafkaProtocolPeer(Peer):
    """A peer that `penstock bench` can drive."""

    @abstractmethod
    def bootstrap(self) -> Address:
        """Where it listens."""

    nodes_expected = 1
    security: ClientSecurity = UNSECURED
    """What its administrator needs to connect."""

    def is_ready(self) -> bool:
        """Whether its metadata names all nodes."""
        with Cluster([self.bootstrap()], security=self.security) as cluster:
            return len(cluster.describe().nodes) == self.nodes_expected

    def run(self, case: Case, options: Options) -> Row | None:
        """Any row."""
        return run_case(case, Endpoints(self.bootstrap()), self.pid, options)


def free_port() -> int:
    """A port that was free a moment ago, for systems that cannot pick one themselves."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run_tool(arguments: list[str], what: str, *, seconds_max: float = 600.0) -> str:
    """Run a command to its end; its output, or a BenchError that says what could not be done."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds_max, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"Cannot {what}: {error}") from error
    if done.returncode:
        raise BenchError(f"Cannot {what}: {(done.stdout + done.stderr)[-_LOG_TAIL_BYTES:]}")
    return done.stdout


def _prctl() -> Callable[[int, int], int] | None:
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


# Looked up before any fork: a library must not be loaded between fork and exec.
_PRCTL = _prctl()


def _die_with_parent() -> None:
    if _PRCTL is not None:
        _PRCTL(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


P = TypeVar("P", bound=Peer)


def start_each(
    kind: type[P], flushes: list[Flush], home: Path, failures: list[str], stack: contextlib.ExitStack
) -> dict[Flush, P]:
    """One peer for each flush setting, stopped when the stack ends; one that cannot start is noted, and the rest continues."""
    started: dict[Flush, P] = {}
    for flush in flushes:
        peer = kind(home / f"{kind.name}-{flush.value}", flush)
        stack.callback(peer.stop)
        try:
            seconds = peer.start()
        except BenchError as error:
            fail(failures, f"{kind.name}, flush = {flush.value}: {error}")
            continue
        started[flush] = peer
        say(f"{peer.title}, flush = {flush.value}: ready in {seconds:.2f} s")
    return started
