"""The contract of a metadata store, held by every implementation alike."""

import asyncio

import pytest

from penstock.errors import PenstockError, Reason
from penstock.limits import METADATA_KEY_BYTES_MAX, METADATA_VALUE_BYTES_MAX
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Compare, Delete, Entry, Event, MetadataStore, Operation, Put, Range, TxnResult


async def revision_of(store: MetadataStore) -> int:
    return (await store.range("")).revision


async def test_an_absent_key_is_none_and_an_empty_range(store: MetadataStore) -> None:
    assert await store.get("nobody") is None
    assert (await store.range("nobody")).entries == ()


async def test_a_put_makes_an_entry_whose_revisions_are_the_transactions(store: MetadataStore) -> None:
    result = await store.txn([], [Put("a", b"1")])
    assert result.succeeded
    assert await store.get("a") == Entry("a", b"1", result.revision, result.revision)


async def test_a_second_put_keeps_the_create_revision(store: MetadataStore) -> None:
    first = await store.txn([], [Put("a", b"1")])
    second = await store.txn([], [Put("a", b"2")])
    assert await store.get("a") == Entry("a", b"2", first.revision, second.revision)


async def test_deleted_and_put_again_it_is_a_new_entry(store: MetadataStore) -> None:
    first = await store.txn([], [Put("a", b"1")])
    await store.txn([], [Delete("a")])
    assert await store.get("a") is None
    third = await store.txn([], [Put("a", b"3")])
    assert third.revision == first.revision + 2
    assert await store.get("a") == Entry("a", b"3", third.revision, third.revision)


async def test_the_revision_grows_by_one_a_transaction_whatever_the_number_of_keys(store: MetadataStore) -> None:
    before = await revision_of(store)
    result = await store.txn([], [Put(f"k{n}", b"") for n in range(20)])
    assert result.revision == before + 1 == await revision_of(store)
    assert {entry.mod_revision for entry in (await store.range("k")).entries} == {result.revision}


async def test_what_changes_nothing_leaves_the_revision_alone(store: MetadataStore) -> None:
    await store.txn([], [Put("a", b"1")])
    before = await revision_of(store)
    assert await store.txn([], []) == TxnResult(True, before)
    assert await store.txn([], [Delete("absent")]) == TxnResult(True, before)
    assert await store.txn([Compare("a", create_revision=0)], [Put("b", b"")]) == TxnResult(False, before)
    assert await revision_of(store) == before


async def test_create_revision_zero_lets_exactly_one_of_many_creators_win(store: MetadataStore) -> None:
    results = await asyncio.gather(
        *(store.txn([Compare("a", create_revision=0)], [Put("a", str(n).encode())]) for n in range(20))
    )
    winners = [n for n, result in enumerate(results) if result.succeeded]
    assert len(winners) == 1
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == str(winners[0]).encode()


async def test_a_compare_of_the_mod_revision_lets_no_update_get_lost(store: MetadataStore) -> None:
    await store.txn([], [Put("n", b"0")])

    async def add_one() -> None:
        while True:
            entry = await store.get("n")
            assert entry is not None
            value = str(int(entry.value) + 1).encode()
            if (await store.txn([Compare("n", mod_revision=entry.mod_revision)], [Put("n", value)])).succeeded:
                return

    await asyncio.gather(*(add_one() for _ in range(10)))
    entry = await store.get("n")
    assert entry is not None
    assert entry.value == b"10"


async def test_a_compare_of_the_create_revision_tells_an_entry_from_its_successor(store: MetadataStore) -> None:
    first = await store.txn([], [Put("a", b"1")])
    await store.txn([], [Put("a", b"2")])
    same = Compare("a", create_revision=first.revision)
    assert (await store.txn([same], [])).succeeded
    await store.txn([], [Delete("a")])
    await store.txn([], [Put("a", b"3")])
    assert not (await store.txn([same], [])).succeeded


async def test_a_compare_may_ask_for_both_revisions(store: MetadataStore) -> None:
    first = await store.txn([], [Put("a", b"1")])
    second = await store.txn([], [Put("a", b"2")])
    assert (await store.txn([Compare("a", first.revision, second.revision)], [])).succeeded
    assert not (await store.txn([Compare("a", first.revision, first.revision)], [])).succeeded
    assert not (await store.txn([Compare("a", second.revision, second.revision)], [])).succeeded


async def test_one_failed_compare_stops_the_whole_transaction(store: MetadataStore) -> None:
    await store.txn([], [Put("a", b"1")])
    result = await store.txn(
        [Compare("b", create_revision=0), Compare("a", create_revision=0)], [Put("b", b""), Delete("a")]
    )
    assert not result.succeeded
    assert [entry.key for entry in (await store.range("")).entries] == ["a"]


async def test_a_range_is_ordered_by_bytes_and_ends_with_its_prefix(store: MetadataStore) -> None:
    keys = ["p", "p.", "p/10", "p/2", "p/é", "p/\U0001f600", "p/\uffff", "p0", "q", "P/1"]
    await store.txn([], [Put(key, b"") for key in keys])
    assert [entry.key for entry in (await store.range("p/")).entries] == [
        "p/10",
        "p/2",
        "p/é",
        "p/\uffff",
        "p/\U0001f600",
    ]
    assert [entry.key for entry in (await store.range("")).entries] == sorted(keys, key=str.encode)


