"""``penstock pipeline dlq-report`` and ``redrive``: by reason, by SQL, and never twice, whichever process dies in the middle."""

import os
import re
import subprocess
import sys

import msgspec
import pytest

from penstock.client import At, Consumer, QueueAdmin, list_offsets, watermarks
from penstock.spark.pipelines.builtin import dlq_report, redrive
from penstock.spark.pipelines.builtin.dlq_report import DlqReportArguments, Which
from penstock.spark.pipelines.builtin.redrive import RedriveArguments
from penstock.spark.pipelines.errors import PipelineUsageError
from penstock.spark.pipelines.registry import Registry
from penstock.spark.pipelines.run import Execution, RunSettings
from tests.spark.dead_letters import GROUP, Mortuary
from tests.support.waiting import eventually


class Screen:
    """Notes what a pipeline shows; ``dies_after`` records redriven it is killed."""

    def __init__(self, *, says=True, dies_after=None) -> None:
        self.says = says
        self.dies_after = dies_after
        self.asked: list[str] = []
        self.notes: list[str] = []
        self.rows: list[dict] = []
        self.done = 0

    def progress(self, what, total):
        return self

    def advance(self, amount=1, note="") -> None:
        self.done += amount
        if self.dies_after is not None and self.done >= self.dies_after:
            raise KilledError

    def stopping(self) -> None:
        pass

    def need_answer(self) -> None:
        pass

    def confirm(self, question):
        self.asked.append(question)
        return self.says

    def note(self, text) -> None:
        self.notes.append(text)

    def emit(self, rows, columns, nothing) -> None:
        assert all(set(columns) <= set(row) for row in rows)
        self.rows = [*rows]
        if not rows:
            self.notes.append(nothing)

    def show(self, run) -> None:
        pass

    def clear(self) -> None:
        pass


class KilledError(Exception):
    """As if the process ended here."""


@pytest.fixture
def pipeline(spark, bootstrap, tmp_path):
    """Run a built-in in this process's session."""

    def run(builtin, arguments, screen=None):
        screen = screen or Screen()
        settings = RunSettings("test", builtin.BUILTIN.name, bootstrap, streams=False)
        execution = Execution(settings, Registry(tmp_path / "state"), screen, make_session=lambda _: spark)
        execution.execute(lambda context: builtin.run(arguments, context))
        return screen

    return run


@pytest.fixture
def mortuary(broker, topic):
    return Mortuary(broker.address("http"), topic)


def came_back(cluster, topic):
    """The values that were put back into the topic, in no order."""
    places = [(topic, partition.index) for partition in cluster.topic(topic).partitions]
    starts = list_offsets(cluster, dict.fromkeys(places, At.EARLIEST))
    ends = watermarks(cluster, places)
    consumer = Consumer(cluster)
    consumer.assign({place: found.offset for place, found in starts.items()})
    found = []
    while any(consumer.positions[place] < ends[place][1] for place in places):
        found += [
            record.value for record in consumer.poll() if any(name == "redriven_from" for name, _ in record.headers)
        ]
    return sorted(found)


def test_a_report_groups_dead_letters_by_reason_with_one_of_each(pipeline, mortuary, topic) -> None:
    mortuary.die(
        (b"a", "no stock"), (b"b", "timeout"), (b"c", "timeout"), (b"\xff", "bytes"), ("é".encode() * 600, "long")
    )
    rows = pipeline(dlq_report, DlqReportArguments(topics=(topic,))).rows
    assert [(row["topic"], row["group"], row["reason"], row["count"]) for row in rows] == [
        (topic, GROUP, "timeout", 2),
        (topic, GROUP, "bytes", 1),
        (topic, GROUP, "long", 1),
        (topic, GROUP, "no stock", 1),
    ]
    timeout, odd, long, _ = rows
    assert timeout["first_seen"] <= timeout["last_seen"]
    assert timeout["last_seen"].endswith("Z")
    assert (timeout["sample"] in ("b", "c"), timeout["attempts_max"]) == (True, 1)
    assert timeout["sample_record"].startswith(f"dlq.{topic}/")
    assert (odd["sample"], odd["sample_encoding"]) == ("/w==", "base64")
    assert long["sample"] == "é" * 512
    assert msgspec.json.encode(rows)


def test_a_report_takes_a_condition_a_state_and_a_limit(pipeline, mortuary, topic) -> None:
    mortuary.die((b"a", "no stock"), (b"b", "timeout"), (b"c", "timeout"))
    where = "reason LIKE 'time%' AND CAST(value AS STRING) = 'b' AND Died_At > now() - interval 1 day"
    screen = pipeline(dlq_report, DlqReportArguments(topics=(topic,), where=where))
    assert [(row["reason"], row["count"]) for row in screen.rows] == [("timeout", 1)]
    assert len(pipeline(dlq_report, DlqReportArguments(topics=(topic,), limit=1)).rows) == 1
    screen = pipeline(dlq_report, DlqReportArguments(topics=(topic,), state=Which.FINISHED))
    assert (screen.rows, screen.notes) == ([], ["starting Spark...", "no finished dead letters match"])


