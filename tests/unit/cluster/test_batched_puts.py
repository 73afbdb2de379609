"""Compare-and-sets that are sent together: each caller is told of its own, whatever becomes of the others."""

import asyncio

import pytest

from penstock.cluster.batched_puts import BatchedPuts
from penstock.errors import PenstockError
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Compare, Put
from penstock.testing.faulty_store import FaultyStore, StoreFault

ABSENT = 0


class CountingStore(FaultyStore):
    """How many puts each transaction had."""

    def __init__(self, store) -> None:
        super().__init__(store)
        self.sizes = []

    async def txn(self, compares, operations):
        self.sizes.append(len(operations))
        return await super().txn(compares, operations)


@pytest.fixture
def memory():
    return MemoryStore(operations_max=128)


@pytest.fixture
def store(memory):
    return CountingStore(memory)


def wishes(puts, keys, *, incarnation="nodes/1"):
    return [
        puts.put([Compare(key, mod_revision=ABSENT), Compare(incarnation, create_revision=ABSENT)], Put(key, b"v"))
        for key in keys
    ]


async def test_those_of_one_moment_go_in_as_few_transactions_as_they_fit_in(store, memory) -> None:
    keys = [f"p/{n:04}" for n in range(300)]
    assert await asyncio.gather(*wishes(BatchedPuts(store), keys)) == [True] * 300
    assert len((await memory.range("p/")).entries) == 300
    # 128 compares: one for each, and one that all share.
    assert sorted(store.sizes) == [46, 127, 127]


async def test_one_whose_compare_fails_does_not_hold_the_others_up(store, memory) -> None:
    await memory.txn([], [Put("p/1", b"taken")])
    assert await asyncio.gather(*wishes(BatchedPuts(store), ["p/0", "p/1", "p/2"])) == [True, False, True]
    assert (await memory.get("p/1")).value == b"taken"
    assert (await memory.get("p/2")).value == b"v"


async def test_two_changes_of_one_key_do_not_go_together(store, memory) -> None:
    puts = BatchedPuts(store)
    first, second = wishes(puts, ["p/0", "p/0"])
    assert sorted(await asyncio.gather(first, second)) == [False, True]
    assert store.sizes == [1, 1]


async def test_a_lost_answer_is_unknown_to_all_of_them_and_asking_again_tells(store, memory) -> None:
    puts = BatchedPuts(store)
    store.order(StoreFault.ANSWER_LOST, touching="p/")
    found = await asyncio.gather(*wishes(puts, ["p/0", "p/1"]), return_exceptions=True)
    assert all(isinstance(each, PenstockError) for each in found)
    assert (await memory.get("p/0")).value == b"v"
    # It did happen, so the same compares do not hold any more.
    assert await asyncio.gather(*wishes(puts, ["p/0", "p/1"])) == [False, False]


async def test_what_is_asked_for_meanwhile_goes_with_the_next(store, memory) -> None:
    puts = BatchedPuts(store)
    store.order(StoreFault.SLOW, touching="p/first")
    first = asyncio.ensure_future(wishes(puts, ["p/first"])[0])
    await store.met()
    rest = asyncio.gather(*wishes(puts, ["p/0", "p/1", "p/2"]))
    assert await rest == [True] * 3
    assert not first.done()
    await store.release()
    assert await first
    assert store.sizes == [1, 3]


async def test_a_stop_sends_nothing_more(store, memory) -> None:
    puts = BatchedPuts(store)
    store.order(StoreFault.SLOW, touching="p/0")
    waiting = asyncio.ensure_future(wishes(puts, ["p/0"])[0])
    await store.met()
    await puts.stop()
    assert await memory.get("p/0") is None
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
