"""A broker in the test process: with its own thread and event loop, a free port, and a directory of the test.

Nothing is faked: clients connect over TCP and records are written to files. It differs from ``penstock serve`` only in its
defaults, :data:`TEST_SETTINGS`.

Invariant: ``start`` returns when connections are accepted, and ``stop`` when every file is closed, so that a test can
start the next broker on the same directory immediately.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.config import load
from penstock.runtime.loop import new_event_loop
from penstock.settings import LISTENERS, Settings

TEST_SETTINGS: Final[Mapping[str, object]] = {
    "listeners.kafka": "127.0.0.1:0",
    "listeners.http": "off",
    "listeners.tcp": "off",
    "listeners.grpc": "off",
    # Power failures do not matter to most tests, and a group of one should not wait for others.
    "log.flush": "os",
    "groups.initial_rebalance_delay_ms": 0,
    "groups.session_timeout_ms_min": 100,
    # A quarter of the files to open, which is most of the cost of starting a group.
    "groups.offsets_topic_partitions": 4,
}

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 20.0


class BrokerThread:
    """One broker. ``settings`` are keyed by their path in the configuration: ``{"topics.auto_create": False}``."""

    def __init__(self, data_dir: Path, settings: Mapping[str, object] | None = None) -> None:
        self.data_dir = data_dir
        self._settings = {**TEST_SETTINGS, **(settings or {}), "server.data_dir": str(data_dir)}
        self._addresses: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._failure: BaseException | None = None

    @property
    def bootstrap(self) -> str:
        """``HOST:PORT`` for a Kafka client's bootstrap servers."""
        return self.address("kafka")

    def address(self, listener: str) -> str:
        """``HOST:PORT`` of a listener: kafka, http, tcp or grpc."""
        if listener not in self._addresses:
            raise RuntimeError(f"The broker has no {listener} address: it is not running, or the listener is off")
        return self._addresses[listener]

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._thread is not None

    def start(self) -> Self:
        """Return when it accepts connections. Raises the error if it cannot start."""
        if self._thread is not None:
            return self
        ready = threading.Event()
        settings = load(flags=self._settings)
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(settings, ready), name="penstock", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS_MAX):
            raise TimeoutError(f"The broker on {self.data_dir} was not ready after {START_SECONDS_MAX:.0f} s")
        if self._failed():
            self._thread.join()
            self._thread = None
            self._raise_failure()
        return self

    def stop(self) -> None:
        """Shut down as SIGTERM does. Harmless when it is not running."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        assert self._loop is not None
        assert self._stopping is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(STOP_SECONDS_MAX)
        if thread.is_alive():
            raise TimeoutError(f"The broker on {self.data_dir} did not stop within {STOP_SECONDS_MAX:.0f} s")
        self._raise_failure()

    def restart(self) -> Self:
        """Stop, and start again on the same directory and ports, so that clients can reconnect."""
        self.stop()
        for name, address in self._addresses.items():
            self._settings[f"listeners.{name}" if name in LISTENERS else f"listeners.{name}.address"] = address
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _failed(self) -> bool:
        return self._failure is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self, settings: Settings, ready: threading.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(settings, ready))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            self._failure = error
        finally:
            ready.set()

    async def _serve(self, settings: Settings, ready: threading.Event) -> None:
        from penstock.server import Server

        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = Server(settings)
        await server.start()
        try:
            self._addresses = {name: str(address) for name, address in server.addresses.items() if address is not None}
            ready.set()
            await self._stopping.wait()
        finally:
            await server.stop()


class BrokerFactory:
    """Starts brokers on separate directories and stops them all in the end."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._started: list[BrokerThread] = []

    def __call__(self, settings: Mapping[str, object] | None = None, *, data_dir: Path | None = None) -> BrokerThread:
        """A running broker, on ``data_dir`` or on a new directory."""
        broker = BrokerThread(data_dir or self._new_folder() / "data", settings).start()
        self._started.append(broker)
        return broker

    def stop_all(self) -> None:
        """Stop every broker that still runs."""
        while self._started:
            self._started.pop().stop()
