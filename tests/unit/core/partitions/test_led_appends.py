"""What a leader appends for others: once, whoever asks how often, and never called done before it is committed."""

from pathlib import Path
from uuid import UUID

import pytest

from penstock.core.partitions import led_appends
from penstock.core.partitions.led_appends import LedAppends
from penstock.core.partitions.peers import AppendedRecords
from penstock.core.topics.config import TopicConfig
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.log.environment import LogEnvironment
from penstock.log.files import FilePool
from penstock.log.log import Log
from penstock.log.recovery import open_log
from penstock.ports import Flushable
from penstock.records.builder import build_batch
from penstock.records.records import Record, read_records
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import RealDisk
from penstock.types import Acks, TopicName
from tests.support.lone_partition import lone_partition
from tests.support.worlds import ManualClock

HEADER = "mark"


class ManualFlusher:
    """Writes and syncs when the test says so."""

    def __init__(self) -> None:
        self.targets: dict[Flushable, None] = {}

    def unhurried(self, target: Flushable) -> None:
        """Whoever waits."""

    def dirty(self, target: Flushable) -> None:
        self.targets[target] = None

    def commit(self) -> None:
        for target in list(self.targets):
            target.write_pending()
            task = target.begin_sync()
            if task is not None:
                task.run()
                target.end_sync(task, None)


def offsets_of(found: AppendedRecords | PenstockError) -> list[int] | PenstockError:
    return found if isinstance(found, PenstockError) else found.offsets


class Leader:
    """One partition and what it was told."""

    def __init__(self, path: Path) -> None:
        self.flusher = ManualFlusher()
        self.clock = ManualClock()
        self.topic = Topic(
            name=TopicName("t"),
            topic_id=UUID(int=1),
            partition_count=1,
            replication_factor=1,
            config=TopicConfig.resolve({}, {}),
            overrides={},
            created_ms=0,
            updated_ms=0,
            internal=False,
        )
        self._path = path
        self.appends = LedAppends(self.clock)
        self.open()

    def open(self) -> None:
        world = LogEnvironment(RealDisk(), FilePool(RealDisk(), 10), SystemClock(), lambda _: None)
        log = open_log(world, str(self._path), self.topic.config.log)
        self.partition = lone_partition(self.topic, log, self.flusher)

    def once(self, *marks: bytes, search_from: int | list[int] = 0) -> list[list[int] | PenstockError]:
        told: list[list[int] | PenstockError] = []
        noted = [search_from] if isinstance(search_from, int) else search_from
        self.appends.append_once(
            self.partition, batch(*marks), HEADER, noted, lambda found: told.append(offsets_of(found))
        )
        return told

    def values(self) -> list[bytes | None]:
        self.flusher.commit()
        log = self.partition.log
        if not log.next_offset:
            return []
        found: list[bytes | None] = []
        offset = log.start_offset
        while offset < log.next_offset:
            data, offset = log.read(offset, 1 << 20, log.next_offset)
            view = memoryview(data)
            while view:
                size = int.from_bytes(view[8:12], "big") + 12
                found += [record.value for record in read_records(view[:size], 1 << 20)]
                view = view[size:]
        return found


def batch(*marks: bytes) -> bytearray:
    return build_batch([Record(0, 1_700_000_000_000, None, mark, ((HEADER, mark),)) for mark in marks])


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path / "log")


def test_records_that_are_not_there_are_appended_and_told_once_they_are_committed(leader: Leader) -> None:
    told = leader.once(b"a", b"b")
    assert told == []
    leader.flusher.commit()
    assert told == [[0, 1]]
    assert leader.values() == [b"a", b"b"]


def test_what_was_asked_for_twice_at_once_is_appended_once(leader: Leader) -> None:
    first, second = leader.once(b"a"), leader.once(b"a")
    leader.flusher.commit()
    assert (first, second) == ([[0]], [[0]])
    assert leader.values() == [b"a"]


def test_only_the_records_that_are_lacking_are_appended(leader: Leader) -> None:
    leader.once(b"a", b"c")
    told = leader.once(b"a", b"b", b"c", b"d")
    leader.flusher.commit()
    assert told == [[0, 2, 1, 3]]
    assert leader.values() == [b"a", b"c", b"b", b"d"]


def test_a_leader_that_begins_anew_finds_what_the_last_one_left(leader: Leader) -> None:
    leader.once(b"a", b"b")
    leader.flusher.commit()
    leader.appends.resign(leader.partition)
    leader.partition.log.close()
    leader.open()
    told = leader.once(b"b", b"c")
    leader.flusher.commit()
    assert told == [[1, 2]]


def test_a_mark_before_the_noted_offset_is_of_an_earlier_time(leader: Leader) -> None:
    leader.once(b"a")
    told = leader.once(b"a", search_from=1)
    leader.flusher.commit()
    assert told == [[1]]


def test_each_record_has_its_own_noted_offset(leader: Leader) -> None:
    leader.once(b"a", b"b")
    told = leader.once(b"a", b"b", search_from=[0, 2])
    leader.flusher.commit()
    assert told == [[0, 2]]


