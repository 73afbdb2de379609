"""The bad connection itself: each fault does what it is named for, or tests of races would prove nothing."""

import asyncio

import pytest

from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Compare, Event, Put, TxnResult
from penstock.testing.faulty_store import FaultyStore, StoreFault

HANGS_SECONDS = 20


async def is_unknown(call: "asyncio.Future[TxnResult]") -> bool:
    with pytest.raises(PenstockError) as caught:
        await call
    return caught.value.reason is Reason.METADATA_UNAVAILABLE


async def value(store: MemoryStore, key: str) -> bytes | None:
    entry = await store.get(key)
    return None if entry is None else entry.value


async def test_without_an_order_everything_goes_through() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store)
    heard: list[Event] = []
    faulty.subscribe("", heard.extend)
    lease = await faulty.grant(1_000)
    assert (await faulty.txn([], [Put("a", b"1", lease)])).succeeded
    assert await faulty.keep_alive(lease) == 1_000
    assert (await faulty.range("")).entries == (await store.range("")).entries
    await faulty.revoke(lease)
    assert [event.key for event in heard] == ["a", "a"]


@pytest.mark.parametrize("fault", StoreFault)
async def test_a_key_named_twice_is_refused_whatever_was_ordered(fault: StoreFault) -> None:
    store = MemoryStore()
    faulty = FaultyStore(store)
    faulty.order(fault)
    async with asyncio.timeout(HANGS_SECONDS):
        with pytest.raises(ValueError, match="'a' is named twice in one transaction"):
            await faulty.txn([], [Put("a", b"1"), Put("a", b"2")])
    assert await value(store, "a") is None


@pytest.mark.parametrize(
    ("fault", "at_once", "later"),
    [
        (StoreFault.ANSWER_LOST, b"1", b"1"),
        (StoreFault.REQUEST_LOST, None, None),
        (StoreFault.LATE, None, b"1"),
    ],
)
async def test_a_caller_does_not_know_what_became_of_it(
    fault: StoreFault, at_once: bytes | None, later: bytes | None
) -> None:
    store = MemoryStore()
    faulty = FaultyStore(store)
    faulty.order(fault, touching="a")
    await faulty.txn([], [Put("other", b"")])
    assert await is_unknown(asyncio.ensure_future(faulty.txn([], [Put("a", b"1")])))
    assert await value(store, "a") == at_once
    await faulty.release()
    assert await value(store, "a") == later
    # Once only.
    assert (await faulty.txn([], [Put("a", b"2")])).succeeded


@pytest.mark.parametrize(("fault", "at_once"), [(StoreFault.SLOW, None), (StoreFault.ANSWER_SLOW, b"1")])
async def test_a_caller_waits(fault: StoreFault, at_once: bytes | None) -> None:
    store = MemoryStore()
    faulty = FaultyStore(store)
    faulty.order(fault)
    call = asyncio.create_task(faulty.txn([], [Put("a", b"1")]))
    async with asyncio.timeout(HANGS_SECONDS):
        await faulty.met()
        assert await value(store, "a") == at_once
        assert not call.done()
        await faulty.release()
        assert (await call).succeeded
    assert await value(store, "a") == b"1"


async def test_a_late_one_is_held_to_its_compares_when_it_happens() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store)
    faulty.order(StoreFault.LATE)
    assert await is_unknown(asyncio.ensure_future(faulty.txn([Compare("a", create_revision=0)], [Put("a", b"late")])))
    await store.txn([], [Put("a", b"first")])
    await faulty.release()
    assert [result.succeeded for result in faulty.late_results] == [False]
    assert await value(store, "a") == b"first"


async def test_held_events_come_in_order_and_a_change_that_is_not_heard_of_is_unknown() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store)
    heard: list[str] = []
    faulty.subscribe("", lambda events: heard.extend(event.key for event in events))
    faulty.hold_events()
    await store.txn([], [Put("a", b"")])
    assert await is_unknown(asyncio.ensure_future(faulty.txn([], [Put("b", b"")])))
    assert heard == []
    faulty.let_events()
    assert heard == ["a", "b"]
    await store.txn([], [Put("c", b"")])
    assert heard == ["a", "b", "c"]


async def test_nothing_gets_through_while_it_is_down() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store)
    faulty.is_down = True
    for call in (faulty.get("a"), faulty.range(""), faulty.grant(1), faulty.keep_alive(1), faulty.revoke(1)):
        with pytest.raises(PenstockError):
            await call
    assert await is_unknown(asyncio.ensure_future(faulty.txn([], [Put("a", b"")])))
    assert await value(store, "a") is None
