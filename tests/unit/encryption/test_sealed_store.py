import asyncio

import pytest

from penstock.encryption.keys import MasterKeys
from penstock.encryption.store import KEYRING_KEY, MAGIC, SealedStore
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Compare, Delete, Event, Put
from penstock.metadata.sqlite import SqliteStore
from tests.support.encrypted import KEYS

ANNA = "security/users/anna"
NEW = MasterKeys([b"n" * 32, bytes(range(32))])


@pytest.fixture(params=["memory", "sqlite"])
def run(request, tmp_path):
    """Run a coroutine with a store below."""

    def run(test) -> None:
        async def go() -> None:
            store = MemoryStore() if request.param == "memory" else await SqliteStore.open(str(tmp_path / "m.sqlite"))
            try:
                await test(store)
            finally:
                await store.close()

        asyncio.run(go())

    return run


def ignore(_: str) -> None:
    return None


def test_secrets_are_sealed_and_everything_else_is_as_it_was(run) -> None:
    async def test(store) -> None:
        sealed = await SealedStore.open(store, KEYS, ignore)
        await sealed.txn([], [Put(ANNA, b"salt and key"), Put("topics/t", b"clear"), Put("security/keys/1", b"hash")])
        assert (await sealed.get(ANNA)).value == b"salt and key"
        assert [entry.value for entry in (await sealed.range("")).entries if entry.key != KEYRING_KEY] == [
            b"hash",
            b"salt and key",
            b"clear",
        ]
        assert (await store.get(ANNA)).value.startswith(MAGIC)
        assert b"salt" not in (await store.get(ANNA)).value
        assert (await store.get("topics/t")).value == b"clear"

    run(test)


def test_revisions_compares_and_deletions_work_as_without_it(run) -> None:
    async def test(store) -> None:
        sealed = await SealedStore.open(store, KEYS, ignore)
        assert (await sealed.txn([Compare(ANNA, create_revision=0)], [Put(ANNA, b"1")])).succeeded
        assert not (await sealed.txn([Compare(ANNA, create_revision=0)], [Put(ANNA, b"2")])).succeeded
        entry = await sealed.get(ANNA)
        assert entry == await sealed.get(ANNA)
        assert (await sealed.txn([Compare(ANNA, mod_revision=entry.mod_revision)], [Delete(ANNA)])).succeeded
        assert await sealed.get(ANNA) is None
        assert sealed.operations_max == store.operations_max

    run(test)


def test_subscribers_get_the_values(run) -> None:
    async def test(store) -> None:
        sealed = await SealedStore.open(store, KEYS, ignore)
        events: list[Event] = []
        stop = sealed.subscribe("security/users/", events.extend)
        await sealed.txn([], [Put(ANNA, b"1")])
        await sealed.txn([], [Delete(ANNA)])
        stop()
        await sealed.txn([], [Put(ANNA, b"2")])
        assert [event.entry and event.entry.value for event in events] == [b"1", None]

    run(test)


def test_old_values_are_sealed_when_encryption_is_turned_on(run) -> None:
    async def test(store) -> None:
        await store.txn([], [Put(ANNA, b"in the clear")])
        sealed = await SealedStore.open(store, KEYS, ignore)
        assert (await sealed.get(ANNA)).value == b"in the clear"
        assert (await store.get(ANNA)).value.startswith(MAGIC)

    run(test)


@pytest.mark.parametrize("keys", [None, MasterKeys([b"w" * 32])], ids=["missing", "wrong"])
def test_a_missing_or_wrong_key_is_refused(run, keys) -> None:
    async def test(store) -> None:
        await SealedStore.open(store, KEYS, ignore)
        with pytest.raises(PenstockError) as refused:
            await SealedStore.open(store, keys, ignore)
        assert refused.value.reason is Reason.INVALID_CONFIG

    run(test)


def test_without_a_key_and_without_secrets_it_is_the_store_itself(run) -> None:
    async def test(store) -> None:
        assert await SealedStore.open(store, None, ignore) is store
        assert (await store.range("")).entries == ()

    run(test)


def test_a_value_given_to_another_user_or_changed_is_refused(run) -> None:
    async def test(store) -> None:
        reports: list[str] = []
        sealed = await SealedStore.open(store, KEYS, reports.append)
        events: list[Event] = []
        sealed.subscribe("security/users/", events.extend)
        await sealed.txn([], [Put(ANNA, b"password of anna")])
        value = (await store.get(ANNA)).value
        await store.txn([], [Put("security/users/admin", value)])
        await store.txn([], [Put(ANNA, value[:-1] + bytes([value[-1] ^ 1]))])
        for key in ("security/users/admin", ANNA):
            with pytest.raises(PenstockError, match="was changed"):
                await sealed.get(key)
        # A subscriber learns that the value is gone, and never one that was not set.
        assert [event.entry is None for event in events] == [False, True, True]
        assert len(reports) == 2

    run(test)


def test_nodes_that_share_the_store_rotate_one_after_the_other(run) -> None:
    async def test(store) -> None:
        first = await SealedStore.open(store, NEW_FIRST_LATER, ignore)
        await first.txn([], [Put(ANNA, b"1")])
        # The second node starts with the new key first; the first one has both, and follows.
        second = await SealedStore.open(store, NEW, ignore)
        await second.txn([], [Put(ANNA, b"2"), Put("security/users/bert", b"3")])
        assert (await first.get(ANNA)).value == b"2"
        await first.txn([], [Put(ANNA, b"4")])
        assert (await second.get(ANNA)).value == b"4"
        assert len((await first.range("security/users/")).entries) == 2
        with pytest.raises(PenstockError):
            await SealedStore.open(store, KEYS, ignore)
        alone = await SealedStore.open(store, MasterKeys([b"n" * 32]), ignore)
        assert (await alone.get(ANNA)).value == b"4"

    run(test)


NEW_FIRST_LATER = MasterKeys([bytes(range(32)), b"n" * 32])


def test_two_nodes_that_begin_at_the_same_time_use_one_keyring() -> None:
    async def test() -> None:
        store = MemoryStore()
        first, second = await asyncio.gather(
            SealedStore.open(store, KEYS, ignore), SealedStore.open(store, KEYS, ignore)
        )
        await first.txn([], [Put(ANNA, b"1")])
        assert (await second.get(ANNA)).value == b"1"

    asyncio.run(test())
