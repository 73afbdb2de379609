"""Slowing down a stream whose client is over a quota."""

import asyncio
from collections.abc import Callable

from penstock.core.quotas.quotas import Quotas
from penstock.core.security.access import Caller


async def pace(quotas: Quotas, caller: Caller, woken: asyncio.Event, ended: Callable[[], bool]) -> None:
    """Wait until the client is within its quotas, or the stream has ended. ``woken`` is set when it may have ended."""
    delay_ms = quotas.delay_ms(caller)
    if not delay_ms:
        return
    try:
        async with asyncio.timeout(delay_ms / 1000):
            while not ended():
                woken.clear()
                await woken.wait()
    except TimeoutError:
        return
