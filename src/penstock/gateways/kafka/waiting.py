"""From a callback of the core to something a connection can wait for."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Outcome = TypeVar("Outcome")
Response = TypeVar("Response")


def answered(response: Response) -> asyncio.Future[Response]:
    """An answer that is there already, where others wait."""
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    future.set_result(response)
    return future


def answer_later(
    start: Callable[[Callable[[Outcome], None]], None], translate: Callable[[Outcome], Response]
) -> asyncio.Future[Response]:
    """Call ``start`` with a callback; what that is told, translated, is the result.

    A future and no task, since most of these calls are answered in the same turn of the loop or the next. When the connection
    is gone the future is cancelled, and then nobody wants the answer.
    """
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if future.done():
            return
        try:
            future.set_result(translate(outcome))
        except Exception as error:  # noqa: BLE001 - the core is in the middle of answering others; the mistake is this request's alone
            future.set_exception(error)

    start(done)
    return future
