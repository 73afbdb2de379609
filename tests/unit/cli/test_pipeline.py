"""``penstock pipeline`` without Spark: checking files, and what is remembered of runs."""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import pytest

from penstock.cli import main
from penstock.cli.failures import Exit
from penstock.spark.pipelines.process import birth_of
from penstock.spark.pipelines.registry import PipelineState, QueryStatus, Registry, Run

GOOD = '[source]\ntopics = "orders"\n[[steps]]\nsql = "SELECT * FROM orders"\n[[sinks]]\nkind = "console"\n'


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    return Registry(tmp_path / "state")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "copy.toml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def sleeper():
    """A process that ends when told to, and says so in its exit code."""
    program = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('ready', flush=True)\ninput()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def a_run(pid, **more):
    query = QueryStatus(
        name="topic-big", query_id="q", batch_id=4, rows=1200, rows_per_second=88.25, lag=7, batch_at_ms=0
    )
    given = {
        "name": "big",
        "kind": "steps",
        "pid": pid,
        "birth": birth_of(pid),
        "state": PipelineState.RUNNING,
        "queries": [query],
    }
    return Run(**(given | {"master": "local[*]", "checkpoint": "there"} | more))


def test_a_good_file_is_said_to_be_one(file, capsys) -> None:
    assert main.run(["pipeline", "check", str(file)]) == Exit.OK
    assert capsys.readouterr().err == f"{file} is valid: copy, 1 source, 1 step, 1 sink\n"


def test_mistakes_are_on_stderr_a_line_each(file, capsys) -> None:
    file.write_text(GOOD.replace("FROM orders", "FROM ordes").replace("console", "consle"))
    assert main.run(["pipeline", "check", str(file)]) == Exit.USAGE
    told = 'got "consle", expected "topic", "parquet", "delta", "iceberg" or "console"; did you mean "console"?'
    assert capsys.readouterr().err == f"error: {file}:6: [[sinks]] kind: {told}\n"


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_file_that_would_feed_itself_is_refused(command, file, state, capsys) -> None:
    file.write_text(GOOD.replace('"console"', '"topic"\ntopic = "orders"'))
    assert main.run(["pipeline", command, str(file)]) == Exit.USAGE
    told = "orders is also read, so the pipeline would process its own output endlessly; write to another topic"
    assert capsys.readouterr().err == f"error: {file}:7: [[sinks]] topic: {told}\n"


def test_mistakes_are_json_for_programs(file, capsys) -> None:
    file.write_text(GOOD.replace("FROM orders", "FROM ordes"))
    assert main.run(["pipeline", "check", str(file), "-o", "json"]) == Exit.USAGE
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert [(each["line"], each["text"]) for each in answer["problems"]] == [
        (4, "[[steps]] sql: unknown source or step ordes; did you mean orders?")
    ]


def test_a_good_file_is_json_for_programs(file, capsys) -> None:
    assert main.run(["pipeline", "check", str(file), "-o", "ndjson"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {
        "file": str(file),
        "name": "copy",
        "ok": True,
        "problems": [],
        "views": [],
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "nosuch.toml"], "File nosuch.toml does not exist"),
        (["run", "nosuch.toml"], "File nosuch.toml does not exist"),
        (["check", "FILE", "--set", "source.topcs=x"], "--set: [source] topcs: unknown; did you mean topics?"),
        (["check", "FILE", "--set", "source"], "--set 'source': write NAME=VALUE"),
        (["run", "FILE", "--trigger", "often"], '--trigger: "often" is not a duration such as "10s", or "once"'),
        (["run", "FILE", "--master", "spark://h:1"], "On spark://h:1 the checkpoint must be in a place that the driver and the executors can both reach"),
        (["run", "FILE", "--name", "../../x"], '--name: got "../../x", expected at most 100 letters, digits, ., _ and -'),
        (["transform", "--from", "a", "--to", "b"], "Missing option '--sql'"),
        (["transform", "--from", "a", "--to", "b", "--sql", "SELECT * FROM c"], "error: --sql: unknown source or step c; available: a"),
        (["stats", "a", "--to", "b", "--every", "5 minuts"], 'error: --every: "5 minuts" is not a duration such as'),
        (["stats", "a", "--to", "b", "--start", "x"], 'error: --start: "x" is not "earliest", "latest", a time such as'),
        (["replay", "a", "--to", "b", "--from-time", "earliest"], 'error: --from-time: "earliest" is not a time such as "2026-03-01T12:00:00Z", or a date'),
        (["replay", "a", "--to", "b", "--from-offset", "15", "--to-offset", "5"], "error: --to-offset: The range ends before it starts; --from-offset must not be after"),
        (["stats", "a"], "stats: specify where to write the results: --to TOPIC, --table PATH, or both"),
    ],
)  # fmt: skip
def test_wrong_usage_is_a_sentence_and_exit_code_2(arguments, says, file, state, capsys) -> None:
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    assert main.run(["pipeline", *given]) == Exit.USAGE
    assert says in capsys.readouterr().err


