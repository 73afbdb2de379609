"""penstock sink, against a broker in a process of its own."""

import itertools
import os
import pty
import subprocess
import sys

import pytest

from penstock.client import RequestRefused, SinkClient

numbers = itertools.count()
SECONDS_MAX = 60


@pytest.fixture
def http(broker_process):
    return broker_process.addresses["http"]


@pytest.fixture
def cli(penstock, http, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HTTP", http)
    return penstock


@pytest.fixture
def sinks(http):
    with SinkClient(http) as client:
        yield client


@pytest.fixture
def sink(sinks):
    """The name of a sink that committed batch 7."""
    name = f"cli-{next(numbers)}"
    opened = sinks.open(name, remember_ms=86_400_000)
    sinks.commit(name, 7, [], staging_id=opened.staging_id)
    return name


def is_there(sinks, sink) -> bool:
    try:
        sinks.status(sink)
    except RequestRefused as error:
        assert error.is_not_found
        return False
    return True


def test_sinks_are_listed(cli, sink, sinks) -> None:
    sinks.open(f"{sink}-new")
    rows = {row["sink"]: row for row in cli("sink", "ls", "-o", "json").json}
    assert (rows[sink]["last_batch_id"], rows[sink]["staged_bytes"], rows[sink]["problem"]) == (7, 0, None)
    assert rows[f"{sink}-new"]["last_batch_id"] is rows[f"{sink}-new"]["remembered_to"] is None
    table = cli("sink", "ls").out.splitlines()
    assert table[0].split() == ["sink", "last", "batch", "id", "used", "staged", "bytes", "committing", "problem"]
    assert [line.split()[1] for line in table if line.startswith(f"{sink} ")] == ["7"]


def test_a_sink_is_shown(cli, sink) -> None:
    shown = cli("sink", "show", sink, "-o", "json").json
    assert (shown["sink"], shown["staging_topic"]) == (sink, f"__staging.{sink}")
    assert shown["committed"] <= shown["used"] < shown["remembered_to"]
    lines = cli("sink", "show", sink).out.splitlines()
    assert lines[:2] == [f"sink:           {sink}", "last batch id:  7"]
    assert not [line for line in lines if line.startswith("problem")]
    (line,) = cli("sink", "show", sink, "-o", "ndjson").lines
    # Reckoned anew each time from two clocks, each cut to a millisecond.
    reckoned = {name: line[name] for name in ("used", "remembered_to")}
    assert line == {**shown, **reckoned}
    assert line["committed"] <= line["used"] < line["remembered_to"]


def test_a_deleted_sink_is_forgotten(cli, sink, sinks) -> None:
    sinks.open(f"{sink}-more")
    assert cli("sink", "delete", sink, f"{sink}-more").err == f"Deleted sink {sink}\nDeleted sink {sink}-more\n"
    assert not is_there(sinks, sink)
    assert cli("sink", "delete", sink, "--if-exists").err == f"Sink {sink} does not exist\n"


def test_a_sink_that_is_not_there_is_exit_code_3(cli) -> None:
    for verb in ("show", "delete"):
        missing = cli("sink", verb, "no-such-sink", code=3)
        assert missing.err == "error: Sink no-such-sink does not exist; see penstock sink ls\n"
        assert missing.out == ""


def test_a_person_is_asked_and_may_say_no(environment, http, sink, sinks) -> None:
    for answer, code, left in ((b"n\n", 1, True), (b"y\n", 0, False)):
        terminal, theirs = pty.openpty()
        try:
            os.write(terminal, answer)
            done = subprocess.run(
                [sys.executable, "-m", "penstock", "sink", "delete", sink],
                stdin=theirs,
                capture_output=True,
                env={**environment, "PENSTOCK_HTTP": http},
                timeout=SECONDS_MAX,
                check=False,
            )
        finally:
            os.close(terminal)
            os.close(theirs)
        assert done.returncode == code, done
        assert f"Delete {sink}? A batch that is sent again would be appended again.".encode() in done.stderr
        assert is_there(sinks, sink) is left
