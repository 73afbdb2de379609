"""Dead letters: counted before they move, moved once, open until they are, and left alone otherwise."""

import pytest

from penstock.core.dead_letters import scan
from penstock.core.dead_letters.dead_letters import JOBS_MAX
from penstock.core.queues.moves import dead_letter_topic
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.limits import TOPIC_NAME_CHARS_MAX
from penstock.operations.dead_letters import DeadLetterFilter, PlanRedrive, Redrive
from penstock.operations.operation import Action
from penstock.records.builder import build_batch
from penstock.records.records import Record
from tests.crash.simulated_node import read_all
from tests.support.access import all_but
from tests.unit.core.dead_letters.world import CALLER, DEAD, TOPIC, DeadLetterWorld, Job
from tests.unit.core.idempotency.world import finish


@pytest.fixture
def world() -> DeadLetterWorld:
    return DeadLetterWorld()


def ignore(_) -> None:
    pass


def test_topics_with_dead_letters_are_listed_with_how_many_are_open(world) -> None:
    world.die()
    world.die(partition=1)
    finish(world.broker.topics.create(NewTopic("dlq.another", 1)))
    listed = [(each.topic, each.dead_letter_topic, each.open) for each in world.letters.topics()]
    assert listed == [("another", "dlq.another", 0), (TOPIC, DEAD, 2)]


def test_a_dead_letter_says_where_it_came_from_and_what_was_wrong(world) -> None:
    world.die("no stock", partition=1, group="shipping", at_ms=1234)
    (letter,) = world.shown()
    assert letter[:10] == (DEAD, 1, 0, TOPIC, 1, 101, "shipping", 3, "no stock", 1234)
    assert (letter.key, letter.value, dict(letter.headers)["colour"]) == (b"k1", b"v1", b"red")


def test_a_record_that_somebody_else_wrote_there_belongs_to_where_it_lies(world) -> None:
    strange = (("attempts", b"many"), ("original_offset", b"\xff"), ("last_error", None))
    world.append(DEAD, 1, Record(0, 77, None, b"v", strange))
    (letter,) = world.shown()
    assert letter[3:10] == (TOPIC, 1, 0, None, 0, "unknown", 77)
    assert world.redriven().finished == 1
    assert [record.value for record in world.back(1)] == [b"v"]


def test_a_plan_counts_by_reason_the_most_frequent_first(world) -> None:
    for reason, at_ms in (("b", 5), ("a", 7), ("b", 3), ("b", 9)):
        world.die(reason, at_ms=at_ms)
    plan = world.plan()
    assert [(each.reason, each.count, each.oldest_ms, each.newest_ms) for each in plan.reasons] == [
        ("b", 3, 3, 9),
        ("a", 1, 7, 7),
    ]
    assert (plan.topic, plan.dead_letter_topic, plan.count, plan.oldest_ms, plan.newest_ms) == (TOPIC, DEAD, 4, 3, 9)
    assert world.back() == []
    assert world.plan(most=2).count == 2


