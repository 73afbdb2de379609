"""Combines simultaneous compare-and-sets into one transaction of the store: a node that comes back joins a thousand in-sync sets at once.

Each caller gets the result of its own put: if one compare of a transaction fails, its puts are sent again one by one. If the answer to a
transaction is lost, all its callers get the error, and retry.
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
    """Puts that are requested while others are being sent go into the next transaction."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._waiting: list[_PendingPut] = []
        self._sending: dict[asyncio.Task[None], None] = {}

    async def put(self, compares: list[Compare], put: Put) -> bool:
        """Whether the compares succeeded, so that the value was put; raises if that is unknown."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(_PendingPut(tuple(compares), put, done))
        if len(self._sending) < _SENDING_MAX:
            # In the next turn of the loop, so that all puts of this turn are included.
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
        """As many puts as fit into one transaction, at most one for each key."""
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