def test_an_offset_behind_the_end_is_of_another_topic_and_all_is_searched(leader: Leader) -> None:
    leader.once(b"a")
    told = leader.once(b"a", search_from=1_000)
    leader.flusher.commit()
    assert told == [[0]]


def test_what_another_way_appended_in_this_turn_is_found_too(leader: Leader) -> None:
    leader.partition.append(batch(b"a"), leader.clock.now_ms())
    told = leader.once(b"a")
    leader.flusher.commit()
    assert told == [[0]]
    assert leader.values() == [b"a"]


def test_a_long_log_is_looked_through_in_pieces(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_appends, "_PIECE_BYTES", 200)
    for n in range(20):
        leader.partition.append(batch(b"%d" % n), leader.clock.now_ms())
    told, behind = leader.once(b"19", b"new"), leader.once(b"new")
    ticks = 0
    while leader.appends.next_deadline_ms() is not None:
        assert not told
        leader.appends.tick(leader.clock.monotonic_ms())
        ticks += 1
    leader.flusher.commit()
    assert ticks >= 3
    assert (told, behind) == ([[19, 20]], [[20]])


def test_a_search_among_more_marks_than_are_remembered_ends(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_appends, "MARKS_MAX", 3)
    monkeypatch.setattr(led_appends, "_PIECE_BYTES", 200)
    for n in range(20):
        leader.partition.append(batch(b"%d" % n), leader.clock.now_ms())
    told, other = leader.once(b"1", b"new"), leader.once(b"2")
    for _ in range(20):
        leader.appends.tick(leader.clock.monotonic_ms())
    leader.flusher.commit()
    assert (told, other) == ([[1, 20]], [[2]])
    assert leader.appends.next_deadline_ms() is None


def test_searches_of_several_logs_share_the_work_of_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_appends, "_PIECE_BYTES", 200)
    leaders = [Leader(tmp_path / str(n)) for n in range(5)]
    for each in leaders:
        for n in range(20):
            each.partition.append(batch(b"%d" % n), each.clock.now_ms())
        each.partition.log.write_pending()
    appends, reads = leaders[0].appends, set[Log]()
    told: list[object] = []
    real = Log.read
    monkeypatch.setattr(Log, "read", lambda log, *given: reads.add(log) or real(log, *given))
    for each in leaders:
        appends.append_once(each.partition, batch(b"19"), HEADER, [0], told.append)
    assert len(reads) == 1
    for _ in range(200):
        appends.tick(leaders[0].clock.monotonic_ms())
    for each in leaders:
        each.flusher.commit()
    assert len(told) == 5


def test_more_marks_than_are_kept_are_read_again(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(led_appends, "MARKS_MAX", 3)
    for n in range(10):
        leader.once(b"%d" % n)
    told = leader.once(*(b"%d" % n for n in range(10)))
    leader.flusher.commit()
    assert told == [list(range(10))]


def test_whoever_waits_is_told_that_somebody_else_leads_and_what_was_appended_is_unknown(leader: Leader) -> None:
    told = leader.once(b"a")
    produced: list[int | PenstockError] = []
    leader.appends.append(leader.partition, batch(b"x"), Acks.ALL, produced.append)
    leader.partition.close(Reason.NOT_LEADER_OR_FOLLOWER)
    leader.appends.resign(leader.partition)
    reasons = [each.reason for each in (*told, *produced) if isinstance(each, PenstockError)]
    assert reasons == [Reason.LINK_LOST, Reason.LINK_LOST]


def test_who_still_waits_for_the_search_is_told_that_nothing_was_done(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(led_appends, "_PIECE_BYTES", 100)
    for n in range(5):
        leader.partition.append(batch(b"%d" % n), leader.clock.now_ms())
    told = leader.once(b"a")
    leader.appends.resign(leader.partition)
    assert [each.reason for each in told if isinstance(each, PenstockError)] == [Reason.NOT_LEADER_OR_FOLLOWER]


def test_a_record_without_a_mark_is_refused(leader: Leader) -> None:
    plain = build_batch([Record(0, 1_700_000_000_000, None, b"x")])
    with pytest.raises(PenstockError, match="no header mark") as refused:
        leader.appends.append_once(leader.partition, plain, HEADER, [0], lambda _: None)
    assert refused.value.reason is Reason.INVALID_RECORD


@pytest.mark.parametrize(("acks", "told_at_once"), [(Acks.NONE, [0]), (Acks.LEADER, []), (Acks.ALL, [])])
def test_a_batch_is_told_when_it_counts(leader: Leader, acks: Acks, told_at_once: list[int]) -> None:
    told: list[int | PenstockError] = []
    leader.appends.append(leader.partition, batch(b"a", b"b"), acks, told.append)
    assert told == told_at_once
    for target in leader.flusher.targets:
        target.write_pending()
    assert told == ([] if acks is Acks.ALL else [0])
    leader.flusher.commit()
    assert told == [0]
