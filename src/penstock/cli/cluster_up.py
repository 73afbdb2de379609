"""``penstock cluster up``: etcd and some nodes as children of this process, for development on one machine.

Invariant: exactly what was started is stopped when this ends: all nodes first, then etcd. If a node fails, the end of its log is shown,
and the others keep running, so that one can see what a cluster does without it. SIGUSR1 starts it again, even if it comes a moment before
the node has ended. Without etcd there is no cluster: if etcd fails, everything is stopped.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Final

from penstock.cli.cluster_folder import HOST, ClusterFolder, ClusterLayout
from penstock.cli.cluster_guard import Guard
from penstock.cli.failures import Exit, Failure, complain, note

_ETCD: Final = "etcd"
_READY: Final = "penstock ready "
_LAST_LINES: Final = 15
_ETCD_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.02
_NODE_STOP_SECONDS_MAX: Final = 40.0
_ETCD_STOP_SECONDS_MAX: Final = 15.0
_LOG_TAIL_BYTES: Final = 64 * 1024
_REPLICAS_MAX: Final = 3
_RESTART_SECONDS: Final = 2.0
"""How long a request to start nodes again applies to one that is still ending: a script kills it and sends the request at once."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def up(
    data_dir: Path | None,
    nodes: int | None,
    kafka_port: int | None,
    http_port: int | None,
    racks: Sequence[str] | None = None,
) -> int:
    """Run a cluster until it is stopped; the exit code. The racks are assigned to the nodes in turn; None: as the folder has it."""
    program = find_etcd()
    with _folder(data_dir) as folder, folder.held():
        layout = folder.layout(nodes, kafka_port, http_port, racks)
        folder.check_ports(layout)
        return LocalCluster(folder, layout, program, is_kept=data_dir is not None).run()


def find_etcd() -> str:
    """The program; the failure explains how to install it."""
    program = shutil.which(_ETCD)
    if program is None:
        raise Failure(
            "A cluster requires etcd, which is not on the PATH. Install it in one of these ways, and try again:\n"
            "Debian, Ubuntu:  sudo apt-get install etcd-server\n"
            "macOS:           brew install etcd\n"
            "elsewhere:       unpack a release from https://github.com/etcd-io/etcd/releases and add its folder to PATH"
        )
    return program