def test_an_invalid_condition_is_reported_with_the_columns(pipeline, topic, mortuary) -> None:
    mortuary.die((b"a", "boom"))
    for where in ("raeson = 'x'", "reason = = 'x'", "reason"):
        for builtin, arguments in (
            (dlq_report, DlqReportArguments(topics=(topic,), where=where)),
            (redrive, RedriveArguments(topic=(topic,), where=where, dry_run=True)),
        ):
            with pytest.raises(PipelineUsageError, match=r"--where .*columns are topic, partition") as refused:
                pipeline(builtin, arguments)
            assert not re.search(r"\[[A-Z0-9_.]+\]|SQLSTATE|\n", str(refused.value))


def test_a_redrive_sends_back_what_sql_chooses_and_leaves_the_rest(pipeline, mortuary, topic, cluster) -> None:
    mortuary.die(*((b"%d" % number, f"timeout after {number} s" if number % 2 else "no stock") for number in range(10)))
    arguments = RedriveArguments(topic=(topic,), where="reason LIKE '%timeout%' AND died_at > now() - interval 1 day")
    planned = pipeline(redrive, msgspec.structs.replace(arguments, dry_run=True))
    (row,) = planned.rows
    assert (row["topic"], row["planned"], row["redriven"], len(row["reasons"])) == (topic, 5, 0, 5)
    assert any("timeout after 3 s" in note for note in planned.notes)
    assert planned.asked == []
    refused = pipeline(redrive, arguments, Screen(says=False))
    assert refused.asked == [f"Send 5 dead letters of {topic} back?"]
    assert came_back(cluster, topic) == []
    (row,) = pipeline(redrive, arguments).rows
    assert (row["planned"], row["redriven"], row["skipped"], row["failed"]) == (5, 5, 0, 0)
    assert came_back(cluster, topic) == [b"1", b"3", b"5", b"7", b"9"]
    again = pipeline(redrive, arguments)
    assert (again.rows[0]["planned"], again.asked) == (0, [])
    with QueueAdmin(mortuary.http) as admin:
        assert mortuary.open_count(admin) == 5


def test_a_redrive_takes_the_oldest_up_to_the_maximum(pipeline, mortuary, topic, cluster) -> None:
    for value in (b"first", b"second", b"third"):
        mortuary.die((value, "boom"))
    assert pipeline(redrive, RedriveArguments(topic=(topic,), max=2, rate=50.0)).rows[0]["redriven"] == 2
    assert came_back(cluster, topic) == [b"first", b"second"]


def test_a_redrive_that_dies_in_the_middle_continues_where_it_was(
    pipeline, mortuary, topic, cluster, monkeypatch
) -> None:
    monkeypatch.setattr(redrive, "CHUNK", 3)
    values = [b"%02d" % number for number in range(10)]
    mortuary.die(*((value, "boom") for value in values))
    with pytest.raises(KilledError):
        pipeline(redrive, RedriveArguments(topic=(topic,)), Screen(dies_after=4))
    with QueueAdmin(mortuary.http) as admin:
        assert 0 < mortuary.open_count(admin) < 10
    pipeline(redrive, RedriveArguments(topic=(topic,)))
    assert came_back(cluster, topic) == values


def test_dead_letters_that_were_redriven_in_the_meantime_are_skipped(pipeline, mortuary, topic, cluster) -> None:
    mortuary.die(*((b"%d" % number, "boom") for number in range(4)))

    class Meddler(Screen):
        def confirm(self, question) -> bool:
            with QueueAdmin(mortuary.http) as admin:
                assert [*admin.redrive(topic)][-1].finished == 4
            return True

    (row,) = pipeline(redrive, RedriveArguments(topic=(topic,)), Meddler()).rows
    assert (row["planned"], row["redriven"], row["skipped"]) == (4, 0, 4)
    assert len(came_back(cluster, topic)) == 4


def test_what_there_is_not_needs_no_spark(pipeline, topic) -> None:
    screen = pipeline(redrive, RedriveArguments(topic=(topic, "no-such-topic")))
    assert screen.rows == []
    assert any("has no dead letters" in note for note in screen.notes)
    for arguments in ({"topic": ()}, {"topic": (topic,), "rate": -1.0}, {"topic": (topic,), "max": 0}):
        with pytest.raises(PipelineUsageError):
            pipeline(redrive, RedriveArguments(**arguments))


@pytest.mark.timeout(500)
def test_a_command_that_is_killed_and_run_again_sends_everything_back_once(
    pipeline, mortuary, topic, cluster, bootstrap, tmp_path
) -> None:
    values = [b"%03d" % number for number in range(120)]
    mortuary.die(*((value, "timeout") for value in values))
    command = [sys.executable, "-m", "penstock", "pipeline", "redrive", "--topic", topic, "--rate", "20", "--yes"]
    command += ["--bootstrap", bootstrap, "--master", "local[1]", "--state-dir", str(tmp_path / "runs")]
    command += ["--conf", "spark.driver.memory=1g", "--where", "reason = 'timeout'"]
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process,
        QueueAdmin(mortuary.http) as admin,
    ):

        def some_are_back():
            assert process.poll() is None, (tmp_path / "log").read_text()
            return mortuary.open_count(admin) < 110

        try:
            eventually(some_are_back, 400, "the command redrives")
        finally:
            process.kill()
        process.wait(30)
        left = eventually(lambda: mortuary.open_count(admin), what="some are left")
        assert left > 0
    pipeline(redrive, RedriveArguments(topic=(topic,)))
    assert came_back(cluster, topic) == values
