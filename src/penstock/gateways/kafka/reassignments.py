"""Changes of many partitions, as Kafka's clients request elections and reassignments."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.portions import at_a_time

AT_A_TIME_MAX: Final = 64
"""Changes of one request that wait for the metadata store at the same time."""

Item = TypeVar("Item")


async def change_each(
    items: Sequence[Item], change: Callable[[Item], Awaitable[None]], timeout_ms: int
) -> list[tuple[Item, PenstockError | None]]:
    """Change each item; the results are in the same order, and a timeout for what was not done within the client's time."""
    deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000

    async def one(item: Item) -> tuple[Item, PenstockError | None]:
        try:
            async with asyncio.timeout_at(deadline):
                await change(item)
        except PenstockError as error:
            # Many may be kept until the answer is whole: without all that was on the stack when they were raised.
            return item, error.with_traceback(None)
        except TimeoutError:
            return item, PenstockError(
                Reason.REQUEST_TIMED_OUT,
                "The metadata store did not answer in time. Check whether the request was processed, and try again.",
            )
        return item, None

    return await at_a_time(items, one, AT_A_TIME_MAX)
