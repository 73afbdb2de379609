"""Replicated state of any kind: a shard is loaded in pieces, served when all is replayed, and appends nothing once it is over."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock.core.coordinators import runtime
from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.coordinators.topic import InternalTopic, StateRecord, StoredDone
from penstock.errors import PenstockError, Reason
from penstock.types import Buffer, TopicName


class MemoryTopic(InternalTopic):
    def __init__(self) -> None:
        self.name = TopicName("__state")
        self.records: list[StateRecord] = []
        self.batches: list[tuple[int, bool]] = []
        self.refusal: PenstockError | None = None
        self.fails_after: int | None = None
        self.turn: list[Callable[[], None]] = []
        self.waiting: list[StoredDone] = []
        self.reports: list[str] = []
        self.report = self.reports.append

    def append(self, partition: int, records: Sequence[StateRecord], *, hurried: bool = True) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.records += records
        self.batches.append((len(records), hurried))
        return len(self.records)

    def when_committed(self, partition: int, next_offset: int, done: StoredDone) -> None:
        self.waiting.append(done)

    def replay(self, partition: int, *, written: bool = False) -> Iterator[tuple[Buffer, Buffer | None, int]]:
        for number, (key, value) in enumerate(self.records):
            if number == self.fails_after:
                raise PenstockError(Reason.STORAGE_ERROR)
            yield key, value, number

    def gather(self, action: Callable[[], None]) -> None:
        self.turn.append(action)

    def end_turn(self) -> None:
        actions, self.turn = self.turn, []
        for action in actions:
            action()


class Counter(Shard):
    def __init__(self, index: int) -> None:
        self.index = index
        self.seen: list[bytes] = []
        self.is_complete = False
        self.ended: list[Reason] = []

    def replay(self, key: Buffer, value: Buffer | None, written_ms: int) -> None:
        self.seen.append(bytes(key))

    def loaded(self) -> Iterator[int]:
        self.is_complete = True
        yield 1

    def unloaded(self, reason: Reason) -> None:
        self.ended.append(reason)


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic()


@pytest.fixture
def family(topic) -> Family[Counter]:
    return Family(topic, Counter, "the counter")


def refused(call: Callable[[], object]) -> Reason:
    with pytest.raises(PenstockError) as raised:
        call()
    return raised.value.reason


def test_a_shard_is_served_once_all_of_it_is_replayed(topic, family, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "PIECE_BYTES", 1)
    topic.records = [(b"a", b"1"), (b"b", None)]
    assert refused(lambda: family.served(0)) is Reason.NOT_COORDINATOR
    shard = family.expect(0)
    assert family.load_some(0), "nothing is loaded before it is begun"
    assert refused(lambda: family.served(0)) is Reason.COORDINATOR_LOAD_IN_PROGRESS
    family.begin_load(0)
    pieces = 0
    while not family.load_some(0):
        assert refused(lambda: family.served(0)) is Reason.COORDINATOR_LOAD_IN_PROGRESS
        pieces += 1
    assert pieces == 3
    assert family.served(0) is shard
    assert (shard.seen, shard.is_complete) == ([b"a", b"b"], True)


def test_what_could_not_be_read_to_its_end_is_never_served(topic, family, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "PIECE_BYTES", 1)
    topic.records, topic.fails_after = [(b"a", b"1"), (b"b", b"2")], 1
    family.begin_load(0)
    assert not family.load_some(0)
    assert refused(lambda: family.load_some(0)) is Reason.STORAGE_ERROR
    assert family.loading is None
    assert family.load_some(0)
    assert refused(lambda: family.served(0)) is Reason.COORDINATOR_LOAD_IN_PROGRESS


def test_a_load_that_is_overtaken_by_the_next_leadership_changes_nothing(topic, family, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "PIECE_BYTES", 1)
    topic.records = [(b"a", b"1"), (b"b", b"2")]
    family.begin_load(0)
    first = family.shards[0]
    family.load_some(0)
    family.unload(0)
    assert first.ended == [Reason.NOT_COORDINATOR]
    assert family.load_some(0)
    family.load(0)
    assert family.served(0) is not first
    assert (first.seen, family.served(0).seen) == ([b"a"], [b"a", b"b"])


def test_a_command_is_answered_once_its_records_are_committed_and_refused_where_there_is_no_shard(
    topic, family
) -> None:
    told: list[Reason | None] = []
    assert refused(lambda: family.append(0, [(b"k", b"v")], told.append)) is Reason.NOT_COORDINATOR
    family.load(0)
    family.append(0, [(b"k", b"v"), (b"l", b"v")], told.append)
    assert (topic.batches, told) == ([(2, True)], [])
    topic.waiting.pop()(None)
    assert told == [None]


def test_what_one_turn_puts_is_one_batch_which_is_synced_at_once_only_for_those_who_wait(topic, family) -> None:
    told: list[Reason | None] = []
    family.load(0)
    family.put(0, b"a", b"1")
    family.put(0, b"b", b"2")
    assert topic.batches == []
    topic.end_turn()
    family.put(0, b"c", b"3")
    family.put(0, b"d", None, told.append)
    topic.end_turn()
    assert topic.batches == [(2, False), (2, True)]
    assert told == []
    topic.waiting.pop()(None)
    assert told == [None]


def test_a_refused_batch_is_reported_and_told_to_those_who_wait(topic, family) -> None:
    told: list[Reason | None] = []
    family.load(0)
    family.put(0, b"a", b"1", told.append)
    topic.refusal = PenstockError(Reason.NOT_ENOUGH_REPLICAS, "too few")
    topic.end_turn()
    assert told == [Reason.NOT_ENOUGH_REPLICAS]
    assert topic.reports == ["1 records of __state/0 were not stored: too few"]


def test_a_shard_that_is_over_writes_nothing_that_the_turn_had_gathered(topic, family) -> None:
    family.load(0)
    family.put(0, b"a", b"1")
    family.unload(0)
    family.put(0, b"b", b"2")
    family.load(0)
    topic.end_turn()
    assert topic.batches == []
