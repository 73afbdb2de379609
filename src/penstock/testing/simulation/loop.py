"""An event loop without a machine below it: its time is a number that jumps to the next thing to happen.

Several processes live on it. Whatever is scheduled belongs to the process whose context it was scheduled in. What belongs to one that was killed never
runs again; what belongs to one that is paused runs when it is resumed. Nothing here depends on real time, on the order of hashes or on
threads: the same calls are the same history.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from penstock.testing.simulation.network import Network

T = TypeVar("T")

PROCESS: Final[ContextVar["Process | None"]] = ContextVar("penstock_simulated_process", default=None)
"""Whose code is running."""

EXECUTOR_SECONDS_MAX: Final = 0.003


class Stuck(Exception):
    """Nothing is left that could happen, and somebody waits."""


class Process:
    """One process of the simulation: a node in one life, or a client."""

    def __init__(self, name: str, host: str) -> None:
        self.name: Final = name
        self.host: Final = host
        self.is_alive = True
        self._held: list[tuple[Context, Callable[..., object], tuple[Any, ...]]] | None = None
        self.tasks: Final[list[asyncio.Task[Any]]] = []
        """Kept for good: what a dead process would do when it is tidied up, it must not do."""
        self.on_killed: Final[list[Callable[[], None]]] = []

    def __repr__(self) -> str:
        return self.name

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return self._held is not None

    def run(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call, unless it cannot."""
        if not self.is_alive:
            return
        if self._held is not None:
            self._held.append((contextvars.copy_context(), callback, arguments))
            return
        callback(*arguments)

    def kill(self) -> None:
        """It ends now, wherever it is."""
        self.is_alive = False
        self._held = None
        for hook in self.on_killed:
            hook()

    def pause(self) -> None:
        """It stands still, and the world goes on."""
        if self._held is None:
            self._held = []

    def resume(self, loop: "SimulatedLoop") -> None:
        """It goes on, with everything that waited, in order."""
        held, self._held = self._held or [], None
        for context, callback, arguments in held:
            loop.call_soon(callback, *arguments, context=context)

    def context(self) -> Context:
        """A context whose code is this process's."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return context


class _VirtualSelector:
    """Waiting is letting the time go on."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck(f"at {self._loop.time():.3f} s nothing is left to happen")
        if timeout > 0:
            self._loop.advance(timeout)
        return []

    def close(self) -> None:
        return


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of all processes."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random: Final = random
        self._now = 0.0
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9
        self.network: Network | None = None
        self.set_exception_handler(self._report)
        self.errors: Final[list[dict[str, Any]]] = []
        """What the code of living processes let fall."""
        self.set_task_factory(self._make_task)

    # Time.

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let the time go on."""
        self._now += seconds

    # Whose turn it is.

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """As every loop does, for the process whose context it is."""
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.run, callback, *args, context=context)

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        """The same, later."""
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.run, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        """The same, after a while."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start something that a process does."""
        return self.create_task(coroutine, context=process.context())

    @staticmethod
    def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
        context = more.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.append(task)
        return task

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "Task was destroyed" not in str(context.get("message")):
            self.errors.append(context)

    # Threads and sockets, which there are none of.

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]  # noqa: ARG002
        """Run it here, a moment later, in one go."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.random.random() * EXECUTOR_SECONDS_MAX, run)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Over the simulated network."""
        assert self.network is not None
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        """On the simulated network; ``sock`` is a :class:`~penstock.testing.simulation.network.SimulatedListener`."""
        assert self.network is not None
        return self.network.listen(protocol_factory, more.get("sock"), host, port)

    def _process_events(self, event_list: Any) -> None:
        return

    def _write_to_self(self) -> None:
        return
