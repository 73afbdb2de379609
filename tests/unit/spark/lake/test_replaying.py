"""What a replay comes to, against a real broker and a real lake."""

import json
from types import SimpleNamespace

import pytest

from penstock.client import Admin, Cluster, Producer
from penstock.spark.lake.formats import LakeError
from penstock.spark.lake.replaying import Phase, Replay, ReplayRequest, Sending, begin, finish
from tests.unit.spark.lake.kit import DAY_MS, NEW_YEAR_MS, records

HOUR_MS = 3_600_000


@pytest.fixture
def bootstrap(bare_broker, parquet):
    """Partition 0: offsets 0 to 9 an hour apart, of which the broker has 6 to 9, and the lake 0 to 7. Partition 1: 10, at the broker."""
    with Cluster(bare_broker.bootstrap) as cluster:
        Admin(cluster).create_topic("orders", partitions=2, configs={"retention.ms": "-1"})
        with Producer(cluster) as producer:
            for n in range(20):
                producer.send("orders", b"%d" % n, partition=n // 10, timestamp_ms=NEW_YEAR_MS + n % 10 * HOUR_MS)
        Admin(cluster).delete_records({("orders", 0): 6})
    times = [NEW_YEAR_MS + n * HOUR_MS for n in range(8)]
    parquet.run(0, records(offsets=range(8), timestamps_ms=times))
    return bare_broker.bootstrap


@pytest.fixture
def plan(bootstrap, parquet, tmp_path):
    def settle(*, lake=True, notes=None, folder="checkpoint", **more):
        given = dict.fromkeys(["partition", "from_offset", "to_offset", "from_ms", "to_ms"])
        given |= {"topic": "orders", "to": "again", "broker": True, "lake": lake, "lake_needed": lake}
        given |= {"location": str(parquet.folder) if lake else "", "format": "parquet"}
        brokers = {"kafka.bootstrap.servers": bootstrap}
        return begin(
            ReplayRequest(**(given | more)), brokers, str(tmp_path / folder), ([] if notes is None else notes).append
        )

    return settle


def phases(replay):
    return {phase.source: (phase.start, phase.end) for phase in replay.phases}


def test_the_broker_gives_what_it_has_and_the_lake_what_is_before(plan) -> None:
    replay = plan()
    assert phases(replay) == {"lake": ({0: 0}, {0: 6}), "broker": ({0: 6, 1: 0}, {0: 10, 1: 10})}
    assert (replay.total, replay.keep_partitions) == (20, True)


@pytest.mark.parametrize(
    ("asked", "settled"),
    [
        ({"lake": False}, {"broker": ({0: 6, 1: 0}, {0: 10, 1: 10})}),
        ({"broker": False}, {"lake": ({0: 0}, {0: 8})}),
        ({"from_offset": 3, "to_offset": 5, "partition": 0}, {"lake": ({0: 3}, {0: 5})}),
        ({"from_offset": 7, "to_offset": 99}, {"broker": ({0: 7, 1: 7}, {0: 10, 1: 10})}),
        ({"lake": False, "from_offset": 2, "to_offset": 7}, {"broker": ({0: 6, 1: 2}, {0: 7, 1: 7})}),
        (
            {"from_ms": NEW_YEAR_MS + 2 * HOUR_MS + 1, "to_ms": NEW_YEAR_MS + 8 * HOUR_MS},
            {"lake": ({0: 3}, {0: 6}), "broker": ({0: 6, 1: 3}, {0: 8, 1: 8})},
        ),
        ({"broker": False, "from_ms": NEW_YEAR_MS + 2 * HOUR_MS, "to_offset": 7}, {"lake": ({0: 2}, {0: 7})}),
        ({"from_ms": NEW_YEAR_MS + 100 * HOUR_MS}, {}),
        ({"from_offset": 5, "to_offset": 5}, {}),
    ],
)
def test_a_range_is_cut_to_what_there_is(plan, asked, settled) -> None:
    assert phases(plan(**asked)) == settled


def test_the_same_command_continues_the_plan_and_another_is_refused(plan, bootstrap) -> None:
    begun = plan()
    with Cluster(bootstrap) as cluster, Producer(cluster) as producer:
        producer.send("orders", b"later", partition=0)
    notes = []
    assert plan(notes=notes) == begun
    assert notes == ["continuing the interrupted replay"]
    with pytest.raises(LakeError, match="unfinished"):
        plan(to_offset=3)
    finish(begun)
    assert plan().total == 21


def test_a_target_that_is_not_there_is_made_and_a_smaller_one_takes_records_by_key(plan, bootstrap) -> None:
    notes = []
    plan(notes=notes)
    assert notes == ["created topic again with 2 partitions and retention.ms -1, so that old records are retained"]
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic("one", partitions=1)
    notes.clear()
    assert not plan(to="one", folder="other", notes=notes).keep_partitions
    assert "one has retention.ms 604800000" in notes[0]
    assert plan(to="one", partition=0, folder="third").keep_partitions


def test_a_missing_source_is_reported(plan) -> None:
    with pytest.raises(LakeError, match="has no tier; specify its lake"):
        plan(location="")
    with pytest.raises(LakeError, match="orders/7 does not exist"):
        plan(partition=7)


def test_a_phase_counts_its_offsets() -> None:
    assert Phase("lake", {0: 3, 1: 5}, {0: 10, 1: 5}).total == 7


def test_missing_offsets_are_reported_and_not_waited_for(plan, bootstrap) -> None:
    with Cluster(bootstrap) as cluster:
        Admin(cluster).delete_records({("orders", 0): 9})
    notes = []
    assert phases(plan(notes=notes)) == {"lake": ({0: 0}, {0: 8}), "broker": ({0: 9, 1: 0}, {0: 10, 1: 10})}
    assert "orders/0: offsets 8 to 8 are neither in the lake nor in the broker" in notes


@pytest.fixture
def early(bootstrap):
    """``early("orders-1969", [-5000, ...])``: a topic with records of these times."""

    def make(topic, times_ms, dropped=0) -> None:
        with Cluster(bootstrap) as cluster:
            Admin(cluster).create_topic(topic, partitions=1, configs={"retention.ms": "-1"})
            with Producer(cluster) as producer:
                for n, time_ms in enumerate(times_ms):
                    producer.send(topic, b"%d" % n, partition=0, timestamp_ms=time_ms)
            Admin(cluster).delete_records({(topic, 0): dropped})

    return make


@pytest.mark.parametrize(
    ("time_ms", "first"), [(-10_000, 0), (-5000, 0), (-4999, 1), (-3, 1), (-2, 1), (-1, 1), (0, 3), (2000, 4)]
)
def test_a_time_before_1970_is_no_place_of_the_protocol(plan, early, time_ms, first) -> None:
    early("old", [-5000, -1, -700, 1000, 2000])
    after = plan(topic="old", lake=False, from_ms=time_ms)
    assert phases(after) == {"broker": ({0: first}, {0: 5})}
    finish(after)
    before = plan(topic="old", lake=False, to_ms=time_ms)
    assert phases(before) == ({"broker": ({0: 0}, {0: first})} if first else {})


@pytest.mark.parametrize(("time_ms", "start"), [(-5000, 0), (-4999, 1), (-700, 1), (-600, 2)])
def test_a_time_before_1970_is_found_in_the_lake_and_behind_it_at_the_broker(
    plan, early, parquet, time_ms, start
) -> None:
    early("old", [-5000, -700, -600, 1000], dropped=2)
    parquet.run(1, records("old", offsets=range(3), timestamps_ms=[-5000, -700, -600]))
    lake = {"lake": ({0: start}, {0: 2})} if start < 2 else {}
    assert phases(plan(topic="old", from_ms=time_ms)) == lake | {"broker": ({0: max(start, 2)}, {0: 4})}


def test_what_the_broker_has_is_its_own_to_say_where_days_overlap(plan, early, parquet) -> None:
    # The file of the first day has 0, 1 and 3; that of the next has 2 alone, and the broker begins there.
    times = [NEW_YEAR_MS, NEW_YEAR_MS + 1, NEW_YEAR_MS + DAY_MS, NEW_YEAR_MS + 2]
    early("late", times, dropped=2)
    parquet.run(1, records("late", offsets=range(4), timestamps_ms=times))
    assert phases(plan(topic="late", from_ms=NEW_YEAR_MS + 2)) == {"broker": ({0: 2}, {0: 4})}


@pytest.mark.parametrize("topic", ["orders", "0", "1"])
@pytest.mark.parametrize("source", ["lake", "broker"])
def test_how_far_a_phase_is_is_read_as_its_source_says_it_whatever_the_topics_name(topic, source) -> None:
    phase = Phase(source, {0: 3, 1: 5}, {0: 10, 1: 9})
    wanted = ReplayRequest(topic, "again", None, None, None, None, None, True, True, True, "", "parquet")
    sending = Sending(None, Replay(wanted, "run", "", "", "parquet", True, [phase]), phase, {}, 100)
    reached = {"0": 7, "1": 9} if source == "lake" else {topic: {"0": 7, "1": 9}}
    for text, done in ((json.dumps(reached), 8), ("null", 0), (None, 0)):
        progress = SimpleNamespace(sources=[SimpleNamespace(endOffset=text)])
        assert sending._done(SimpleNamespace(lastProgress=progress)) == done
    assert sending._done(SimpleNamespace(lastProgress=None)) == 0
