"""``penstock pipeline replay``: old records into a topic, as they were, in their order, once."""

import uuid
from collections import Counter

import pytest

from penstock.client import Admin
from penstock.client.consumer import Consumer
from penstock.client.offsets import watermarks
from penstock.spark.lake.formats import LakeFormat
from penstock.spark.pipelines.errors import PipelineError
from tests.spark.archiving import PipelineProcess, run_builtin
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000


class Replays:
    """Runs replays of one topic."""

    def __init__(self, spark, bootstrap, cluster, topic, folder) -> None:
        self.spark, self.bootstrap, self.cluster = spark, bootstrap, cluster
        self.topic, self.folder = topic, folder
        self.target = f"{topic}-again"

    def run(self, **arguments):
        given = {"topic": self.topic, "to": self.target, **arguments}
        state = self.folder / "state"
        return run_builtin(self.spark, "replay", given, bootstrap=self.bootstrap, state=state, name="replay")

    def sent(self):
        """By partition, in order: (key, value, headers, timestamp)."""
        return records(self.cluster, self.target)


def records(cluster, topic):
    cluster.forget(topic)
    places = [(topic, part.index) for part in cluster.topic(topic).partitions]
    ends = {place: end for place, (_, end) in watermarks(cluster, places).items()}
    consumer = Consumer(cluster)
    consumer.assign(dict.fromkeys(places, 0))
    found = {place[1]: [] for place in places}
    while any(consumer.positions[place] < end for place, end in ends.items()):
        for record in consumer.poll():
            found[record.partition].append((record.key, record.value, record.headers, record.timestamp_ms))
    return found


@pytest.fixture
def replays(spark, bootstrap, cluster, topic, tmp_path):
    return Replays(spark, bootstrap, cluster, topic, tmp_path)


@pytest.fixture
def filled(produce, topic, cluster):
    """Three hundred records, one an hour, in both partitions."""
    Admin(cluster).alter_configs(topic, {"retention.ms": "-1"})
    for n in range(0, 300, 50):
        for partition in (0, 1):
            for at in range(n, n + 50):
                if at % 2 == partition:
                    moment = START_MS + at * HOUR_MS
                    record = [(None if at % 3 else b"k%d" % at, b"%d" % at)]
                    produce(topic, record, partition=partition, headers=[("at", b"%d" % at)], timestamp_ms=moment)
    return records(cluster, topic)


def test_a_replay_keeps_keys_headers_timestamps_partitions_and_order(replays, filled) -> None:
    screen = replays.run()
    assert replays.sent() == filled
    assert screen.done == 300


def test_a_range_is_by_offset_or_by_time_and_optionally_of_one_partition(replays, filled, topic) -> None:
    replays.run(from_offset=20, to_offset=30)
    assert replays.sent() == {p: filled[p][20:30] for p in (0, 1)}
    replays.target = f"{topic}-times"
    replays.run(from_time="2026-01-02T00:00:00Z", to_time="2026-01-03T00:00:00Z", partition=1)
    assert replays.sent() == {0: [], 1: filled[1][12:24]}
    replays.target = f"{topic}-nothing"
    assert replays.run(from_offset=1_000).notes[-1] == "there are no records in this range"


def test_a_lake_is_replayed_whatever_became_of_the_topic(
    replays, filled, topic, cluster, tmp_path, spark, bootstrap
) -> None:
    lake = str(tmp_path / "lake")
    archive = {"topics": (topic,), "to": lake, "format": LakeFormat.DELTA}
    run_builtin(spark, "archive", archive, bootstrap=bootstrap, state=tmp_path / "state", name=f"a-{topic}")
    Admin(cluster).delete_records({(topic, 0): 100, (topic, 1): 120})
    more = {"lake": lake, "format": LakeFormat.DELTA}
    replays.run(source="both", **more)
    assert replays.sent() == filled
    Admin(cluster).delete_topic(topic)
    replays.target = f"{topic}-lake"
    replays.run(source="lake", from_time="2026-01-02T00:00:00Z", to_offset=40, **more)
    assert replays.sent() == {p: filled[p][12:40] for p in (0, 1)}


def test_a_target_with_fewer_partitions_takes_records_by_their_keys(replays, filled, cluster) -> None:
    Admin(cluster).create_topic(replays.target, partitions=1, configs={"retention.ms": "-1"})
    replays.run(to_offset=20)
    (only,) = replays.sent().values()
    assert Counter(only) == Counter([*filled[0][:20], *filled[1][:20]])
    for partition in (0, 1):
        assert [record for record in only if record in filled[partition]] == filled[partition][:20]


def test_a_replay_that_was_killed_continues_and_sends_everything_once(
    replays, filled, bootstrap, cluster, tmp_path, topic
) -> None:
    log = tmp_path / "replay.log"
    words = ["replay", topic, "--to", replays.target, "--bootstrap", bootstrap, "--name", "replay"]
    words += ["--state-dir", str(tmp_path / "state"), "--rate", "40", "--conf", "spark.driver.memory=1g"]
    Admin(cluster).create_topic(replays.target, partitions=2, configs={"retention.ms": "-1"})

    def sent():
        assert process.running, log.read_text()[-3000:]
        return sum(end for _, end in watermarks(cluster, [(replays.target, 0), (replays.target, 1)]).values())

    with PipelineProcess(*words, log=log) as process:
        eventually(lambda: 40 <= sent() < 300, 180, "a part is sent")
        process.kill()
    with pytest.raises(PipelineError, match="with other arguments is unfinished"):
        replays.run(to_offset=3)
    screen = replays.run(rate=200)
    assert "interrupted" in screen.notes[0]
    assert replays.sent() == filled
    # The one that ended is forgotten: this is another.
    replays.target = f"{topic}-{uuid.uuid4().hex[:6]}"
    replays.run(from_offset=140)
    assert replays.sent() == {p: filled[p][140:] for p in (0, 1)}


def test_what_cannot_be_is_refused_before_spark_starts(replays) -> None:
    for arguments, says in (
        ({"from_offset": 1, "from_time": "2026-01-01"}, "not both"),
        ({"source": "broker", "lake": "/x"}, "requires --source"),
        ({"from_time": "yesterday"}, "is not a time"),
        ({"rate": 0}, "1 or more"),
        ({"to_offset": -1}, "0 or more"),
        ({"source": "lake"}, "specify its lake"),
    ):
        with pytest.raises(PipelineError, match=says):
            replays.run(**arguments)
