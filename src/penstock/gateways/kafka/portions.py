"""Requests that ask for many things: a portion at a time, so that other clients are served in between.

What is asked for together may cost seconds, within every bound on the size of a request. The event loop is held for some milliseconds of it at most; the connection
waits for its answer, as it does for every other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import perf_counter
from typing import Final, TypeVar

AT_ONCE_MAX: Final = 64
"""So few are done without a look at the time."""
TURN_SECONDS: Final = 0.005
"""So long a request may hold the event loop at a time."""
AT_A_TIME_MAX: Final = 128
"""Of those that wait for something, so many of one request wait together: one commit of the metadata store takes as many."""

Asked = TypeVar("Asked")
Found = TypeVar("Found")


class Turns:
    """The turns of one request."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = perf_counter() + TURN_SECONDS

    async def pause_if_long(self) -> None:
        """Let others have their turn, if this one was long."""
        if perf_counter() > self._until:
            await asyncio.sleep(0)
            self._until = perf_counter() + TURN_SECONDS


async def in_portions(asked: Iterable[Asked], do: Callable[[Asked], Found], turns: Turns | None = None) -> list[Found]:
    """What ``do`` makes of each, in their order. Whoever calls it more than once for one request has ``turns`` for all of them."""
    turns = turns or Turns()
    found: list[Found] = []
    for one in asked:
        await turns.pause_if_long()
        found.append(do(one))
    return found


async def at_a_time(
    asked: Sequence[Asked], do: Callable[[Asked], Awaitable[Found]], count_max: int = AT_A_TIME_MAX
) -> list[Found]:
    """What ``do`` makes of each, in their order; at most ``count_max`` are under way."""
    if len(asked) <= min(AT_ONCE_MAX, count_max):
        return list(await asyncio.gather(*map(do, asked)))
    found: dict[int, Found] = {}
    under_way: set[asyncio.Task[None]] = set()

    async def note(place: int, one: Asked) -> None:
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
