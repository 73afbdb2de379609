import asyncio

import pytest

from penstock.core.operations.handling import awaited


async def test_an_answer_that_comes_after_the_caller_has_left_is_dropped() -> None:
    callbacks = []
    waiting = asyncio.create_task(awaited(callbacks.append))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    callbacks[0]("late")