def test_a_built_in_runs_from_a_file_too(file, state, capsys) -> None:
    file.write_text('[pipeline]\nkind = "stats"\n[stats]\ntopics = ["a"]\n')
    assert main.run(["pipeline", "run", str(file)]) == Exit.USAGE
    told = f"error: {file}:3: [stats]: specify where to write the results: --to TOPIC, --table PATH, or both\n"
    assert capsys.readouterr().err == told
    file.write_text('[pipeline]\nkind = "stats"\n[stats]\ntopics = ["a"]\nto = "b"\n')
    assert main.run(["pipeline", "run", str(file), "-b", "127.0.0.1:1"]) == Exit.UNREACHABLE


def test_no_broker_is_told_before_spark_starts(file, state, capsys) -> None:
    assert main.run(["pipeline", "run", str(file), "--bootstrap", "127.0.0.1:1"]) == Exit.UNREACHABLE
    assert "Cannot connect to 127.0.0.1:1" in capsys.readouterr().err
    assert state.load("copy").state is PipelineState.FAILED
    assert "pyspark.sql" not in sys.modules or "Cannot connect" in state.load("copy").reason


@pytest.mark.parametrize(
    "command",
    [["dlq-report"], ["dlq-report", "orders"], ["redrive", "--topic", "orders"], ["replay", "a", "--to", "b"]],
)
def test_no_broker_is_told_by_those_that_end_too(command, state, capsys) -> None:
    assert main.run(["pipeline", *command, "--bootstrap", "127.0.0.1:1"]) == Exit.UNREACHABLE
    said = capsys.readouterr().err
    assert "Cannot connect to 127.0.0.1:1" in said
    assert "starting Spark" not in said


@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
@pytest.mark.parametrize("command", [["run", "FILE"], ["archive", "orders", "--to", "lake"]])
def test_a_missing_extra_is_told_before_anything_is_done(command, module, file, state, monkeypatch, capsys) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == module else find(name, *more))
    given = [str(file) if word == "FILE" else word for word in command]
    assert main.run(["pipeline", *given, "--bootstrap", "127.0.0.1:1"]) == Exit.USAGE
    said = "error: PySpark is not installed: pip install 'penstock[spark]', in a clone pip install '.[spark]'\n"
    assert capsys.readouterr().err == said
    assert state.all() == []


def test_a_built_in_is_called_by_its_own_name_and_what_it_works_on(monkeypatch) -> None:
    names = []
    monkeypatch.setattr("penstock.cli.pipeline._execute", lambda pipeline, *_, **__: names.append(pipeline.head.name))
    assert main.run(["pipeline", "dlq-report"]) == Exit.OK
    assert main.run(["pipeline", "archive", "shop", "--to", "lake"]) == Exit.OK
    assert names == ["dlq-report", "archive-shop-lake"]


@pytest.mark.parametrize(
    ("kind", "table", "told"),
    [
        ("stats", 'topics = ["a"]\nto = "b"\nevery = "5 minuts"', '6: [stats] every: "5 minuts" is not a duration such as "10s"'),
        ("stats", 'topics = ["a"]\nto = "b"\nstart = "erliest"', '6: [stats] start: "erliest" is not "earliest"'),
        ("stats", 'topics = ["a"]', "3: [stats]: specify where to write the results"),
        ("archive", 'topics = ["a"]\nto = "l"\ntier = true\nlocal_retention = "soon"', '7: [archive] local_retention: "soon" is not'),
        ("archive", 'topics = ["a"]\nto = "l"\nlocal_retention = "1h"', "3: [archive]: --local-retention requires --tier"),
        ("stats", 'topics = ["a"]\nto = "b"\nlateness = 10', '6: [stats] lateness: got 10, expected a string; write "10s"'),
        ("replay", 'topic = "a"\nto = "b"\nto_time = "soon"', '6: [replay] to_time: "soon" is not a time such as'),
        ("replay", 'topic = "a"\nto = "b"\nfrom_offset = 3\nto_offset = 2', "7: [replay] to_offset: The range ends before it starts"),
        ("redrive", 'topic = ["a"]\nmax = 0', "5: [redrive] max: 0 is too small; specify 1 or more"),
        ("dlq-report", "limit = 0", "4: [dlq-report] limit: 0 is not a number from 1 to 10000"),
        ("transform", 'from = ["a"]\nto = "b"\nsql = "SELECT * FROM c"', "6: [transform] sql: unknown source or step c; available: a"),
    ],
)  # fmt: skip
def test_the_values_of_a_built_in_are_checked_with_their_lines(kind, table, told, file, capsys) -> None:
    file.write_text(f'[pipeline]\nkind = "{kind}"\n[{kind}]\n{table}\n')
    assert main.run(["pipeline", "check", str(file)]) == Exit.USAGE
    assert capsys.readouterr().err.startswith(f"error: {file}:{told}")


