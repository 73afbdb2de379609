"""Reads the files of TLS again: every few seconds if they have changed, and at once when the process gets SIGHUP."""

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.transport.tls import ServerTls, reload_all

INTERVAL_SECONDS: Final = 5.0
"""A look costs some stats of files, in a thread. Certificates are renewed days before they expire."""


class Reloading:
    """The files of one node."""

    def __init__(self, found: Sequence[ServerTls]) -> None:
        self._found = found
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="tls-reload")

    def now(self) -> None:
        """Read all files soon, changed or not."""
        self._asked.set()

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                pass
            always = self._asked.is_set()
            self._asked.clear()
            await asyncio.to_thread(reload_all, self._found, always=always)
