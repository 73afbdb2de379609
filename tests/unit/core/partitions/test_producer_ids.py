import asyncio
from pathlib import Path

import pytest

from penstock.core.partitions.producer_ids import KEY, ProducerIds
from penstock.errors import PenstockError, Reason
from penstock.limits import PRODUCER_ID_BLOCK
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Put
from penstock.metadata.sqlite import SqliteStore
from penstock.testing.faulty_store import FaultyStore


async def test_ids_count_up_from_zero_over_the_end_of_a_block() -> None:
    ids = ProducerIds(MemoryStore())
    assert [await ids.next_id() for _ in range(PRODUCER_ID_BLOCK + 2)] == list(range(PRODUCER_ID_BLOCK + 2))


async def test_nodes_and_callers_at_the_same_time_never_get_the_same_id(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "metadata.sqlite"))
    nodes = [ProducerIds(store) for _ in range(3)]
    given = await asyncio.gather(*(node.next_id() for node in nodes for _ in range(1200)))
    await store.close()
    assert len(set(given)) == len(given)


async def test_a_restart_never_hands_out_an_id_again(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(3):
        store = await SqliteStore.open(str(tmp_path / "metadata.sqlite"))
        ids = ProducerIds(store)
        given += [await ids.next_id() for _ in range(5)]
        await store.close()
    assert len(set(given)) == 15


async def test_a_damaged_entry_is_told_and_not_guessed_over() -> None:
    store = MemoryStore()
    await store.txn([], [Put(KEY, b"\xff")])
    with pytest.raises(PenstockError) as caught:
        await ProducerIds(store).next_id()
    assert caught.value.reason is Reason.STORAGE_ERROR


async def test_a_store_that_went_back_hands_out_no_id_that_a_log_has() -> None:
    store = MemoryStore()
    ids = ProducerIds(store)
    assert await ids.next_id() == 0
    ids.note(5000)
    assert await ids.next_id() == 5001
    # It is set forward for everybody.
    assert await ProducerIds(store).next_id() == 5001 + PRODUCER_ID_BLOCK


async def test_there_are_ids_while_the_store_is_away_once_they_were_prepared() -> None:
    store = FaultyStore(MemoryStore())
    ids = ProducerIds(store)
    assert not ids.is_prepared
    await ids.prepare()
    assert ids.is_prepared
    store.is_down = True
    assert await ids.next_id() == 0
    ids.note(0)
    assert ids.is_prepared
    ids.note(PRODUCER_ID_BLOCK)
    assert not ids.is_prepared


async def test_an_id_that_a_client_invented_leaves_enough_for_others() -> None:
    ids = ProducerIds(MemoryStore())
    ids.note(2**63 - 1)
    assert await ids.next_id() == 0
    ids.note(2**53)
    assert await ids.next_id() == 2**53 + 1