def test_an_empty_plan_has_no_moments(world) -> None:
    plan = world.plan()
    assert (plan.count, plan.reasons, plan.oldest_ms, plan.newest_ms) == (0, (), None, None)


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        (DeadLetterFilter(), [1, 2, 3, 4]),
        (DeadLetterFilter(reason="no stock"), [1]),
        (DeadLetterFilter(reason="no*"), [1, 2]),
        (DeadLetterFilter(reason="*"), [1, 2, 3, 4]),
        (DeadLetterFilter(reason="no"), []),
        (DeadLetterFilter(group="other"), [3]),
        (DeadLetterFilter(partition=1), [4]),
        (DeadLetterFilter(offset=0), [1, 4]),
        (DeadLetterFilter(offset=0, partition=1), [4]),
        (DeadLetterFilter(from_ms=20), [2, 3, 4]),
        (DeadLetterFilter(until_ms=20), [1]),
        (DeadLetterFilter(from_ms=20, until_ms=30), [2]),
        (DeadLetterFilter(chosen={0: frozenset({0, 2}), 1: frozenset({0})}), [1, 3, 4]),
        (DeadLetterFilter(chosen={0: frozenset({1, 99}), 7: frozenset({0})}), [2]),
        (DeadLetterFilter(chosen={0: frozenset({0, 1}), 1: frozenset()}, reason="no stock"), [1]),
        (DeadLetterFilter(chosen={}), []),
    ],
)
def test_a_filter_says_which_are_meant(world, wanted, meant) -> None:
    world.die("no stock", at_ms=10)
    world.die("nobody there", at_ms=20)
    world.die("timeout", group="other", at_ms=30)
    world.die("timeout", partition=1, at_ms=40)
    assert [int(letter.value[1:]) for letter in world.shown(wanted)] == meant
    assert world.plan(wanted).count == len(meant)
    assert world.redriven(wanted).finished == len(meant)
    assert world.open_count() == 4 - len(meant)


def test_chosen_dead_letters_that_were_sent_back_are_passed_over_the_next_time(world) -> None:
    for _ in range(4):
        world.die()
    chosen = DeadLetterFilter(chosen={0: frozenset({1, 3})})
    assert world.redriven(chosen).finished == 2
    world.restart()
    again = world.redriven(chosen)
    assert (again.total, again.finished, again.failed) == (0, 0, 0)
    assert [record.value for record in world.back()] == [b"v2", b"v4"]


@pytest.mark.parametrize("forbidden", [TOPIC, DEAD])
def test_who_may_not_write_to_a_topic_or_its_dead_letters_redrives_nothing(world, forbidden) -> None:
    world.die()
    world.broker.access = all_but((Action.WRITE, f"topic {forbidden}"))
    asked = Redrive(0, TOPIC, DeadLetterFilter(chosen={0: frozenset({0})}))
    with pytest.raises(PenstockError) as refused:
        world.broker.door.open_here(asked, CALLER, ignore, ignore)
    assert refused.value.reason is Reason.TOPIC_AUTHORIZATION_FAILED
    assert (world.open_count(), world.back()) == (1, [])


def test_a_letter_that_names_a_topic_which_the_caller_may_not_write_to_stays_open(world) -> None:
    finish(world.broker.topics.create(NewTopic("vault", 1)))
    world.append(DEAD, 0, Record(0, 1, None, b"forged", (("original_topic", b"vault"),)))
    world.die()
    world.broker.access = all_but((Action.WRITE, "topic vault"))
    result = world.redriven()
    assert (result.finished, result.failed) == (1, 1)
    assert read_all(world.broker.partition("vault", 0)) == []
    assert world.open_count() == 1


def test_a_scan_for_chosen_ones_reads_no_further_than_they_lie(world, monkeypatch) -> None:
    for _ in range(6):
        world.die()
    read: list[int] = []

    def spy(partition, offset, *bounds):
        read.append(offset)
        return real(partition, offset, *bounds)

    real = scan.read_from  # type: ignore[attr-defined]
    monkeypatch.setattr(scan, "read_from", spy)
    assert world.plan(DeadLetterFilter(chosen={0: frozenset({3, 4})})).count == 2
    assert read == [3]


def test_a_redriven_record_is_back_in_its_partition_as_it_was(world) -> None:
    world.die("boom", partition=1)
    result = world.redriven()
    assert (result.total, result.finished, result.failed, result.skipped) == (1, 1, 0, 0)
    (record,) = world.back(1)
    assert (record.key, record.value) == (b"k1", b"v1")
    headers = dict(record.headers)
    assert headers["colour"] == b"red"
    assert headers["redriven_from"] == b"dlq.orders/1@0"
    assert not {"original_topic", "original_offset", "attempts", "last_error", "routed_at_ms"} & set(headers)
    assert world.back(0) == []
    assert world.broker.meters.redriven.get((TOPIC,)) == 1