@contextlib.contextmanager
def _folder(data_dir: Path | None) -> Iterator[ClusterFolder]:
    if data_dir is not None:
        yield ClusterFolder(data_dir)
        return
    path = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    try:
        yield ClusterFolder(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Child:
    """One process. Its stdout is read for the ready line, and for its end, which is the end of the process."""

    def __init__(self, name: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str]) -> None:
        self.name: Final = name
        self.log_file: Final = log_file
        self._log = log_file.open("ab")
        self._log_start = self._log.tell()
        self._text = b""
        self.process: Final = subprocess.Popen(  # noqa: S603  our own program and arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            # Ctrl-C must only reach the parent, which stops everything in order.
            start_new_session=True,
        )

    @property
    def out(self) -> int:
        """What to wait on for :meth:`read`."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def read(self) -> tuple[list[str], bool]:
        """New lines on stdout, which are also written to the log; and whether it has ended."""
        piece = os.read(self.out, 65536)
        self._log.write(piece)
        self._log.flush()
        self._text += piece
        *lines, self._text = self._text.split(b"\n")
        return [line.decode(errors="replace") for line in lines], not piece

    def stop(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it is still running."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code

    def last_lines(self) -> list[str]:
        """The end of its log; earlier processes wrote to the same file."""
        with self.log_file.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-_LAST_LINES:]


class LocalCluster:
    """All children, from the first to the last."""

    def __init__(self, folder: ClusterFolder, layout: ClusterLayout, etcd: str, *, is_kept: bool) -> None:
        self._folder = folder
        self._layout = layout
        self._etcd_program = etcd
        self._is_kept = is_kept
        self._children: dict[str, Child] = {}
        self._ready: dict[int, str] = {}
        self._asked_to_stop = 0
        self._asked_to_start = False
        self._to_restart: set[int] = set()
        """Nodes that are started again if they end before the request expires: each once."""
        self._restart_until = 0.0
        self._greeted = False
        self._failed = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Start everything, run until stopped, stop everything."""
        with self._signals(), self._selector, Guard() as self._guard:
            try:
                self._start_etcd()
                for node in sorted(self._layout.nodes):
                    self._start_node(node)
                # Etcd alone serves no client, and nodes cannot work without it.
                while not self._asked_to_stop and _ETCD in self._children and len(self._children) > 1:
                    self._wait(None)
                    self._start_again()
            finally:
                self._stop()
        return Exit.FAILED if self._failed else Exit.OK

    # Starting.

    def _start_etcd(self) -> None:
        ports = self._layout.etcd
        client, peer = f"http://{HOST}:{ports.client}", f"http://{HOST}:{ports.peer}"
        options = {
            "name": self._layout.name,
            "data-dir": str(self._folder.data_dir(_ETCD)),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"{self._layout.name}={peer}",
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "1h",
            "logger": "zap",
        }
        command = [self._etcd_program, *(word for name, value in options.items() for word in (f"--{name}", value))]
        # Settings for another etcd in the environment must not apply to this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        self._start(_ETCD, command, environment)
        deadline = monotonic() + _ETCD_SECONDS_MAX
        while not self._asked_to_stop and not _is_listening(ports.client):
            self._wait(_POLL_SECONDS)
            if _ETCD not in self._children:
                raise Failure(f"Cannot start etcd; see its log {self._log_hint(_ETCD)}")
            if monotonic() > deadline:
                raise Failure(
                    f"Cannot connect to etcd after {_ETCD_SECONDS_MAX:.0f} s; see its log {self._log_hint(_ETCD)}"
                )

    def _start_node(self, node: int) -> None:
        if self._asked_to_stop:
            return
        name = f"node-{node}"
        ports = self._layout.nodes[node]
        options = {
            "data-dir": str(self._folder.data_dir(name)),
            "cluster": self._layout.name,
            "node-id": str(node),
            "etcd": f"{HOST}:{self._layout.etcd.client}",
            **{listener: f"{HOST}:{getattr(ports, listener)}" for listener in ports.__struct_fields__},
        }
        rack = self._layout.rack_of(node)
        if rack:
            options["rack"] = rack
        command = [sys.executable, "-P", "-m", "penstock", "serve"]
        self._start(
            name, command + [word for key, value in options.items() for word in (f"--{key}", value)], self._settings()
        )

    def _start_again(self) -> None:
        """Start the nodes that have ended, if that is requested."""
        if self._asked_to_start:
            self._asked_to_start = False
            self._to_restart, self._restart_until = set(self._layout.nodes), monotonic() + _RESTART_SECONDS
        for node in sorted(self._layout.nodes):
            if f"node-{node}" not in self._children and self._is_to_restart(node):
                self._to_restart.discard(node)
                note(f"Starting node-{node} again")
                self._start_node(node)

    def _is_to_restart(self, node: int) -> bool:
        return self._asked_to_start or (node in self._to_restart and monotonic() < self._restart_until)

    def _settings(self) -> dict[str, str]:
        """The environment, with defaults for a cluster of too few nodes for the usual number of replicas."""
        count = len(self._layout.nodes)
        usual = {
            "PENSTOCK__CLUSTER__REPLICATION_FACTOR": str(min(count, _REPLICAS_MAX)),
            "PENSTOCK__CLUSTER__MIN_IN_SYNC": "2" if count >= _REPLICAS_MAX else "1",
        }
        return {**usual, **os.environ}

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        child = Child(name, command, self._folder.log_file(name), environment)
        self._guard.watch(child.process.pid)
        self._children[name] = child
        self._selector.register(child.out, selectors.EVENT_READ, child)

    # Running.

    def _wait(self, seconds: float | None) -> None:
        """Read the output of the children, and notice those that have ended."""
        for key, _ in self._selector.select(seconds):
            child = key.data
            if child is None:
                self._woken.recv(4096)
                continue
            lines, is_over = child.read()
            for line in lines:
                if line.startswith(_READY):
                    self._is_ready(child, line)
            if is_over:
                self._child_ended(child)

    def _is_ready(self, child: Child, line: str) -> None:
        node = int(child.name.removeprefix("node-"))
        print(f"{line} node={node} pid={child.process.pid}", flush=True)
        self._ready[node] = line
        self._greet_once()

    def _greet_once(self) -> None:
        """Greet when all nodes that are left are up."""
        if not self._greeted and self._ready and len(self._ready) == len(self._children.keys() - {_ETCD}):
            self._greeted = True
            self._greet()

    def _greet(self) -> None:
        # The ports of a node that is not up may belong to another program.
        ready = [self._layout.nodes[node] for node in sorted(self._ready)]
        bootstrap = ",".join(f"{HOST}:{ports.kafka}" for ports in ready)
        http = ",".join(f"{HOST}:{ports.http}" for ports in ready)
        count, total = len(ready), len(self._layout.nodes)
        up = f"{count} node{' is' if count == 1 else 's are'}" if count == total else f"{count} of {total} nodes are"
        racks = ", ".join(f"node {node} in {self._layout.rack_of(node)}" for node in sorted(self._layout.nodes))
        kept = "kept for the next run" if self._is_kept else "removed at the end; use --data-dir to keep it"
        note(
            f"{up} up, with etcd at {HOST}:{self._layout.etcd.client}; stop everything with Ctrl-C\n"
            f"data and logs: {self._folder.path} ({kept})\n"
            f"{f'racks, in turn: {racks}{chr(10)}' if self._layout.racks else ''}"
            f"To use the cluster in another terminal:\n"
            f"  export PENSTOCK_BOOTSTRAP={bootstrap}\n"
            f"  export PENSTOCK_HTTP={http}\n"
            f"  penstock cluster status"
        )

    def _child_ended(self, child: Child) -> None:
        """A child has ended unexpectedly."""
        self._selector.unregister(child.out)
        del self._children[child.name]
        code = child.wait(_NODE_STOP_SECONDS_MAX)
        self._guard.forget(child.process.pid)
        self._failed = True
        tail = "\n".join(f"  {line}" for line in child.last_lines())
        what = "the nodes cannot run without it and are stopped" if child.name == _ETCD else "the others keep running"
        complain(f"{child.name} {_ended(code)}; {what}. {self._log_hint(child.name)} ends with:")
        # Lines of another log are not errors of this command, whatever their level.
        if tail:
            note(tail)
        if child.name == _ETCD:
            return
        node = int(child.name.removeprefix("node-"))
        self._ready.pop(node, None)
        if self._is_to_restart(node):
            return
        if any(name != _ETCD for name in self._children):
            note(f"To start {child.name} again: kill -USR1 {os.getpid()}")
            self._greet_once()
        else:
            complain("No node is left; stopping the cluster")

    def _log_hint(self, name: str) -> str:
        return str(self._folder.log_file(name))

    # Stopping.

    def _stop(self) -> None:
        nodes = [child for name, child in self._children.items() if name != _ETCD]
        if nodes and self._ready:
            then = ", then etcd" if _ETCD in self._children else ""
            note(f"Stopping the nodes{then}; press Ctrl-C again to kill them")
        self._end(nodes, _NODE_STOP_SECONDS_MAX)
        self._end([child for name, child in self._children.items() if name == _ETCD], _ETCD_STOP_SECONDS_MAX)

    def _end(self, children: Sequence[Child], seconds: float) -> None:
        for child in children:
            child.stop(signal.SIGTERM)
        deadline = monotonic() + seconds
        asked = max(self._asked_to_stop, 1)
        while any(child.name in self._children for child in children):
            for child in children:
                if child.name not in self._children:
                    continue
                code = child.wait(_POLL_SECONDS)
                if code is None and (monotonic() > deadline or self._asked_to_stop > asked):
                    complain(f"{child.name} did not stop in time and is killed; no acknowledged record is lost")
                    self._failed = True
                    child.stop(signal.SIGKILL)
                    code = child.wait(seconds)
                if code is not None:
                    self._guard.forget(child.process.pid)
                    del self._children[child.name]

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Count the signals to stop, and wake up the loop."""

        def asked(_number: int, _frame: FrameType | None) -> None:
            self._asked_to_stop += 1

        def start(_number: int, _frame: FrameType | None) -> None:
            self._asked_to_start = True

        self._woken, waker = socket.socketpair()
        waker.setblocking(False)
        with self._woken, waker:
            self._selector.register(self._woken, selectors.EVENT_READ, None)
            before = {number: signal.signal(number, asked) for number in _SIGNALS}
            before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, start)
            wakeup = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(wakeup)
                for number, handler in before.items():
                    signal.signal(number, handler)


def _ended(code: int | None) -> str:
    if code is None:
        return "has closed its output"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _is_listening(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False
