"""What the store does when etcd is killed, paused, cut off, compacted or emptied, and when its answers are lost. Real processes all."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from penstock.address import Address
from penstock.cluster.registration import NodeRegistration
from penstock.core.cluster.image import NodeRecord
from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd import store as store_module
from penstock.metadata.etcd.endpoints import StoreMember
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.port import Compare, Delete, Event, Put, Range
from penstock.types import NodeId
from tests.support.etcd import Etcd, Relay, free_port, opened, running_etcd

HANGS_SECONDS = 60
"""A call that has not ended by then never would."""


class Follower:
    """Plays the events over what was read at the start, as every reader of a store does."""

    def __init__(self, store: EtcdStore) -> None:
        self.events: list[Event] = []
        self.state: dict[str, bytes] = {}
        self._more = asyncio.Event()
        store.subscribe("", self._take)

    def _take(self, events: list[Event]) -> None:
        self.events += events
        for event in events:
            if event.entry is None:
                del self.state[event.key]
            else:
                self.state[event.key] = event.entry.value
        self._more.set()

    @property
    def revisions(self) -> list[int]:
        return [event.revision for event in self.events]

    async def until(self, holds: Callable[["Follower"], bool]) -> None:
        async with asyncio.timeout(HANGS_SECONDS):
            while not holds(self):
                self._more.clear()
                await self._more.wait()


async def bounded(call: Awaitable[object]) -> Reason | None:
    """None when the call succeeded, else why not. It has to end by itself."""
    async with asyncio.timeout(HANGS_SECONDS):
        try:
            await call
        except PenstockError as error:
            return error.reason
    return None


async def put_until_it_is_there(store: EtcdStore, key: str, value: bytes = b"") -> int:
    """Make a key, as a careful caller does: after an unknown outcome it asks again. How often the outcome was unknown."""
    unknown = 0
    async with asyncio.timeout(2 * HANGS_SECONDS):
        while True:
            try:
                await store.txn([Compare(key, create_revision=0)], [Put(key, value)])
            except PenstockError as error:
                assert error.reason is Reason.METADATA_UNAVAILABLE
                unknown += 1
                continue
            return unknown


def state_of(found: Range) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in found.entries}


async def test_a_watch_goes_on_over_kills_and_restarts_of_etcd_skipping_and_repeating_nothing(etcd: Etcd) -> None:
    (member,) = etcd.members
    async with opened(etcd) as writer, opened(etcd) as watcher:
        follower = Follower(watcher)
        for life in range(3):
            for n in range(20):
                await put_until_it_is_there(writer, f"{life}/{n:02}")
            member.kill()
            etcd.start(member)
        await put_until_it_is_there(writer, "last")
        await follower.until(lambda heard: "last" in heard.state)
        entries = (await writer.range("")).entries
        assert [event.key for event in follower.events] == [
            f"{life}/{n:02}" for life in range(3) for n in range(20)
        ] + ["last"]
        assert follower.revisions == sorted({entry.mod_revision for entry in entries})


async def test_after_a_compaction_all_keys_are_read_and_only_what_changed_is_told(etcd: Etcd) -> None:
    async with Relay(etcd.addresses[0]) as relay, opened(etcd) as writer:
        await writer.txn([], [Put("kept", b"1"), Put("changed", b"1"), Put("removed", b"1"), Put("made again", b"1")])
        async with opened(etcd, addresses=[relay.address]) as watcher:
            follower = Follower(watcher)
            follower.state = state_of(await watcher.range(""))
            relay.refusing = True
            relay.cut()
            for value in (b"2", b"3"):
                await writer.txn([], [Put("changed", value)])
            await writer.txn([], [Delete("removed"), Delete("made again")])
            await writer.txn([], [Put("made again", b"1"), Put("new", b"1")])
            await writer.txn([], [Put("short-lived", b"")])
            last = await writer.txn([], [Delete("short-lived")])
            await etcd.compact(last.revision)
            relay.refusing = False
            await follower.until(lambda heard: "new" in heard.state)
            assert follower.state == state_of(await writer.range(""))
            assert sorted((event.key, event.revision) for event in follower.events) == [
                (key, last.revision) for key in ("changed", "made again", "new", "removed")
            ]
            # And on from there.
            await writer.txn([], [Put("kept", b"2")])
            await follower.until(lambda heard: heard.state["kept"] == b"2")
            assert len(follower.events) == 5


async def test_an_etcd_that_was_emptied_is_not_taken_for_one_whose_keys_were_deleted(etcd: Etcd) -> None:
    (member,) = etcd.members
    async with opened(etcd) as store:
        follower = Follower(store)
        for n in range(10):
            await store.txn([], [Put(f"k{n}", b"")])
        member.kill()
        shutil.rmtree(member.folder)
        etcd.start(member)
        reason = None
        while reason is not Reason.STORAGE_ERROR:
            reason = await bounded(store.get("k0"))
        assert await bounded(store.txn([], [Put("a", b"")])) is Reason.STORAGE_ERROR
        assert follower.state == {f"k{n}": b"" for n in range(10)}


async def test_an_emptied_etcd_is_known_by_its_record_though_its_revision_is_higher(etcd: Etcd) -> None:
    (member,) = etcd.members
    async with Relay(etcd.addresses[0]) as relay, opened(etcd, addresses=[relay.address]) as store:
        follower = Follower(store)
        await store.txn([], [Put("cluster", b"agreed"), Put("topics/a", b"")])
        relay.refusing = True
        relay.cut()
        member.kill()
        shutil.rmtree(member.folder)
        etcd.start(member)
        async with opened(etcd) as other:
            for n in range(10):
                last = await other.txn([], [Put(f"other/{n}", b"")])
            await etcd.compact(last.revision)
        relay.refusing = False
        reason = None
        while reason is not Reason.STORAGE_ERROR:
            reason = await bounded(store.get("topics/a"))
        assert follower.state == {"cluster": b"agreed", "topics/a": b""}


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_the_loss_of_etcds_leader_is_a_gap_and_no_more(etcd_of_three: Etcd, fault: str) -> None:
    leader = await etcd_of_three.leader()
    # The leader first: it is the member that everything goes through.
    addresses = sorted(etcd_of_three.addresses, key=lambda address: address != leader.client)
    async with (
        opened(etcd_of_three, addresses=addresses) as writer,
        opened(etcd_of_three, addresses=addresses) as watcher,
    ):
        follower = Follower(watcher)
        for n in range(5):
            await put_until_it_is_there(writer, f"before/{n}")
        if fault == "kill":
            leader.kill()
        else:
            leader.pause()
        try:
            for n in range(5):
                await put_until_it_is_there(writer, f"after/{n}")
            await follower.until(lambda heard: "after/4" in heard.state)
            lease = await writer.grant(60_000)
            assert await writer.keep_alive(lease) > 0
        finally:
            if fault == "pause":
                leader.resume()
        assert follower.state == state_of(await writer.range(""))
        assert len(follower.events) == 10
        assert follower.revisions == sorted(set(follower.revisions))


async def test_a_paused_follower_of_etcd_is_left_for_another_member(etcd_of_three: Etcd) -> None:
    leader = await etcd_of_three.leader()
    addresses = sorted(etcd_of_three.addresses, key=lambda address: address == leader.client)
    paused = next(member for member in etcd_of_three.members if member.client == addresses[0])
    async with opened(etcd_of_three, addresses=addresses) as store:
        follower = Follower(store)
        lease = await store.grant(60_000)
        paused.pause()
        try:
            # What may be asked twice is answered at once, as far as the caller can tell.
            assert await bounded(store.keep_alive(lease)) is None
            assert await bounded(store.get("a")) is None
            assert await bounded(store.range("")) is None
            assert store._endpoints.current.address != paused.client
            await put_until_it_is_there(store, "a")
            # The watch has moved along.
            await follower.until(lambda heard: heard.state == {"a": b""})
        finally:
            paused.resume()


async def test_with_all_members_down_every_call_says_so_and_with_them_back_all_is_well(etcd_of_three: Etcd) -> None:
    async with opened(etcd_of_three) as store, opened(etcd_of_three) as other:
        follower = Follower(store)
        lease = await store.grant(60_000)
        for member in etcd_of_three.members:
            member.kill()
        calls = (
            store.get("a"),
            store.range(""),
            store.txn([], [Put("a", b"")]),
            store.grant(60_000),
            store.keep_alive(lease),
            store.revoke(lease),
        )
        assert await asyncio.gather(*map(bounded, calls)) == [Reason.METADATA_UNAVAILABLE] * len(calls)
        for member in etcd_of_three.members:
            etcd_of_three.start(member)
        await put_until_it_is_there(other, "back")
        await follower.until(lambda heard: "back" in heard.state)
        assert await store.keep_alive(lease) > 0


async def test_a_member_without_the_others_is_no_etcd(etcd_of_three: Etcd) -> None:
    rest, *killed = etcd_of_three.members
    async with opened(etcd_of_three, addresses=[rest.client]) as store:
        follower = Follower(store)
        for member in killed:
            member.kill()
        assert await bounded(store.get("a")) is Reason.METADATA_UNAVAILABLE
        assert await bounded(store.txn([], [Put("a", b"")])) is Reason.METADATA_UNAVAILABLE
        for member in killed:
            etcd_of_three.start(member)
        await put_until_it_is_there(store, "b")
        await follower.until(lambda heard: "b" in heard.state)


async def test_a_transaction_whose_answer_is_lost_is_unknown_and_was_sent_once(etcd: Etcd) -> None:
    async with (
        Relay(etcd.addresses[0]) as relay,
        opened(etcd) as other,
        opened(etcd, addresses=[relay.address]) as store,
    ):
        follower = Follower(store)
        before = await other.range("")
        relay.swallowing = True
        # A put without compares changes the revision each time: a second sending could not be missed.
        assert await bounded(store.txn([], [Put("a", b"1")])) is Reason.METADATA_UNAVAILABLE
        assert relay.swallowed > 0
        relay.swallowing = False
        relay.cut()
        # It was done, and the one who asked hears of it as everybody does.
        await follower.until(lambda heard: "a" in heard.state)
        entry = await other.get("a")
        assert entry is not None
        assert entry.mod_revision == entry.create_revision == before.revision + 1
        assert (await other.range("")).revision == before.revision + 1
        assert len(follower.events) == 1


@pytest.mark.usefixtures("patience")
async def test_an_image_of_ten_thousand_partitions_is_read_in_pages(etcd: Etcd) -> None:
    record = b'{"leader":1,"leader_epoch":12,"replicas":[1,2,3],"isr":[[1,123456],[2,123457],[3,123458]],"leader_node_epoch":123456}'
    async with opened(etcd) as store:
        for first in range(0, 10_000, 100):
            await store.txn(
                [], [Put(f"p/0123456789abcdef0123456789abcdef/{n}", record) for n in range(first, first + 100)]
            )
        assert len((await store.range("p/")).entries) == 10_000
        # And whoever comes later begins with all of it.
        async with opened(etcd) as later:
            assert later.revision_seen == store.revision_seen


@pytest.mark.usefixtures("patience")
async def test_pages_get_smaller_where_values_are_large(etcd: Etcd) -> None:
    value = b"x" * 200_000
    async with opened(etcd) as store:
        for n in range(40):
            await store.txn([], [Put(f"large/{n:02}", value)])
        entries = (await store.range("large/")).entries
        assert [entry.key for entry in entries] == [f"large/{n:02}" for n in range(40)]
        assert all(entry.value == value for entry in entries)


@pytest.mark.usefixtures("patience")
async def test_a_range_whose_revision_is_compacted_between_two_pages_is_read_again(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_KEYS_PER_PAGE", 2)
    async with opened(etcd) as store:
        for n in range(5):
            await store.txn([], [Put(f"k{n}", b"old")])
        pages = 0
        page_of = store._page

        async def compacting(start: bytes, end: bytes, revision: int, limit: int) -> object:
            nonlocal pages
            pages += 1
            if pages == 2:
                changed = await store.txn([], [Put("k0", b"new")])
                await etcd.compact(changed.revision)
            return await page_of(start, end, revision, limit)

        monkeypatch.setattr(store, "_page", compacting)
        found = await store.range("k")
        assert state_of(found) == {"k0": b"new", **{f"k{n}": b"old" for n in range(1, 5)}}
        assert pages > 3


@pytest.mark.usefixtures("patience")
async def test_a_large_transaction_is_heard_of_as_one(etcd: Etcd) -> None:
    async with opened(etcd) as store:
        heard: list[int] = []
        store.subscribe("", lambda events: heard.append(len(events)))
        # Some hundred kilobytes, which etcd sends in fragments to whoever asks for them after the fact.
        await store.txn([], [Put(f"k{n}", b"x" * 10_000) for n in range(100)])
        assert heard == [100]


async def test_opening_where_nobody_listens_says_where_and_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.metadata.etcd.endpoints.READ_SECONDS", 0.5)
    address = Address("127.0.0.1", free_port())
    with pytest.raises(PenstockError) as caught:
        await EtcdStore.open("c", [address])
    assert caught.value.reason is Reason.METADATA_UNAVAILABLE
    assert str(address) in caught.value.text


async def test_a_registration_whose_answer_is_lost_is_adopted_by_its_lease(etcd: Etcd) -> None:
    async with (
        Relay(etcd.addresses[0]) as relay,
        opened(etcd) as other,
        opened(etcd, addresses=[relay.address]) as store,
    ):
        epochs: list[int] = []
        record = NodeRecord(UUID(int=1), UUID(int=2), {"peer": "127.0.0.1:1"})
        registration = NodeRegistration(store, NodeId(1), record, ttl_ms=60_000, on_registered=epochs.append)
        ask_once = store._endpoints.ask_once

        async def losing(question: Callable[[StoreMember], Awaitable[object]]) -> object:
            """The first transaction is done, and what etcd says to it never arrives."""
            store._endpoints.ask_once = ask_once  # type: ignore[method-assign]
            relay.swallowing = True
            try:
                return await ask_once(question)
            finally:
                relay.swallowing = False
                relay.cut()

        store._endpoints.ask_once = losing  # type: ignore[assignment,method-assign]
        async with asyncio.timeout(HANGS_SECONDS):
            await registration.start()
        assert relay.swallowed > 0
        entry = await other.get("nodes/1")
        assert entry is not None
        assert (entry.lease, entry.create_revision) == (registration.lease, registration.epoch)
        assert entry.mod_revision == entry.create_revision
        assert epochs == [entry.create_revision]
        await registration.leave()
        assert await other.get("nodes/1") is None


@pytest.fixture
def small_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Etcd]:
    """One that has room for little."""
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", str(2 * 1024 * 1024))
    with running_etcd(tmp_path / "small") as etcd:
        yield etcd


async def fill(store: EtcdStore) -> None:
    async with asyncio.timeout(HANGS_SECONDS):
        while True:
            await store.txn([], [Put("large", b"x" * 500_000)])


@pytest.mark.usefixtures("patience")
async def test_an_etcd_whose_quota_is_used_up_says_what_to_do_and_is_read_all_the_same(small_etcd: Etcd) -> None:
    async with opened(small_etcd) as store:
        await store.txn([], [Put("first", b"")])
        with pytest.raises(PenstockError) as caught:
            await fill(store)
        assert caught.value.reason is Reason.METADATA_UNAVAILABLE
        assert "alarm disarm" in caught.value.text
        assert await bounded(store.get("first")) is None
