"""The contract of leases, held by every store that several nodes share."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Compare, Event, Put, SharedStore
from tests.support.waiting import growing

TTL_MS = 60_000
"""Longer than any test."""
SHORT_SECONDS = 2.0
"""The least that etcd grants."""
EXPIRES_SECONDS_MAX = 60


@dataclass
class Shared:
    """A store, and how its time passes; where it passes by itself, not at all."""

    store: SharedStore
    advance: Callable[[int], None]


@pytest.fixture
def shared() -> Shared:
    store = MemoryStore()
    now_ms = 0

    def advance(milliseconds: int) -> None:
        nonlocal now_ms
        now_ms += milliseconds
        store.expire(now_ms)

    return Shared(store, advance)


class Heard:
    """The events under a prefix, and a way to wait for one."""

    def __init__(self, store: SharedStore, prefix: str) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()
        store.subscribe(prefix, self._take)

    def _take(self, events: list[Event]) -> None:
        self.events += events
        self._more.set()

    async def gone(self, key: str) -> Event:
        async with asyncio.timeout(EXPIRES_SECONDS_MAX):
            while True:
                found = [event for event in self.events if event.key == key and event.entry is None]
                if found:
                    return found[0]
                self._more.clear()
                await self._more.wait()


async def test_an_entry_knows_its_lease(shared: Shared) -> None:
    store = shared.store
    lease = await store.grant(TTL_MS)
    await store.txn([], [Put("with", b"", lease), Put("without", b"")])
    with_lease, without = await store.get("with"), await store.get("without")
    assert lease > 0
    assert with_lease is not None
    assert without is not None
    assert (with_lease.lease, without.lease) == (lease, 0)


async def test_a_lease_that_is_not_renewed_takes_its_entries_with_it_and_subscribers_hear_of_it(shared: Shared) -> None:
    store = shared.store
    heard = Heard(store, "nodes/")
    for seconds in growing(SHORT_SECONDS):
        lease = await store.grant(round(seconds * 1000))
        # On a busy machine the lease may be over before it is used.
        with contextlib.suppress(PenstockError):
            put = await store.txn([], [Put("nodes/1", b"", lease), Put("nodes/2", b"")])
            break
    shared.advance(round(seconds * 1000))
    gone = await heard.gone("nodes/1")
    assert gone.revision > put.revision
    assert [entry.key for entry in (await store.range("nodes/")).entries] == ["nodes/2"]
    assert [(event.key, event.entry is None) for event in heard.events] == [
        ("nodes/1", False),
        ("nodes/2", False),
        ("nodes/1", True),
    ]
    assert await store.keep_alive(lease) == 0


async def test_a_renewed_lease_lives_on_and_a_gone_one_cannot_be_renewed(shared: Shared) -> None:
    store = shared.store
    lease, other = await store.grant(TTL_MS), await store.grant(TTL_MS)
    await store.txn([], [Put("a", b"", lease)])
    shared.advance(TTL_MS - 1)
    assert await store.keep_alive(lease) >= TTL_MS
    shared.advance(TTL_MS - 1)
    assert await store.get("a") is not None
    await store.revoke(other)
    assert await store.keep_alive(other) == 0


async def test_a_revoked_lease_ends_at_once_and_may_be_revoked_again(shared: Shared) -> None:
    store = shared.store
    heard = Heard(store, "")
    lease = await store.grant(60_000)
    await store.txn([], [Put("a", b"", lease), Put("b", b"", lease)])
    await store.revoke(lease)
    await heard.gone("a")
    await heard.gone("b")
    assert (await store.range("")).entries == ()
    await store.revoke(lease)


async def test_all_entries_of_a_lease_go_in_one_revision(shared: Shared) -> None:
    store = shared.store
    heard = Heard(store, "")
    lease = await store.grant(60_000)
    await store.txn([], [Put("a", b"", lease), Put("b", b"", lease)])
    await store.revoke(lease)
    assert (await heard.gone("a")).revision == (await heard.gone("b")).revision


async def test_an_entry_that_is_put_again_without_the_lease_outlives_it(shared: Shared) -> None:
    store = shared.store
    lease = await store.grant(60_000)
    await store.txn([], [Put("a", b"1", lease)])
    await store.txn([], [Put("a", b"2")])
    await store.revoke(lease)
    assert await store.get("a") is not None


async def test_a_put_with_a_lease_that_ended_is_refused_and_nothing_of_its_transaction_happens(shared: Shared) -> None:
    store = shared.store
    lease = await store.grant(60_000)
    await store.revoke(lease)
    with pytest.raises(PenstockError) as caught:
        await store.txn([], [Put("b", b""), Put("a", b"", lease)])
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert (await store.range("")).entries == ()


async def test_an_entry_made_again_after_its_lease_is_another_one(shared: Shared) -> None:
    store = shared.store
    first = await store.grant(60_000)
    made = await store.txn([Compare("a", create_revision=0)], [Put("a", b"", first)])
    second = await store.grant(60_000)
    assert not (await store.txn([Compare("a", create_revision=0)], [Put("a", b"", second)])).succeeded
    await store.revoke(first)
    again = await store.txn([Compare("a", create_revision=0)], [Put("a", b"", second)])
    entry = await store.get("a")
    assert again.succeeded
    assert entry is not None
    assert entry.create_revision == again.revision > made.revision
    assert not (await store.txn([Compare("a", create_revision=made.revision)], [Put("a", b"late")])).succeeded
