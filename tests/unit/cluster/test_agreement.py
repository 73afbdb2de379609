"""The record that all nodes begin with: made once, whoever comes first and whatever becomes of answers."""

import asyncio

import msgspec
import pytest

from penstock.cluster import agreement
from penstock.cluster.agreement import agree
from penstock.core.cluster.shared_secret import CLUSTER_KEY, ClusterRecord
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Put
from penstock.testing.faulty_store import FaultyStore, StoreFault
from tests.support.worlds import CountingEntropy, ManualClock

HANGS_SECONDS = 60


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(agreement, "_RETRY_SECONDS", 0.01)
    return MemoryStore()


async def test_whoever_comes_later_takes_what_is_there(store: MemoryStore) -> None:
    clock, entropy = ManualClock(), CountingEntropy()
    first = await agree(store, clock, entropy, "one")
    assert first.id == "one"
    assert len(first.secret) == 32
    assert await agree(store, clock, entropy, "two") == first


async def test_two_that_come_at_once_agree(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    faulty.order(StoreFault.SLOW)
    clock, entropy = ManualClock(), CountingEntropy()
    slow = asyncio.create_task(agree(faulty, clock, entropy, "one"))
    async with asyncio.timeout(HANGS_SECONDS):
        await faulty.met()
        quick = await agree(store, clock, entropy, "two")
        await faulty.release()
        assert await slow == quick


@pytest.mark.parametrize("fault", [StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST, StoreFault.LATE])
async def test_a_lost_answer_changes_nothing_of_what_is_agreed(store: MemoryStore, fault: StoreFault) -> None:
    faulty = FaultyStore(store)
    faulty.order(fault)
    async with asyncio.timeout(HANGS_SECONDS):
        agreed = await agree(faulty, ManualClock(), CountingEntropy(), "one")
    await faulty.release()
    entry = await store.get(CLUSTER_KEY)
    assert entry is not None
    assert msgspec.json.decode(entry.value, type=ClusterRecord) == agreed
    assert entry.create_revision == entry.mod_revision


async def test_a_store_that_is_down_is_waited_for(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    faulty.is_down = True
    waiting = asyncio.create_task(agree(faulty, ManualClock(), CountingEntropy(), "one"))
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    faulty.is_down = False
    async with asyncio.timeout(HANGS_SECONDS):
        assert (await waiting).id == "one"


async def test_a_node_of_a_cluster_does_not_make_it_anew_where_it_is_unknown(store: MemoryStore) -> None:
    with pytest.raises(PenstockError, match=r"--etcd.*backup") as caught:
        await agree(store, ManualClock(), CountingEntropy(), "one", may_make=False)
    assert caught.value.reason is Reason.STORAGE_ERROR
    assert await store.get(CLUSTER_KEY) is None


async def test_a_cluster_of_another_version_and_a_damaged_record_are_refused(store: MemoryStore) -> None:
    await store.txn([], [Put(CLUSTER_KEY, msgspec.json.encode(ClusterRecord("one", b"secret", version=2)))])
    with pytest.raises(PenstockError, match="install the same release") as caught:
        await agree(store, ManualClock(), CountingEntropy(), "one")
    assert caught.value.reason is Reason.UNSUPPORTED_VERSION
    await store.txn([], [Put(CLUSTER_KEY, b"{")])
    with pytest.raises(PenstockError, match="cannot be read") as caught:
        await agree(store, ManualClock(), CountingEntropy(), "one")
    assert caught.value.reason is Reason.STORAGE_ERROR