def a_stopped_copy(state, file, **more) -> None:
    state.checkpoint("copy").mkdir(parents=True)
    given = {
        "name": "copy",
        "state": PipelineState.STOPPED,
        "file": str(file),
        "checkpoint": str(state.checkpoint("copy")),
    }
    state.save(a_run(os.getpid(), **given | more))


def test_a_file_that_continues_from_the_checkpoint_of_another_says_so(file, state, capsys) -> None:
    a_stopped_copy(state, "/elsewhere/first.toml")
    assert main.run(["pipeline", "run", str(file), "-b", "127.0.0.1:1"]) == Exit.UNREACHABLE
    note, *rest = capsys.readouterr().err.splitlines()
    assert (
        note
        == "Continues from the checkpoint of /elsewhere/first.toml; use --name or --checkpoint to start from the beginning"
    )
    assert not any("Continues" in line for line in rest)


@pytest.mark.parametrize("words", [["--name", "other"], ["--checkpoint", "CHECKPOINT"]])
def test_a_file_that_starts_anew_says_nothing_of_others(words, file, state, tmp_path, capsys) -> None:
    a_stopped_copy(state, "/elsewhere/first.toml")
    given = [str(tmp_path / "c") if word == "CHECKPOINT" else word for word in words]
    assert main.run(["pipeline", "run", str(file), "-b", "127.0.0.1:1", *given]) == Exit.UNREACHABLE
    assert "Continues" not in capsys.readouterr().err


def test_a_file_that_continues_from_its_own_checkpoint_says_nothing(file, state, capsys) -> None:
    a_stopped_copy(state, file.parent / "x" / ".." / file.name)
    assert main.run(["pipeline", "run", str(file), "-b", "127.0.0.1:1"]) == Exit.UNREACHABLE
    assert "Continues" not in capsys.readouterr().err


def test_nothing_ran_yet(state, capsys) -> None:
    assert main.run(["pipeline", "ls"]) == Exit.OK
    assert capsys.readouterr().err == "No pipeline has run yet; see penstock pipeline run --help\n"
    assert main.run(["pipeline", "status", "x"]) == Exit.NOT_FOUND


def test_what_runs_is_listed(state, capsys) -> None:
    state.save(a_run(os.getpid()))
    assert main.run(["pipeline", "ls"]) == Exit.OK
    shown = capsys.readouterr().out
    for word in ("big", "running", "rows read", "1,200", "88.2", "7", str(os.getpid())):
        assert word in shown
    assert main.run(["pipeline", "ls", "-o", "json"]) == Exit.OK
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["state"], row["rows"], row["lag"], row["last_batch"]) == ("big", "running", 1200, 7, 4)


