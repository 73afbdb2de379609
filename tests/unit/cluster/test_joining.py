"""A lone broker's metadata on its way into a cluster: whole or not at all, once, and only into a cluster that is new."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from penstock.cluster.directories import directory_key
from penstock.cluster.joining import MIGRATED, import_alone
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Event, Put
from penstock.metadata.sqlite import SqliteStore
from penstock.runtime.disk import RealDisk
from penstock.testing.faulty_store import FaultyStore, StoreFault
from penstock.types import NodeId

HANGS_SECONDS = 60
DIRECTORY = UUID(int=1)
ENTRIES = {
    **{f"topics/t{n}": b"topic" for n in range(150)},
    **{f"p/{n:032x}/0": b"partition" for n in range(150)},
    "producer_ids": b'{"next":3000}',
    "groups/g": b"group",
}


@pytest.fixture
async def path(tmp_path: Path) -> str:
    made = str(tmp_path / "metadata.sqlite")
    await lone(made)
    return made


async def lone(path: str) -> None:
    alone = await SqliteStore.open(path)
    await alone.txn([], [Put(key, value) for key, value in ENTRIES.items()])
    await alone.close()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(operations_max=128)


async def join(store: MemoryStore | FaultyStore, path: str, node: int = 1, directory: UUID = DIRECTORY) -> int:
    return await import_alone(store, RealDisk(), path, NodeId(node), directory)


async def values(store: MemoryStore) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await store.range("")).entries}


async def is_refused(store: MemoryStore | FaultyStore, path: str, node: int = 1, directory: UUID = DIRECTORY) -> bool:
    with pytest.raises(PenstockError, match=r"--data-dir.*--cluster") as caught:
        await join(store, path, node, directory)
    return caught.value.reason is Reason.INVALID_CONFIG and RealDisk().exists(path)


async def test_all_of_it_is_the_clusters_and_no_topic_is_seen_without_its_partition(
    store: MemoryStore, path: str
) -> None:
    seen: list[str] = []

    def look(events: list[Event]) -> None:
        for event in events:
            seen.append(event.key)
            if event.key.startswith("topics/"):
                assert f"p/{int(event.key[8:]):032x}/0" in seen

    store.subscribe("", look)
    assert await join(store, path) == len(ENTRIES)
    found = await values(store)
    assert {key: found[key] for key in ENTRIES} == ENTRIES
    assert found[directory_key(1)] == DIRECTORY.hex.encode()
    assert not RealDisk().exists(path)
    assert RealDisk().exists(path + MIGRATED)


async def test_the_second_time_there_is_nothing_to_do(store: MemoryStore, path: str) -> None:
    await join(store, path)
    before = await store.range("")
    assert await join(store, path) == 0
    assert await store.range("") == before


@pytest.mark.parametrize("fault", [StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST])
@pytest.mark.parametrize("prefix", ["import", "p/", "topics/"])
async def test_a_start_that_ends_in_the_middle_is_finished_by_the_next(
    store: MemoryStore, path: str, fault: StoreFault, prefix: str
) -> None:
    faulty = FaultyStore(store)
    faulty.order(fault, touching=prefix)
    with pytest.raises(PenstockError) as caught:
        await join(faulty, path)
    assert caught.value.reason is Reason.METADATA_UNAVAILABLE
    assert await join(faulty, path) == len(ENTRIES)
    found = await values(store)
    assert {key: found[key] for key in ENTRIES} == ENTRIES


async def test_what_others_have_changed_since_an_interrupted_start_stays(store: MemoryStore, path: str) -> None:
    faulty = FaultyStore(store)
    faulty.order(StoreFault.REQUEST_LOST, touching="topics/")
    with pytest.raises(PenstockError):
        await join(faulty, path)
    # A controller has seen a partition, and named nobody.
    key = f"p/{7:032x}/0"
    await store.txn([], [Put(key, b"changed")])
    await join(faulty, path)
    assert (await values(store))[key] == b"changed"


async def test_nodes_that_were_quicker_are_no_hindrance(store: MemoryStore, path: str) -> None:
    await store.txn([], [Put(key, b"") for key in ("cluster", "nodes/2", "directories/2", "controller")])
    assert await join(store, path) == len(ENTRIES)


@pytest.mark.parametrize("key", ["topics/theirs", "producer_ids", "p/0/0"])
async def test_a_cluster_that_has_begun_takes_nobodys_topics(store: MemoryStore, path: str, key: str) -> None:
    await store.txn([], [Put(key, b"theirs")])
    assert await is_refused(store, path)
    assert await values(store) == {key: b"theirs"}


async def test_of_two_first_nodes_with_data_one_is_refused_and_nothing_of_it_is_there(
    store: MemoryStore, path: str, tmp_path: Path
) -> None:
    other = str(tmp_path / "other.sqlite")
    await lone(other)
    faulty = FaultyStore(store)
    faulty.order(StoreFault.SLOW, touching="import")
    slow = asyncio.create_task(is_refused(faulty, path, 2, UUID(int=2)))
    async with asyncio.timeout(HANGS_SECONDS):
        await faulty.met()
        await join(store, other)
        before = await store.range("")
        await faulty.release()
        assert await slow
    assert await store.range("") == before


async def test_a_topic_that_is_made_between_the_look_and_the_claim_is_noticed(store: MemoryStore, path: str) -> None:
    faulty = FaultyStore(store)
    faulty.order(StoreFault.SLOW, touching="import")
    slow = asyncio.create_task(is_refused(faulty, path))
    async with asyncio.timeout(HANGS_SECONDS):
        await faulty.met()
        await store.txn([], [Put("topics/theirs", b"")])
        await faulty.release()
        assert await slow
    assert "topics/t0" not in await values(store)
    # And the next try is refused as well.
    assert await is_refused(store, path)
