"""The sequences that DriftQ-Core's own documents show, command by command with curl, with nothing before, between or after them.

Their leases are a few seconds. Where the machine had no time for the next command within a lease, a test tries again with a longer one.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.testing.process import BrokerProcess
from tests.conformance.driftq.client import Curled, Driftq
from tests.support.waiting import eventually, growing

TOO_LATE = 409


@contextmanager
def fresh(folder: Path) -> Iterator[Driftq]:
    with BrokerProcess(folder, {"groups.offsets_topic_partitions": 4}, http="127.0.0.1:0") as broker:
        driftq = Driftq(broker.addresses["http"])
        yield driftq
        driftq.close()


@contextmanager
def consuming(driftq: Driftq, query: str) -> Iterator[Iterator[dict]]:
    """``curl -N`` in a terminal of its own, until it is stopped with Ctrl-C."""
    words = ["curl", "-sS", "-N", f"{driftq.url}/v1/consume?{query}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        yield (json.loads(line) for line in curl.stdout)
        curl.send_signal(2)


def first_line(driftq: Driftq, query: str) -> dict:
    """``curl -N ... | head -1``."""
    with consuming(driftq, query) as lines:
        return next(lines)


def post(driftq: Driftq, target: str) -> Curled:
    return driftq.curl("-X", "POST", target)


def settle(driftq: Driftq, call: str, line: dict, more: str = "") -> int:
    place = f"partition={line['partition']}&offset={line['offset']}"
    return post(driftq, f"/v1/{call}?topic=demo&group=g1&owner=c1&{place}{more}").status


@pytest.mark.parametrize("keeps_open", [True, False], ids=["in a second terminal", "piped to head"])
def test_hello_world(tmp_path: Path, keeps_open: bool) -> None:
    for lease_seconds in growing(5.0):
        with fresh(tmp_path / f"{lease_seconds}") as driftq:
            assert driftq.curl("/v1/healthz").json == {"status": "ok"}

            assert post(driftq, "/v1/topics?name=demo&partitions=1").status == 201

            produced = post(driftq, "/v1/produce?topic=demo&value=hello")
            assert produced.status == 200
            assert (produced.json["status"], produced.json["topic"]) == ("produced", "demo")

            query = f"topic=demo&group=g1&owner=c1&lease_ms={int(lease_seconds * 1000)}"
            if keeps_open:
                with consuming(driftq, query) as lines:
                    line = next(lines)
                    status = settle(driftq, "ack", line)
            else:
                line = first_line(driftq, query)
                status = settle(driftq, "ack", line)
            shown = ("partition", "offset", "attempts", "key", "value", "last_error")
            assert [line[name] for name in shown] == [0, 0, 1, "", "hello", ""]
            if status != TOO_LATE:
                assert status == 204
                return
    pytest.fail("the machine had no time for an ack within any lease")


@pytest.mark.parametrize("keeps_open", [True, False], ids=["in a second terminal", "piped to head"])
def test_retries_and_dead_letters(tmp_path: Path, keeps_open: bool) -> None:
    for lease_seconds in growing(2.0):
        with fresh(tmp_path / f"{lease_seconds}") as driftq:
            post(driftq, "/v1/topics?name=demo&partitions=1")
            post(driftq, "/v1/produce?topic=demo&value=needs-retry&retry_max_attempts=3&retry_backoff_ms=500")
            query = f"topic=demo&group=g1&owner=c1&lease_ms={int(lease_seconds * 1000)}"
            seen = list(failing(driftq, query) if keeps_open else failing_piped(driftq, query))
            if any(status == TOO_LATE for _, status in seen):
                continue
            assert [(line["attempts"], line["last_error"], status) for line, status in seen] == [
                (1, "", 204),
                (2, "processing_failed", 204),
                (3, "processing_failed", 204),
            ]
            dead = eventually(lambda: dead_letter(driftq), what="the dead letter, a moment after the last nack")
            told = ("value", "original_topic", "original_partition", "original_offset", "attempts", "last_error")
            assert [dead[name] for name in told] == ["needs-retry", "demo", 0, 0, 3, "processing_failed"]
            return
    pytest.fail("the machine had no time for a nack within any lease")


def dead_letter(driftq: Driftq) -> dict | None:
    """What the stream of dead letters gives first; None while there is no such topic."""
    found = first_line(driftq, "topic=dlq.demo&group=dlq&owner=dlq1&lease_ms=5000")
    return found if "value" in found else None


def failing(driftq: Driftq, query: str) -> Iterator[tuple[dict, int]]:
    """Each delivery on one stream, and the status of its nack."""
    with consuming(driftq, query) as lines:
        for line, _ in zip(lines, range(3), strict=False):
            yield line, settle(driftq, "nack", line, "&reason=processing_failed")
            if line["attempts"] == 3:
                return


def failing_piped(driftq: Driftq, query: str) -> Iterator[tuple[dict, int]]:
    """The same, each delivery on a stream of its own."""
    for _ in range(3):
        line = first_line(driftq, query)
        yield line, settle(driftq, "nack", line, "&reason=processing_failed")


def test_two_short_connections_are_one_attempt(tmp_path: Path) -> None:
    for lease_seconds in growing(5.0):
        with fresh(tmp_path / f"{lease_seconds}") as driftq:
            post(driftq, "/v1/topics?name=t&partitions=1")
            post(driftq, "/v1/produce?topic=t&value=hello&retry_max_attempts=2")
            query = f"topic=t&group=g&owner=o&lease_ms={int(lease_seconds * 1000)}"
            lines = [first_line(driftq, query) for _ in range(2)]
            status = post(driftq, "/v1/ack?topic=t&group=g&owner=o&partition=0&offset=0").status
            if status == TOO_LATE or lines[1]["attempts"] != 1:
                assert lines[1]["last_error"] in ("", "ack_timeout")
                continue
            assert status == 204
            assert [(line["offset"], line["attempts"], line["last_error"]) for line in lines] == [(0, 1, "")] * 2
            assert driftq.curl("/v1/topics").json == {"topics": ["t"]}
            return
    pytest.fail("the machine had no time for an ack within any lease")