def test_the_status_of_one_that_was_killed(state, sleeper, capsys) -> None:
    state.save(a_run(sleeper.pid))
    sleeper.kill()
    sleeper.wait()
    assert main.run(["pipeline", "status", "big"]) == Exit.OK
    shown = capsys.readouterr().out
    assert f"failed: its process (pid {sleeper.pid}) was killed or crashed" in shown
    assert "topic-big" in shown
    assert "rows read" in shown
    assert main.run(["pipeline", "status", "big", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["state"] == "failed"


def test_stop_tells_the_process_and_waits_for_its_end(state, sleeper, capsys) -> None:
    state.save(a_run(sleeper.pid))
    assert main.run(["pipeline", "stop", "big"]) == Exit.OK
    assert sleeper.wait() == 7
    # A real run says "stopped" of itself; this one is only gone.
    assert capsys.readouterr().err == "Pipeline big is failed\n"
    assert main.run(["pipeline", "stop", "big"]) == Exit.OK
    assert capsys.readouterr().err == "Pipeline big is not running: failed\n"


def test_one_that_does_not_stop_is_killed_only_when_asked_for(state, capsys) -> None:
    program = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        state.save(a_run(child.pid))
        assert main.run(["pipeline", "stop", "big", "--timeout", "0"]) == Exit.FAILED
        assert f"Pipeline big (pid {child.pid}) has not ended after 0 s; wait, or add --kill" in capsys.readouterr().err
        assert main.run(["pipeline", "stop", "big", "--timeout", "0.01", "--kill"]) in (Exit.OK, Exit.FAILED)
        assert child.wait() == -signal.SIGKILL


def test_forget(state, sleeper, capsys) -> None:
    state.save(a_run(sleeper.pid))
    assert main.run(["pipeline", "forget", "big"]) == Exit.FAILED
    state.save(a_run(sleeper.pid, state=PipelineState.STOPPED))
    capsys.readouterr()
    assert main.run(["pipeline", "forget", "big"]) == Exit.OK
    assert capsys.readouterr().err == "Forgot pipeline big; its checkpoint is still in there\n"
    assert state.all() == []
    assert main.run(["pipeline", "forget", "big"]) == Exit.NOT_FOUND
    assert capsys.readouterr().err == f"error: Pipeline big does not exist in {state.folder}\n"


def test_a_checkpoint_in_the_state_folder_is_forgotten_too_when_asked_for(state, sleeper, capsys) -> None:
    place = state.checkpoint("big") / "topic-big"
    place.mkdir(parents=True)
    (place / "metadata").write_text("{}")
    state.checkpoint("other").mkdir()
    given = {"checkpoint": str(state.checkpoint("big"))}
    state.save(a_run(sleeper.pid, **given))
    assert main.run(["pipeline", "forget", "big", "--checkpoint"]) == Exit.FAILED
    assert place.exists()
    state.save(a_run(sleeper.pid, state=PipelineState.FAILED, **given))
    capsys.readouterr()
    assert main.run(["pipeline", "forget", "big", "--checkpoint"]) == Exit.OK
    assert capsys.readouterr().err == "Forgot pipeline big and deleted its checkpoint\n"
    assert state.all() == []
    assert [path.name for path in (state.folder / "checkpoints").iterdir()] == ["other"]


@pytest.mark.parametrize("place", ["elsewhere", "s3a://bucket/checkpoints/big", "state/checkpoints", "state"])
def test_a_checkpoint_elsewhere_is_left_to_its_owner(place, state, sleeper, tmp_path, capsys) -> None:
    (tmp_path / "elsewhere").mkdir()
    (state.folder / "checkpoints").mkdir(parents=True)
    there = place if "://" in place else str(tmp_path / place)
    state.save(a_run(sleeper.pid, state=PipelineState.FAILED, checkpoint=there))
    assert main.run(["pipeline", "forget", "big", "--checkpoint"]) == Exit.USAGE
    assert f"is not in the state folder; remove {there} yourself" in capsys.readouterr().err
    assert state.load("big").state is PipelineState.FAILED
    assert (tmp_path / "elsewhere").exists()
    assert (state.folder / "checkpoints").exists()


def test_a_built_in_has_help_made_of_its_declaration(capsys) -> None:
    assert main.run(["pipeline", "stats", "--help"]) == Exit.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "Usage: penstock pipeline stats [OPTIONS]" in shown
    assert "The topics to measure. [required]" in shown
    assert "--lateness TIME How late a record may be and still count. [default: 1 minute]" in shown
    assert "--detach" in shown


def test_one_that_ends_has_no_options_of_streams(capsys) -> None:
    assert main.run(["pipeline", "dlq-report", "--help"]) == Exit.OK
    assert "--checkpoint" not in capsys.readouterr().out


def test_what_runs_in_the_background_starts_nothing_there_itself(file, state, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PENSTOCK_PIPELINE_LOG", "copy.log")
    assert main.run(["pipeline", "run", str(file), "-yd", "-b", "127.0.0.1:1"]) == Exit.UNREACHABLE
    assert state.load("copy").state is PipelineState.FAILED


def test_one_that_fails_in_the_background_fails_here(file, state, monkeypatch, capsys) -> None:
    arguments = ["pipeline", "run", str(file), "--detach", "-b", "127.0.0.1:1"]
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    assert main.run(arguments) == Exit.UNREACHABLE
    told = capsys.readouterr().err
    assert "Pipeline copy did not start" in told
    assert "Cannot connect to 127.0.0.1:1" in told
