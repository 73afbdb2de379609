"""penstock queue, penstock dlq and penstock why, against a broker in a process of its own."""

import itertools
import os
import pty
import signal
import subprocess
import sys

import pytest

from penstock.client import QueueAdmin, QueueClient
from tests.support.waiting import eventually

numbers = itertools.count()
SECONDS_MAX = 60
GROUP = "workers"


@pytest.fixture
def http(broker_process):
    return broker_process.addresses["http"]


@pytest.fixture
def queue_environment(environment, broker_process, http):
    return {**environment, "PENSTOCK_BOOTSTRAP": broker_process.bootstrap, "PENSTOCK_HTTP": http}


@pytest.fixture
def cli(penstock, broker_process, http, monkeypatch):
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker_process.bootstrap)
    monkeypatch.setenv("PENSTOCK_HTTP", http)
    return penstock


@pytest.fixture
def queue(cli):
    """The name of a topic with one partition."""
    name = f"queue-{next(numbers)}"
    cli("topic", "create", name)
    return name


def produce(http, topic, count, **options) -> None:
    with QueueClient(http) as client:
        for number in range(count):
            client.produce(topic, b"value %d" % number, key=b"anna", **options)


def die(cli, http, topic, count, reason="bank is down") -> None:
    """That many records of the topic become dead letters."""
    produce(http, topic, count, max_attempts=1)
    leased = cli("queue", "lease", topic, "-g", GROUP, "-n", str(count), "-o", "json").json
    assert len(leased) == count
    cli("queue", "nack", *(row["record"] for row in leased), "-g", GROUP, "--reason", reason)
    eventually(lambda: open_count(http, topic) == count, what="the dead letters are there")


def open_count(http, topic):
    with QueueAdmin(http) as admin:
        return sum(each.open for each in admin.dead_letter_topics() if each.topic == topic)


def test_a_queue_worked_by_hand(cli, queue, http) -> None:
    produce(http, queue, 3)
    leased = cli("queue", "lease", queue, "--group", GROUP, "-n", "2")
    assert [line.split()[0] for line in leased.out.splitlines()[2:]] == [f"{queue}/0@0", f"{queue}/0@1"]
    assert f"to finish one: penstock queue ack {queue}/0@0 --group {GROUP}" in leased.err
    (row,) = [row for row in cli("queue", "ls", "-o", "json").json if row["topic"] == queue]
    assert (row["group"], row["lag"], row["leased"], row["ready"], row["untouched"]) == (GROUP, 3, 2, 0, 1)
    assert cli("queue", "ack", f"{queue}/0@0", "-g", GROUP).err == "Acked 1 record\n"
    cli("queue", "nack", f"{queue}/0@1", "-g", GROUP, "--reason", "no stock")
    peeked = cli("queue", "peek", queue, "-g", GROUP, "-o", "ndjson").lines
    assert [(row["offset"], row["state"], row["last_error"]) for row in peeked] == [
        (1, "ready", "no stock"),
        (2, "untouched", None),
    ]
    again = cli("queue", "lease", queue, "-g", GROUP, "--owner", "me", "-o", "json").json
    assert [(row["offset"], row["attempts"], row["value"], row["owner"]) for row in again] == [(1, 2, "value 1", "me")]


def test_only_the_owner_can_finish_a_record(cli, queue, http) -> None:
    produce(http, queue, 1)
    cli("queue", "lease", queue, "-g", GROUP, "--owner", "somebody")
    refused = cli("queue", "ack", f"{queue}/0@0", "-g", GROUP, code=1)
    assert refused.err.startswith(f"error: not owner: {queue}/0@0 is leased by somebody until ")
    assert refused.err.endswith("it is delivered again if it is not acked by then (FAILED_PRECONDITION)\n")
    cli("queue", "ack", f"{queue}/0@0", "-g", GROUP, "--owner", "somebody")
    assert cli("queue", "peek", queue, "-g", GROUP).err == f"No unfinished records in {queue} for {GROUP}\n"
    assert (
        cli("queue", "lease", queue, "-g", GROUP).err == f"No records to lease in {queue} for {GROUP} at the moment\n"
    )


def test_why_a_record_is_not_delivered(cli, queue, http) -> None:
    produce(http, queue, 2)
    cli("queue", "lease", queue, "-g", GROUP, "--owner", "somebody")
    said = cli("why", f"{queue}/0@0", "--group", GROUP).out
    assert said.startswith(f"{queue}/0@0 is leased by somebody until ")
    assert said.count("\n") == 1
    document = cli("why", f"{queue}/0@0", "--group", GROUP, "-o", "json").json
    assert (document["state"], document["owner"], document["attempts"]) == ("leased", "somebody", 1)
    (line,) = cli("why", f"{queue}/0@9", "--group", GROUP, "-o", "ndjson").lines
    assert line["state"] == "beyond_end"
    cli("why", "no-such-topic/0@0", "--group", GROUP, code=3)
    cli("why", f"{queue}/7@0", "--group", GROUP, code=3)