def test_a_record_that_is_redriven_twice_names_the_last_place_only(world) -> None:
    world.die(more=(("redriven_from", b"dlq.orders/0@99"),))
    world.redriven()
    (record,) = world.back()
    assert [value for name, value in record.headers if name == "redriven_from"] == [b"dlq.orders/0@0"]


def test_what_was_redriven_is_not_open_any_more_through_a_restart(world) -> None:
    for _ in range(3):
        world.die()
    assert world.redriven(most=2).finished == 2
    assert world.open_count() == 1
    world.restart()
    assert world.open_count() == 1
    assert [letter.value for letter in world.shown()] == [b"v3"]
    assert world.redriven().finished == 1
    assert world.redriven().total == 0
    assert [record.value for record in world.back()] == [b"v1", b"v2", b"v3"]


def test_what_dies_during_a_redrive_is_for_the_next_one(world) -> None:
    world.die()
    job = world.redrive()
    world.die()
    world.finish(job)
    assert job.result.finished == 1
    assert world.open_count() == 1


def test_the_rate_is_kept_by_the_clock(world) -> None:
    for _ in range(30):
        world.die()
    job = world.redrive(rate=10)
    world.pass_time(1_000)
    assert 9 <= len(world.back()) <= 12
    assert job.result is None
    world.pass_time(1_000)
    assert 19 <= len(world.back()) <= 22
    world.pass_time(2_000)
    assert job.result.finished == 30  # type: ignore[attr-defined]


def test_a_rate_is_not_caught_up_after_a_pause(world) -> None:
    for _ in range(30):
        world.die()
    world.redrive(rate=10)
    world.turns()
    world.clock.advance(60_000)
    world.turns()
    assert len(world.back()) <= 3


def test_progress_is_told_as_it_goes(world) -> None:
    for _ in range(5):
        world.die()
    job = world.redrive(rate=20)
    world.finish(job)
    assert [told.total for told in job.told] == [5] * len(job.told)
    counts = [told.finished for told in job.told]
    assert counts == sorted(set(counts))
    assert len(counts) > 2
    assert counts[-1] == 5


def test_a_redrive_that_is_cancelled_leaves_the_rest_open_and_can_be_run_again(world) -> None:
    for _ in range(10):
        world.die()
    job = world.redrive(rate=20)
    world.pass_time(200)
    job.cancel()
    world.pass_time(500)
    moved = len(world.back())
    assert 0 < moved < 10
    assert job.result is None
    assert world.open_count() == 10 - moved
    assert world.redriven().finished == 10 - moved
    assert [record.value for record in world.back()] == [b"v%d" % number for number in range(1, 11)]


def test_two_redrives_at_the_same_time_move_each_dead_letter_once(world) -> None:
    for _ in range(20):
        world.die()
    first, second = world.redrive(), world.redrive()
    world.finish(first)
    world.finish(second)
    assert len(world.back()) == 20
    assert world.open_count() == 0


def test_many_more_than_are_moved_at_a_time(world) -> None:
    for _ in range(700):
        world.die()
    assert world.redriven().finished == 700
    assert [record.value for record in world.back()] == [b"v%d" % number for number in range(1, 701)]


def test_purged_letters_are_finished_where_they_lie(world) -> None:
    for partition in (0, 0, 1):
        world.die(partition=partition)
    result = world.purged(DeadLetterFilter(partition=0))
    assert (result.total, result.finished) == (2, 2)
    assert world.back() == []
    world.restart()
    assert world.open_count() == 1
    assert len(world.shown()) == 1


def test_a_dead_letter_whose_own_deadline_has_passed_stays_open(world) -> None:
    world.die(more=(("penstock.deadline_ms", b"5"),))
    world.die()
    assert world.purged(DeadLetterFilter(offset=1)).finished == 1
    world.pass_time(100)
    assert [letter.offset for letter in world.shown()] == [0]


