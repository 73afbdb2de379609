"""The cluster's secret: two generations are valid, every node follows, and nobody is shown it."""

import msgspec
import pytest

from penstock.core.cluster.shared_secret import CLUSTER_KEY, ClusterRecord, SharedSecret
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Compare, Delete, Operation, Put, TxnResult
from tests.support.worlds import CountingEntropy

FIRST = bytes(range(32))


async def store_with(record: ClusterRecord | None = None) -> MemoryStore:
    store = MemoryStore()
    await store.txn([], [Put(CLUSTER_KEY, msgspec.json.encode(record or ClusterRecord("c", FIRST)))])
    return store


async def loaded(store: MemoryStore) -> SharedSecret:
    secret = SharedSecret(store)
    await secret.load()
    return secret


async def test_a_rotation_keeps_the_secret_before_and_drops_the_one_before_that() -> None:
    store, entropy = await store_with(), CountingEntropy()
    one, other = await loaded(store), await loaded(store)
    heard: list[int] = []
    other.on_changed.append(lambda: heard.append(other.generation))
    assert await one.rotate(entropy, 7) == 2
    second = one.of(2)
    assert second is not None
    assert second != FIRST
    assert len(second) == 32
    for each in (one, other):
        assert (each.generation, each.of(1), each.of(2)) == (2, FIRST, second)
        assert each.is_valid(FIRST)
    assert await other.rotate(entropy, 8) == 3
    for each in (one, other):
        assert (each.generation, each.of(1), each.of(2)) == (3, None, second)
        assert not each.is_valid(FIRST)
        assert each.is_valid(second)
    assert heard == [2, 3]


async def test_two_nodes_that_rotate_at_once_make_two_generations() -> None:
    class Racing(MemoryStore):
        """Another node comes first, once."""

        rival: SharedSecret | None = None

        async def txn(self, compares: list[Compare], operations: list[Operation]) -> TxnResult:  # type: ignore[override]
            rival, self.rival = self.rival, None
            if rival is not None:
                await rival.rotate(CountingEntropy(), 1)
            return await super().txn(compares, operations)

    store = Racing()
    await store.txn([], [Put(CLUSTER_KEY, msgspec.json.encode(ClusterRecord("c", FIRST)))])
    one, store.rival = await loaded(store), await loaded(store)
    assert await one.rotate(CountingEntropy(), 2) == 3


async def test_the_rest_of_the_record_stays_as_it_is() -> None:
    store = await store_with(ClusterRecord("the id", FIRST, created_ms=5))
    await (await loaded(store)).rotate(CountingEntropy(), 9)
    entry = await store.get(CLUSTER_KEY)
    assert entry is not None
    record = msgspec.json.decode(entry.value, type=ClusterRecord)
    assert (record.id, record.created_ms, record.rotated_ms, record.previous) == ("the id", 5, 9, FIRST)


async def test_a_record_of_an_older_release_is_the_first_generation() -> None:
    store = MemoryStore()
    await store.txn([], [Put(CLUSTER_KEY, msgspec.json.encode({"id": "c", "secret": FIRST, "version": 1}))])
    secret = await loaded(store)
    assert (secret.generation, secret.of(1)) == (1, FIRST)


async def test_without_a_record_nothing_is_valid_and_there_is_nothing_to_rotate() -> None:
    secret = await loaded(MemoryStore())
    assert (secret.generation, secret.of(0), secret.is_valid(b"")) == (0, None, False)
    with pytest.raises(PenstockError, match="single broker") as caught:
        await secret.rotate(CountingEntropy(), 1)
    assert caught.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("value", [b"{", b'{"id":"c","secret":""}'])
async def test_a_damaged_record_is_refused_at_the_start_and_changes_nothing_later(value: bytes) -> None:
    damaged = MemoryStore()
    await damaged.txn([], [Put(CLUSTER_KEY, value)])
    with pytest.raises(PenstockError, match="cannot be read"):
        await loaded(damaged)
    store, reports = await store_with(), list[str]()
    secret = SharedSecret(store, reports.append)
    await secret.load()
    await store.txn([], [Put(CLUSTER_KEY, value)])
    assert secret.of(1) == FIRST
    assert len(reports) == 1


async def test_an_etcd_that_was_emptied_takes_no_secret_away() -> None:
    store = await store_with()
    secret = await loaded(store)
    await store.txn([], [Delete(CLUSTER_KEY)])
    assert secret.of(1) == FIRST


async def test_after_the_end_no_change_is_followed() -> None:
    store = await store_with()
    secret, other = await loaded(store), await loaded(store)
    secret.close()
    await other.rotate(CountingEntropy(), 1)
    assert secret.generation == 1


async def test_no_repr_shows_the_secret() -> None:
    store = await store_with()
    secret = await loaded(store)
    for shown in (repr(secret), str(secret), repr(ClusterRecord("c", FIRST, previous=FIRST))):
        assert repr(FIRST)[2:-1] not in shown
        assert "secret=" not in shown