def test_what_is_not_there(cli) -> None:
    for words in (
        ("queue", "peek", "no-such-topic", "-g", GROUP),
        ("queue", "lease", "no-such-topic", "-g", GROUP),
        ("dlq", "show", "no-such-topic"),
        ("dlq", "redrive", "no-such-topic", "--yes"),
    ):
        assert "; see penstock queue ls and penstock topic ls\n" in cli(*words, code=3).err


def test_a_port_that_does_not_speak_http(cli, broker_process) -> None:
    refused = cli("queue", "ls", "--http", broker_process.bootstrap, code=4)
    assert refused.err.startswith("error: ")
    assert refused.out == ""


def test_dead_letters_are_shown_planned_and_redriven(cli, queue, http) -> None:
    die(cli, http, queue, 3)
    (row,) = [row for row in cli("dlq", "ls", "-o", "json").json if row["topic"] == queue]
    assert row == {"topic": queue, "dead_letter_topic": f"dlq.{queue}", "open": 3}
    shown = cli("dlq", "show", queue, "--reason", "bank*", "--max", "2", "-o", "json").json
    assert [(row["came_from"], row["group"], row["attempts"], row["last_error"]) for row in shown] == [
        (f"{queue}/0@{offset}", GROUP, 1, "bank is down") for offset in (0, 1)
    ]
    assert cli("dlq", "show", queue, "--reason", "other").err == f"No open dead letters of {queue} match\n"
    plan = cli("dlq", "redrive", queue, "--dry-run")
    assert "bank is down" in plan.out
    assert plan.err == "Nothing was redriven; run it without --dry-run to do it\n"
    refused = cli("dlq", "redrive", queue, code=2)
    assert "add --yes to redrive 3 dead letters" in refused.err
    assert open_count(http, queue) == 3
    assert cli("dlq", "redrive", queue, "--yes", "--max", "1").err.endswith("1 redriven\n")
    document = cli("dlq", "redrive", queue, "--yes", "--rate", "1000", "-o", "json").json
    assert (document["planned"], document["redriven"], document["failed"]) == (2, 2, 0)
    assert [reason["reason"] for reason in document["reasons"]] == ["bank is down"]
    peeked = cli("queue", "peek", queue, "-g", GROUP, "-o", "json").json
    assert [(row["value"], row["attempts"]) for row in peeked] == [(f"value {number}", 0) for number in range(3)]
    nothing = cli("dlq", "redrive", queue, "--yes")
    assert nothing.err == f"No open dead letters of {queue} match\n"


def test_purged_dead_letters_are_not_open_any_more_and_stay_readable(cli, queue, http) -> None:
    die(cli, http, queue, 2)
    (line,) = cli("dlq", "purge", queue, "--yes", "--max", "1", "-o", "ndjson").lines
    assert (line["purged"], line["failed"]) == (1, 0)
    assert open_count(http, queue) == 1
    assert cli("consume", f"dlq.{queue}").out == "value 0\nvalue 1\n"


def test_a_person_is_asked_and_may_say_no(queue_environment, cli, queue, http) -> None:
    die(cli, http, queue, 1)
    for answer, code, left in ((b"n\n", 1, 1), (b"y\n", 0, 0)):
        terminal, theirs = pty.openpty()
        try:
            os.write(terminal, answer)
            done = subprocess.run(
                [sys.executable, "-m", "penstock", "dlq", "redrive", queue],
                stdin=theirs,
                capture_output=True,
                env=queue_environment,
                timeout=SECONDS_MAX,
                check=False,
            )
        finally:
            os.close(terminal)
            os.close(theirs)
        assert done.returncode == code, done
        assert f"Redrive 1 dead letters of {queue}?".encode() in done.stderr
        assert open_count(http, queue) == left


def test_a_redrive_that_is_interrupted_says_so_and_goes_on_when_it_is_run_again(
    queue_environment, cli, queue, http
) -> None:
    die(cli, http, queue, 8)
    redrive = subprocess.Popen(
        [sys.executable, "-m", "penstock", "dlq", "redrive", queue, "--yes", "--rate", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=queue_environment,
    )
    try:
        eventually(lambda: open_count(http, queue) <= 7, what="the first dead letter is moved")
        redrive.send_signal(signal.SIGINT)
        _, errors = redrive.communicate(timeout=SECONDS_MAX)
    finally:
        redrive.kill()
        redrive.wait()
    assert redrive.returncode == 130
    assert b"run it again to continue" in errors
    assert b"Traceback" not in errors
    left = open_count(http, queue)
    assert 0 < left < 8
    cli("dlq", "redrive", queue, "--yes")
    assert open_count(http, queue) == 0
    peeked = cli("queue", "peek", queue, "-g", GROUP, "-o", "json").json
    assert sorted(row["value"] for row in peeked) == [f"value {number}" for number in range(8)]