def test_a_topic_without_dead_letters_and_one_that_is_gone(world) -> None:
    with pytest.raises(PenstockError, match=r"Topic nobody has no dead letters: there is no topic dlq\.nobody"):
        world.letters.plan(PlanRedrive("nobody", DeadLetterFilter()), ignore)
    world.die()
    finish(world.broker.topics.delete(TOPIC))
    with pytest.raises(PenstockError, match="no longer exists; create it, then redrive them") as refused:
        world.redrive()
    assert refused.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert world.open_count() == 1
    assert world.purged().finished == 1


def test_the_name_of_the_dead_letter_topic_will_do_too(world) -> None:
    world.die()
    found = []
    world.letters.plan(PlanRedrive(DEAD, DeadLetterFilter()), found.append)
    assert (found[0].topic, found[0].count) == (TOPIC, 1)


def test_a_letter_of_another_topic_that_is_gone_fails_and_stays_open(world) -> None:
    world.die()
    world.append(DEAD, 0, Record(0, 1, b"k", b"v", (("original_topic", b"gone"),)))
    result = world.redriven()
    assert (result.finished, result.failed) == (1, 1)
    assert "gone" in (result.last_failure or "")
    assert world.open_count() == 1


def test_a_partition_that_is_not_there_any_more_is_chosen_anew(world) -> None:
    world.append(DEAD, 0, Record(0, 1, b"k", b"v", (("original_partition", b"7"),)))
    assert world.redriven().finished == 1
    assert len(world.back(0)) + len(world.back(1)) == 1


def test_dead_letters_of_a_topic_with_the_longest_name_find_back(world) -> None:
    name = "n" * TOPIC_NAME_CHARS_MAX
    dead = dead_letter_topic(name)
    for each in (name, dead):
        finish(world.broker.topics.create(NewTopic(each, 1)))
    world.append(dead, 0, Record(0, 1, b"k", b"v", (("original_topic", name.encode()),)))
    job = Job()
    world.letters.redrive(CALLER, Redrive(0, name, DeadLetterFilter()), ignore, job.done)
    world.finish(job)
    assert [record.value for record in read_all(world.broker.partition(name, 0))] == [b"v"]


def test_a_rate_below_nothing_is_refused(world) -> None:
    with pytest.raises(PenstockError, match="A rate must be"):
        world.redrive(rate=-1)


def test_the_number_of_requests_under_way_is_bounded(world) -> None:
    for _ in range(JOBS_MAX + 50):
        world.die()
    for _ in range(JOBS_MAX):
        world.redrive(rate=1)
    with pytest.raises(PenstockError, match="which is the limit") as refused:
        world.redrive()
    assert refused.value.reason is Reason.POLICY_VIOLATION


def test_whoever_waits_is_told_that_the_broker_stops(world) -> None:
    for _ in range(30):
        world.die()
    job = world.redrive(rate=1)
    world.broker.close()
    assert job.result.reason is Reason.SHUTTING_DOWN


def test_a_record_that_lands_before_the_end_that_its_move_saw_is_not_moved_twice(world) -> None:
    world.die()
    target = world.broker.partition(TOPIC, 0)
    others = [Record(0, 1, b"x", b"other")] * 5
    target.append(build_batch(others), 1)
    world.redrive()
    # There is no room for the others, and they are taken back; then there is, and the record lands before their end.
    world.disk.full = range(world.disk.room_calls + 1, world.disk.room_calls + 2)
    with pytest.raises(PenstockError):
        target.log.write_pending()
    world.flusher.sync()
    world.flusher.write()
    target.append(build_batch(others * 2), 1)
    target.log.write_pending()
    assert [record.value for record in world.back()] == []
    world.restart()
    world.pass_time(100)
    world.redriven()
    assert [record.value for record in world.back()].count(b"v1") == 1
