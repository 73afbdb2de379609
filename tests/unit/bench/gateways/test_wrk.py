"""What wrk reports, and wrk itself where it is installed."""

import shutil

import pytest

from penstock.bench.faults import BenchError
from penstock.bench.gateways import wrk
from tests.unit.bench.gateways.scripted import scripted_server

LINE = "penstock-bench requests=1200 us=2000000 refused={} broken={} p50=500 p99=900 p999=1500\n"


def test_the_line_of_the_script_is_read() -> None:
    assert wrk.parse("Running 2s test\n" + LINE.format(0, 0)) == wrk.WrkSample(2.0, 1200, 500, 900, 1500)


@pytest.mark.parametrize(("refused", "broken", "says"), [(3, 0, "refused 3"), (0, 2, "2 connections broke")])
def test_a_refused_request_or_a_broken_connection_fails_the_row(refused, broken, says) -> None:
    with pytest.raises(BenchError, match=says):
        wrk.parse(LINE.format(refused, broken))


def test_a_report_that_is_missing_is_said() -> None:
    with pytest.raises(BenchError, match="Cannot read the report"):
        wrk.parse("unable to connect")


@pytest.mark.skipif(shutil.which("wrk") is None, reason=wrk.MISSING)
def test_wrk_sends_the_body_and_its_answers_are_counted() -> None:
    requests = []

    def make_answer():
        def answer(data: bytes) -> bytes:
            requests.append(data)
            return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

        return answer

    with scripted_server(make_answer) as address:
        sample = wrk.run(
            address, "/topics/t/messages", b'{"value":"v"}', connections=2, seconds=1, content_type="application/json"
        )
    assert 0 < sample.requests <= len(requests) <= sample.requests + 4
    (request,) = set(requests)
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /topics/t/messages HTTP/1.1\r\n")
    assert b"Content-Type: application/json" in head
    assert body == b'{"value":"v"}'
