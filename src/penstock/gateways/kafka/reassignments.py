"""Changes of many partitions, as Kafka's clients request elections and reassignments."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.portions import Turns, at_a_time
from penstock.operations.cluster import ElectLeader, ReassignPartition

AT_A_TIME_MAX: Final = 64
"""The maximum number of changes of one request that wait for the metadata store at the same time."""

Change = TypeVar("Change", ElectLeader, ReassignPartition)
Result = TypeVar("Result")


async def change_each(
    changes: Sequence[Change], context: RequestContext, timeout_ms: int
) -> list[tuple[Change, PenstockError | None]]:
    """Make each change; the refusals are in the same order. What is not done within the client's timeout is refused, too."""
    deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000

    async def one(change: Change) -> tuple[Change, PenstockError | None]:
        try:
            async with asyncio.timeout_at(deadline):
                await context.do(change)
        except PenstockError as error:
            # Many errors may be kept until the answer is complete: drop their tracebacks.
            return change, error.with_traceback(None)
        except TimeoutError:
            return change, PenstockError(
                Reason.REQUEST_TIMED_OUT,
                "The metadata store did not answer in time. Check whether the request was processed, and try again.",
            )
        return change, None

    return await at_a_time(changes, one, AT_A_TIME_MAX)


async def by_topics(
    done: Iterable[tuple[Change, PenstockError | None]],
    context: RequestContext,
    result: Callable[[int, int, str | None], Result],
) -> dict[str, list[Result]]:
    """The results by topic, each made of a partition, an error code and a text."""
    found: dict[str, list[Result]] = {}
    turns = Turns()
    for change, error in done:
        await turns.pause_if_long()
        text = None if error is None else error.text
        found.setdefault(change.topic, []).append(result(change.partition, context.code(error), text))
    return found
