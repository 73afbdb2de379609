"""``penstock serve`` as a separate process, for tests that kill it.

Nothing waits by sleeping: ``start`` reads the ready line that the broker prints, ``stop`` waits for the process to end.
The broker's log goes to a file beside the data, which is kept over restarts, so that a failed test can show it.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.settings import LISTENERS

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
READY_PREFIX: Final = "penstock ready "


class BrokerProcess:
    """One ``penstock serve``. ``settings`` are keyed by their path in the configuration: ``{"log.flush": "os"}``."""

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, object] | None = None,
        *,
        http: str = "off",
        tcp: str = "off",
        grpc: str = "off",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.log_file = data_dir.with_name(data_dir.name + ".stderr")
        self.addresses: dict[str, str] = {}
        self.encrypted: frozenset[str] = frozenset()
        """The listeners with TLS."""
        self.is_insecure = False
        """Whether the ready line has a warning that other machines need not authenticate."""
        self._environment = {**os.environ, **(environment or {})}
        self.configure(settings or {})
        self._listen = {"kafka": "127.0.0.1:0", "http": http, "tcp": tcp, "grpc": grpc}
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, settings: Mapping[str, object]) -> None:
        """Set these settings from the next start on."""
        for path, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            section, _, key = path.partition(".")
            # The dots of a topic config are part of its name.
            key = key.replace(".", "_" if section == "topic_defaults" else "__")
            self._environment[f"PENSTOCK__{section}__{key}".upper()] = text

    @property
    def bootstrap(self) -> str:
        """``HOST:PORT`` for a Kafka client's bootstrap servers."""
        return self.addresses["kafka"]

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise RuntimeError("The broker is not running: call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """The command line."""
        flags = [word for name, address in self._listen.items() for word in (f"--{name}", address)]
        return [
            sys.executable,
            "-c",
            "import sys; from penstock.cli.main import main; sys.exit(main())",
            "serve",
            "--data-dir",
            str(self.data_dir),
            *flags,
        ]

    def start(self) -> Self:
        """Return when it accepts connections; RuntimeError with its log if it ends before that."""
        assert not self.running, "the broker is already running"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=self._environment
            )
        try:
            line = self._read_line(time.monotonic() + READY_SECONDS_MAX)
        except BaseException:
            self.kill()
            raise
        words = line.removeprefix(READY_PREFIX).split()
        pairs = dict(word.partition("=")[::2] for word in words)
        self.encrypted = frozenset(filter(None, pairs.pop("tls", "").split(",")))
        self.is_insecure = pairs.pop("insecure", "") == "yes"
        self.addresses = {name: address for name, address in pairs.items() if address != "off"}
        # A restart uses the same ports, so that clients can reconnect.
        for name, address in self.addresses.items():
            if name in LISTENERS:
                self._listen[name] = address
            else:
                self._environment[f"PENSTOCK__LISTENERS__{name}__ADDRESS".upper()] = address
        return self

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, and clients are not notified."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(STOP_SECONDS_MAX)
        assert process.stdout is not None
        process.stdout.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal without waiting."""
        os.kill(self.pid, number)

    def pause(self) -> None:
        """SIGSTOP, and return when all threads have stopped, as on a machine that is suspended. ``kill`` ends it."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        tasks = Path(f"/proc/{self.pid}/task")
        # The state is the first letter after the name in parentheses. T: stopped.
        while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
            if time.monotonic() > deadline:
                raise TimeoutError("The broker's threads did not stop")

    def wait(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Wait for the end of the process; returns its exit code."""
        assert self._process is not None
        code = self._process.wait(seconds)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def restart(self) -> Self:
        """Kill it and start it again on the same directory and ports."""
        self.kill()
        return self.start()

    def log_text(self) -> str:
        """Its log, over all its starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _read_line(self, deadline: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while b"\n" not in text:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"No ready line after {READY_SECONDS_MAX:.0f} s; its log:\n{self.log_text()}")
                piece = os.read(out, 4096)
                if not piece:
                    code = self._process.wait(STOP_SECONDS_MAX)
                    raise RuntimeError(f"The broker ended with exit code {code}; its log:\n{self.log_text()}")
                text += piece
        line = text.decode().splitlines()[0]
        if not line.startswith(READY_PREFIX):
            raise RuntimeError(f"The first line on stdout is not the ready line: {line!r}")
        return line