async def test_ten_thousand_keys_come_back_with_one_range(store: MetadataStore) -> None:
    puts = [Put(f"p/{n}", b"value") for n in range(10_000)]
    at_once = min(store.operations_max, len(puts))
    for first in range(0, len(puts), at_once):
        await store.txn([], puts[first : first + at_once])
    entries = (await store.range("p/")).entries
    assert len(entries) == 10_000
    assert {int(entry.key[2:]) for entry in entries} == set(range(10_000))


async def test_values_come_back_byte_for_byte(store: MetadataStore) -> None:
    value = bytes(range(256)) + b"\x00" * 10
    await store.txn([], [Put("a", value), Put("empty", b"")])
    entry, empty = await store.get("a"), await store.get("empty")
    assert entry is not None
    assert entry.value == value
    assert empty is not None
    assert empty.value == b""


async def test_a_subscriber_hears_of_a_transaction_before_it_returns(store: MetadataStore) -> None:
    heard: list[list[Event]] = []
    store.subscribe("t/", heard.append)
    put = await store.txn([], [Put("t/a", b"1"), Put("other", b""), Put("t/b", b"2")])
    assert heard == [
        [
            Event("t/a", put.revision, Entry("t/a", b"1", put.revision, put.revision)),
            Event("t/b", put.revision, Entry("t/b", b"2", put.revision, put.revision)),
        ]
    ]
    delete = await store.txn([], [Delete("t/a"), Delete("t/absent")])
    assert heard[1:] == [[Event("t/a", delete.revision, None)]]


async def test_a_subscriber_hears_nothing_of_failed_transactions_and_of_other_prefixes(store: MetadataStore) -> None:
    heard: list[list[Event]] = []
    store.subscribe("t/", heard.append)
    await store.txn([Compare("t/a", mod_revision=7)], [Put("t/a", b"")])
    await store.txn([], [Put("u/a", b"")])
    assert heard == []


async def test_subscribers_hear_transactions_in_the_order_of_revisions(store: MetadataStore) -> None:
    revisions: list[int] = []
    store.subscribe("", lambda events: revisions.extend(event.revision for event in events))
    before = await revision_of(store)
    await asyncio.gather(*(store.txn([], [Put(f"k{n % 7}", str(n).encode())]) for n in range(300)))
    assert revisions == list(range(before + 1, before + 301))


async def test_an_unsubscribed_one_hears_nothing_more(store: MetadataStore) -> None:
    heard: list[list[Event]] = []
    unsubscribe = store.subscribe("", heard.append)
    await store.txn([], [Put("a", b"")])
    unsubscribe()
    unsubscribe()
    await store.txn([], [Put("b", b"")])
    assert len(heard) == 1


async def test_a_cancelled_caller_does_not_cost_the_subscribers_the_event(store: MetadataStore) -> None:
    heard: list[tuple[int, str]] = []
    store.subscribe("", lambda events: heard.extend((event.revision, event.key) for event in events))
    task = asyncio.ensure_future(store.txn([], [Put("a", b"")]))
    await asyncio.wait([task], timeout=0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    last = await store.txn([], [Put("b", b"")])
    found = [(entry.mod_revision, entry.key) for entry in (await store.range("")).entries]
    # The first may have happened before the second, between it and the reading, or not at all.
    assert (last.revision, "b") in found
    assert [each for each in heard if each[0] <= last.revision] == sorted(
        each for each in found if each[0] <= last.revision
    )


@pytest.mark.parametrize("first", [Put("a", b"1"), Delete("a")], ids=["put", "delete"])
@pytest.mark.parametrize("second", [Put("a", b"2"), Delete("a")], ids=["put", "delete"])
async def test_a_key_named_twice_is_refused_and_nothing_happens(
    store: MetadataStore, first: Operation, second: Operation
) -> None:
    before = await store.txn([], [Put("a", b"0")])
    with pytest.raises(ValueError, match="'a' is named twice in one transaction"):
        await store.txn([], [first, Put("b", b""), second])
    with pytest.raises(ValueError, match="'a' is named twice in one transaction"):
        await store.txn([Compare("a", create_revision=0)], [first, second])
    assert (await store.range("")) == Range(before.revision, (Entry("a", b"0", before.revision, before.revision),))


@pytest.mark.parametrize(
    ("key", "value"),
    [("", b""), ("k" * (METADATA_KEY_BYTES_MAX + 1), b""), ("k", b"v" * (METADATA_VALUE_BYTES_MAX + 1))],
    ids=["empty key", "long key", "large value"],
)
async def test_keys_and_values_beyond_the_limits_are_refused(store: MetadataStore, key: str, value: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes"):
        await store.txn([], [Put(key, value)])


async def test_a_compare_that_compares_nothing_is_refused(store: MetadataStore) -> None:
    with pytest.raises(ValueError, match="has no condition"):
        await store.txn([Compare("a")], [])


async def test_a_closed_store_refuses_calls_and_closes_again(store: MetadataStore) -> None:
    await store.close()
    await store.close()
    for call in (store.get("a"), store.range(""), store.txn([], [Put("a", b"")])):
        with pytest.raises(PenstockError) as caught:
            await call
        assert caught.value.reason is Reason.STORAGE_ERROR


async def test_a_transaction_beyond_the_most_operations_is_refused_and_nothing_happens() -> None:
    small = MemoryStore(operations_max=2)
    with pytest.raises(ValueError, match="at most 2"):
        await small.txn([], [Put(f"k{n}", b"") for n in range(3)])
    with pytest.raises(ValueError, match="at most 2"):
        await small.txn([Compare(f"k{n}", create_revision=0) for n in range(3)], [Put("k0", b"")])
    assert (await small.range("")).entries == ()
