"""Sends compare-and-sets that wait at the same moment to the store as one transaction: a node that comes back joins a thousand in-sync sets at once.

Each caller learns the result of its own: a transaction in which one compare failed did nothing, and is sent again one by one. A transaction whose answer was lost is unknown to all of
its callers, as it would be to each alone; they ask again.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from penstock.errors import PenstockError
from penstock.metadata.port import Compare, Put, SharedStore

_SENDING_MAX: Final = 8
"""Transactions under way at once."""


@dataclass(frozen=True, slots=True)
class _PendingPut:
    compares: tuple[Compare, ...]
    put: Put
    done: "asyncio.Future[bool]"


class BatchedPuts:
    """What is asked for while others are on their way goes with the next one."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._waiting: list[_PendingPut] = []
        self._sending: dict[asyncio.Task[None], None] = {}

    async def put(self, compares: list[Compare], put: Put) -> bool:
        """Whether the compares held, so that it is put; raises when that is not known."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(_PendingPut(tuple(compares), put, done))
        if len(self._sending) < _SENDING_MAX:
            # At the end of this turn of the loop, so that those who ask in it go together.
            task = loop.create_task(self._send())
            self._sending[task] = None
            task.add_done_callback(self._sending.pop)
        return await done

    async def stop(self) -> None:
        """Send nothing more."""
        for task in list(self._sending):
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        self._waiting.clear()

    async def _send(self) -> None:
        while self._waiting:
            taken = self._take()
            if len(taken) == 1:
                await self._one(taken[0])
                continue
            try:
                succeeded = await self._txn(taken)
            except PenstockError as error:
                _fail(taken, error)
                continue
            for each in taken:
                if succeeded:
                    _tell(each, succeeded=True)
                else:
                    await self._one(each)

    def _take(self) -> list[_PendingPut]:
        """As many as one transaction may hold. Of one key only one: its second would compare with what the first has changed."""
        compares: set[Compare] = set()
        keys: set[str] = set()
        taken = 0
        for each in self._waiting:
            wanted = compares | set(each.compares)
            if taken and (max(len(wanted), taken + 1) > self._store.operations_max or each.put.key in keys):
                break
            compares = wanted
            keys.add(each.put.key)
            taken += 1
        found, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return found

    async def _one(self, each: _PendingPut) -> None:
        try:
            _tell(each, succeeded=await self._txn([each]))
        except PenstockError as error:
            _fail([each], error)

    async def _txn(self, taken: list[_PendingPut]) -> bool:
        compares = list(dict.fromkeys(compare for each in taken for compare in each.compares))
        done = await self._store.txn(compares, [each.put for each in taken])
        return done.succeeded


def _tell(each: _PendingPut, *, succeeded: bool) -> None:
    if not each.done.done():
        each.done.set_result(succeeded)


def _fail(taken: list[_PendingPut], error: PenstockError) -> None:
    for each in taken:
        if not each.done.done():
            each.done.set_exception(error)
