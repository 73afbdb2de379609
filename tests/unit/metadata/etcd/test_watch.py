"""What a watch makes of answers that a real etcd gives only at a bad moment."""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd import watch
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.port import Event
from penstock.wire.etcd import etcd_generated as pb
from tests.support.cluster_nodes import until
from tests.support.scripted_etcd import ScriptedEtcd, put

HANGS_SECONDS = 20


@pytest.fixture
async def etcd(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedEtcd]:
    monkeypatch.setattr(watch, "_PAUSE_SECONDS", 0.01)
    async with ScriptedEtcd() as etcd:
        yield etcd


class Heard:
    """The keys that a store told of: one list a call."""

    def __init__(self, store: EtcdStore) -> None:
        self.calls: list[list[tuple[str, int]]] = []
        store.subscribe("", self._take)

    def _take(self, events: list[Event]) -> None:
        self.calls.append([(event.key, event.revision) for event in events])

    @property
    def all(self) -> list[tuple[str, int]]:
        return [each for call in self.calls for each in call]


async def test_progress_that_overtakes_events_costs_none_of_them(etcd: ScriptedEtcd) -> None:
    async def overtaking(etcd: ScriptedEtcd, _request: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        yield pb.WatchResponse(header=etcd.header(100))
        yield pb.WatchResponse(header=etcd.header(100), events=[put("a", 50), put("b", 51)])
        await etcd.ended.wait()

    etcd.watch_scripts = [overtaking]
    store = await EtcdStore.open("c", [etcd.address])
    heard = Heard(store)
    await until(lambda: len(heard.all) == 2, "both are told")
    assert heard.calls == [[("a", 50)], [("b", 51)]]
    await store.close()


async def test_a_revision_that_comes_in_fragments_is_told_as_one(etcd: ScriptedEtcd) -> None:
    async def broken(etcd: ScriptedEtcd, _request: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        yield pb.WatchResponse(header=etcd.header(5), events=[put("a", 5)])
        # The stream ends in the middle of a revision.
        yield pb.WatchResponse(header=etcd.header(6), events=[put("b", 6)], fragment=True)

    async def whole(etcd: ScriptedEtcd, _request: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        yield pb.WatchResponse(header=etcd.header(6), events=[put("b", 6)], fragment=True)
        yield pb.WatchResponse(header=etcd.header(6), events=[put("c", 6)])
        await etcd.ended.wait()

    etcd.watch_scripts = [broken, whole]
    store = await EtcdStore.open("c", [etcd.address])
    heard = Heard(store)
    await until(lambda: len(heard.all) == 3, "all are told")
    assert heard.calls == [[("a", 5)], [("b", 6), ("c", 6)]]
    assert etcd.started_at == [2, 6]
    await store.close()


async def test_an_event_that_comes_twice_is_told_once(etcd: ScriptedEtcd) -> None:
    async def repeating(etcd: ScriptedEtcd, _request: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        yield pb.WatchResponse(header=etcd.header(5), events=[put("a", 5)])
        yield pb.WatchResponse(header=etcd.header(6), events=[put("a", 5), put("b", 6)])
        await etcd.ended.wait()

    etcd.watch_scripts = [repeating]
    store = await EtcdStore.open("c", [etcd.address])
    heard = Heard(store)
    await until(lambda: len(heard.all) >= 2, "all are told")
    assert heard.all == [("a", 5), ("b", 6)]
    await store.close()


async def test_nothing_is_followed_before_the_store_is_open_so_that_no_event_comes_before_its_subscriber(
    etcd: ScriptedEtcd,
) -> None:
    etcd.status_refusals = math.inf
    with pytest.raises(PenstockError) as refused:
        await EtcdStore.open("c", [etcd.address])
    assert refused.value.reason is Reason.METADATA_UNAVAILABLE
    assert etcd.started_at == []


async def test_a_watch_asks_for_a_member_that_has_a_leader(etcd: ScriptedEtcd) -> None:
    store = await EtcdStore.open("c", [etcd.address])
    await until(lambda: etcd.watch_metadata, "the watch begins")
    assert etcd.watch_metadata[0]["hasleader"] == "true"
    await store.close()


async def test_a_silent_watch_whose_member_does_not_answer_begins_anew(
    etcd: ScriptedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_SILENCE_SECONDS", 0.05)

    async def silent(etcd: ScriptedEtcd, _request: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        await etcd.ended.wait()
        yield pb.WatchResponse()

    async def speaking(etcd: ScriptedEtcd, _request: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        yield pb.WatchResponse(header=etcd.header(5), events=[put("a", 5)])
        await etcd.ended.wait()

    etcd.watch_scripts = [silent, speaking]
    store = await EtcdStore.open("c", [etcd.address])
    heard = Heard(store)
    await until(lambda: etcd.started_at, "the watch begins")
    # As long as its member answers, a silent watch is a quiet one.
    for _ in range(3):
        await asyncio.wait({asyncio.create_task(etcd.ended.wait())}, timeout=0.05)
    assert len(etcd.started_at) == 1
    etcd.status_refusals = 1
    await until(lambda: heard.all, "another watch speaks")
    assert etcd.started_at == [2, 2]
    await store.close()


async def test_a_subscriber_that_fails_costs_nobody_an_event(etcd: ScriptedEtcd) -> None:
    async def speaking(etcd: ScriptedEtcd, request: pb.WatchCreateRequest) -> AsyncIterator[pb.WatchResponse]:
        yield pb.WatchResponse(
            header=etcd.header(9), events=[put(f"k{n}", n) for n in range(request.start_revision, 10)]
        )
        await etcd.ended.wait()

    etcd.watch_scripts = [speaking] * 10
    store = await EtcdStore.open("c", [etcd.address])
    failed: list[str] = []

    def fail_once(events: list[Event]) -> None:
        if not failed:
            failed.append(events[0].key)
            raise PenstockError(Reason.STORAGE_ERROR, "this is a test's doing")

    store.subscribe("", fail_once)
    heard = Heard(store)
    await until(lambda: ("k9", 9) in heard.all, "the rest is told")
    assert failed == ["k2"]
    assert heard.all == [(f"k{n}", n) for n in range(2, 10)]
    await store.close()
