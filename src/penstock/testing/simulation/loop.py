"""An event loop with virtual time, which jumps to the next event.

Several processes run on it. Everything that is scheduled belongs to the process in whose context it was scheduled. Callbacks of
a killed process never run; those of a paused one run when it is resumed. Nothing here depends on real time, on the order of
hashes or on threads: the same calls produce the same history.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from penstock.testing.simulation.network import Network

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EXECUTOR_SECONDS_MAX: Final = 0.003
_TASKS_BEFORE_TIDYING: Final = 500
_TURNS_AT_ONCE_MAX: Final = 20_000
"""Turns of the loop without any time passing. Our simulations take a few dozen."""


class Stuck(Exception):
    """Time does not advance any more: nothing is scheduled although something waits, or callbacks repeat endlessly."""


class Process:
    """One process of the simulation: a node in one incarnation, or a client."""

    def __init__(self, name: str, host: str) -> None:
        self.name: Final = name
        self.host: Final = host
        self.is_alive = True
        self._held: list[_Gate] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._tidied = _TASKS_BEFORE_TIDYING
        self.on_killed: Final[dict[object, Callable[[], None]]] = {}
        """Callbacks for its end, by their owner."""

    def __repr__(self) -> str:
        return self.name

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._held is not None

    def admits(self, gate: "_Gate") -> bool:
        """Whether this callback may run now; if the process is paused, it is kept for later."""
        if self._held is not None:
            self._held.append(gate)
            return False
        return self.is_alive

    def kill(self) -> None:
        """End the process immediately."""
        self.is_alive = False
        self._held = None
        hooks = list(self.on_killed.values())
        self.on_killed.clear()
        for hook in hooks:
            hook()

    def pause(self) -> None:
        """Suspend the process."""
        if self._held is None and self.is_alive:
            self._held = []

    def resume(self, loop: "SimulatedLoop") -> None:
        """Continue the process: first all callbacks that were kept, in order."""
        held, self._held = self._held or [], None
        for gate in held:
            asyncio.Handle(gate.run, (), loop, gate.context)._run()  # noqa: SLF001 - as the loop would

    def context(self) -> Context:
        """A context whose code belongs to this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return context

    def keep(self, task: "asyncio.Task[Any]") -> None:
        """Keep a reference to a task until it ends: a task of a killed process must not be garbage collected, which would run code."""
        self._tasks.append(task)
        if len(self._tasks) >= self._tidied:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._tidied = len(self._tasks) + _TASKS_BEFORE_TIDYING

    def bury(self) -> None:
        """The simulation is over: close unfinished tasks silently."""
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - no warnings
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
        self._tasks = []


PROCESS: Final[ContextVar[Process | None]] = ContextVar("penstock_simulated_process", default=None)
"""The process whose code is running."""


class _Gate:
    """A callback of a process, which runs only while the process does."""

    __slots__ = ("arguments", "callback", "context", "handle", "process")

    def __init__(
        self, process: Process, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context
    ) -> None:
        self.process = process
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.handle: asyncio.Handle | None = None

    def run(self) -> None:
        if (self.handle is None or not self.handle.cancelled()) and self.process.admits(self):
            # The handle and this object refer to each other. The garbage collector is off during a simulation, so break the cycle.
            self.handle = None
            self.callback(*self.arguments)


class _VirtualSelector:
    """Waiting advances the virtual time."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop
        self.turns_at_once = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck(f"At {self._loop.time():.3f} s nothing is scheduled any more")
        if timeout > 0:
            self.turns_at_once = 0
            self._loop.advance(timeout)
        else:
            self.turns_at_once += 1
            if self.turns_at_once > _TURNS_AT_ONCE_MAX:
                raise Stuck(f"At {self._loop.time():.3f} s something happens over and over without any time passing")
        return []

    def close(self) -> None:
        return


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of all processes."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random: Final = random
        self._now = 0.0
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9
        self.network: Network | None = None
        self.set_exception_handler(self._report)
        self.on_error: Callable[[dict[str, Any]], None] = lambda _: None
        """Called with the context of an unhandled exception."""
        self.set_task_factory(self._make_task)

    # Time.

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self._now += seconds

    # Callbacks, which belong to the process of their context.

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        gate = _Gate(process, callback, args, context)
        handle = gate.handle = super().call_soon(gate.run, context=context)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Calls from threads take a short time."""
        return self.call_later(self.random.random() ** 4 * EXECUTOR_SECONDS_MAX, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        gate = _Gate(process, callback, args, context)
        handle = gate.handle = super().call_at(when, gate.run, context=context)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task of a process."""
        return self.create_task(coroutine, context=process.context())

    @staticmethod
    def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
        context = more.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.keep(task)
        return task

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.on_error(context)

    # Simulated threads and sockets.

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":  # noqa: ARG002
        """Run it on the loop, a short time later."""
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
        assert self.network is not None
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        """On the simulated network; ``sock`` is a :class:`~penstock.testing.simulation.network.SimulatedListener`."""
        assert self.network is not None
        return self.network.listen(protocol_factory, more.get("sock"), host, port)

    def _process_events(self, event_list: Any) -> None:  # noqa: ARG002
        return

    def _write_to_self(self) -> None:
        return


class SimulatedExecutor(Executor):
    """Replaces a thread pool: work runs on the loop after a short time."""

    def __init__(self, loop: SimulatedLoop, seconds_max: float) -> None:
        self._loop = loop
        self.seconds_max = seconds_max
        """Maximum time until work begins."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Schedule it. The future never completes: a blocking wait would stop the loop that does the work."""
        self._loop.call_later(self._loop.random.random() ** 2 * self.seconds_max, partial(fn, *args, **kwargs))
        return Future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing."""
