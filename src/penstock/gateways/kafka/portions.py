"""Requests with many items, which are processed a portion at a time, so that other clients are served in between.

Such a request may take seconds, although its size is bounded. It holds the event loop for a few milliseconds at a time, however many
such requests there are: one of them continues in each round of the loop, and the others wait in a queue. The connection waits for its answer as usual.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import perf_counter
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

AT_ONCE_MAX: Final = 64
"""The number of items that are processed without a look at the time."""
TURN_SECONDS: Final = 0.005
"""How long all requests with many items together may hold the event loop at a time."""
AT_A_TIME_MAX: Final = 128
"""The maximum number of items of one request that wait at the same time: one commit of the metadata store takes as many."""

Item = TypeVar("Item")
Found = TypeVar("Found")
Response = TypeVar("Response")


class _TurnQueue:
    """The requests of one event loop that wait for their next turn."""

    __slots__ = ("_is_moving", "_until", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_moving = False
        self._until = 0.0

    def begin(self) -> float:
        """The end of the turn of a request that begins now. Requests that begin together share a turn, and do not overtake others."""
        if self._waiting:
            return 0.0
        now = perf_counter()
        if now > self._until:
            self._until = now + TURN_SECONDS
        return self._until

    async def next_turn(self) -> float:
        """Wait for the next turn; returns its end."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        if not self._is_moving:
            self._is_moving = True
            loop.call_soon(self._move)
        await place
        self._until = perf_counter() + TURN_SECONDS
        return self._until

    def _move(self) -> None:
        """Continue the first request whose connection still exists; called once in each round of the loop."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                break
        self._is_moving = bool(self._waiting)
        if self._is_moving:
            asyncio.get_running_loop().call_soon(self._move)


_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _TurnQueue]] = WeakKeyDictionary()


class Turns:
    """The turns of one request."""

    __slots__ = ("_queue", "_until")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        queue = _queues.get(loop)
        if queue is None:
            queue = _queues[loop] = _TurnQueue()
        self._queue = queue
        self._until = queue.begin()

    async def pause_if_long(self) -> None:
        """Let others have their turn if this one is over."""
        if perf_counter() > self._until:
            self._until = await self._queue.next_turn()


def respond(
    asked: Sequence[Item], do: Callable[[Item], Found], response: Callable[[list[Found]], Response]
) -> Response | Awaitable[Response]:
    """The response of what ``do`` makes of each: at once if there are few."""
    if len(asked) <= AT_ONCE_MAX:
        return response([do(one) for one in asked])
    return _respond_in_portions(asked, do, response)


async def _respond_in_portions(
    asked: Sequence[Item], do: Callable[[Item], Found], response: Callable[[list[Found]], Response]
) -> Response:
    return response(await in_portions(asked, do))


async def in_portions(asked: Iterable[Item], do: Callable[[Item], Found], turns: Turns | None = None) -> list[Found]:
    """What ``do`` makes of each, in their order. A caller that needs several calls for one request passes the same ``turns`` to all of them."""
    turns = turns or Turns()
    found: list[Found] = []
    for one in asked:
        await turns.pause_if_long()
        found.append(do(one))
    return found


async def at_a_time(
    asked: Sequence[Item], do: Callable[[Item], Awaitable[Found]], count_max: int = AT_A_TIME_MAX
) -> list[Found]:
    """What ``do`` makes of each, in their order; at most ``count_max`` are under way."""
    if len(asked) <= min(AT_ONCE_MAX, count_max):
        return list(await asyncio.gather(*map(do, asked)))
    found: dict[int, Found] = {}
    under_way: set[asyncio.Task[None]] = set()

    async def note(place: int, one: Item) -> None:
        found[place] = await do(one)

    try:
        for place, one in enumerate(asked):
            if len(under_way) >= count_max:
                # All that do not wait for anything end in one turn of the event loop, so a turn has no more of them than this.
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            under_way.add(asyncio.create_task(note(place, one)))
        await asyncio.gather(*under_way)
    finally:
        for task in under_way:
            task.cancel()
    return [found[place] for place in range(len(asked))]
