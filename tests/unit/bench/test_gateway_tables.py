"""The tables of the gateways beside Redis, and how replies of Redis are read."""

import pytest

from bench.gateways.redis_rows import COUNTERPARTS, REDIS_BY_NAME, Reply
from bench.gateways.run import NAMES, GatewayReport
from bench.gateways.tables import markdown
from bench.peers.redis import command_frame
from bench.results import Result
from penstock.bench.faults import BenchError
from penstock.bench.rows import Row


def result(system: str, name: str, turn: int, *, rate: float = 1000.0, p50: float = 50.0, flush: str = "os") -> Result:
    row = Row(
        workload=name,
        acks=None,
        seconds=1.0,
        records=1000,
        records_per_s=rate,
        mb_per_s=rate / 1e4,
        requests_per_s=rate,
        p50_us=p50,
        p99_us=p50 * 4,
        p999_us=p50 * 8,
        broker_cpu_s=0.005,
        broker_cpu_s_per_mb=None,
        broker_cpu_s_per_1000_requests=None,
        broker_cores=0.5,
        broker_rss_mb=10.0,
        broker_rss_anon_mb=5.0,
        generator_cores=0.5,
    )
    return Result(system, flush, turn, row)


def line_of(tables: str, name: str) -> str:
    (line,) = (line for line in tables.splitlines() if line.startswith(f"| {name} |") and line.count("|") > 4)
    return line


def test_every_row_has_a_counterpart_that_exists() -> None:
    assert set(COUNTERPARTS) == set(NAMES)
    assert set(COUNTERPARTS.values()) == set(REDIS_BY_NAME)


def test_the_best_rounds_are_compared_and_an_overlap_is_marked() -> None:
    report = GatewayReport({"date": "today"})
    report.results += [result("penstock", "tcp-64", turn, rate=rate) for turn, rate in enumerate((900.0, 1000.0))]
    report.results += [result("redis", "xadd-64", turn, rate=rate) for turn, rate in enumerate((1500.0, 2000.0))]
    report.results += [result("penstock", "grpc-unary", turn, rate=rate) for turn, rate in enumerate((1600.0, 4000.0))]
    tables = markdown(report)
    assert line_of(tables, "tcp-64").endswith("| xadd-64 | 2.00 k | 5.00 | 0.50 |")
    assert line_of(tables, "grpc-unary").endswith("| 2.00 ~ |")


def test_of_a_delivery_less_is_better() -> None:
    report = GatewayReport({})
    report.results += [result("penstock", "delivery-grpc", turn, p50=p50) for turn, p50 in enumerate((500.0, 400.0))]
    report.results += [result("redis", "delivery-xread", turn, p50=p50) for turn, p50 in enumerate((100.0, 120.0))]
    assert line_of(markdown(report), "delivery-grpc").endswith("| 100 us | 400 us | 0.25 |")


def test_without_redis_there_are_numbers_and_no_ratio() -> None:
    report = GatewayReport({}, missing={"redis": "no redis-server on the PATH"})
    report.results.append(result("penstock", "queue-1", 0, flush="sync"))
    tables = markdown(report)
    assert "no redis-server on the PATH" in tables
    assert "## Synced" in tables
    assert "## Unsynced" not in tables
    assert line_of(tables, "queue-1").endswith("| - | - | - |")


def redis_reply(entries: int) -> bytes:
    listed = b"".join(
        b"*2\r\n" + b"$15\r\n1700000000000-%d\r\n" % n + command_frame(b"f", b"v" * 100) for n in range(entries)
    )
    return b"*1\r\n*2\r\n$5\r\nbench\r\n*%d\r\n" % entries + listed


@pytest.mark.parametrize("piece", [1, 50, 1000])
def test_a_reply_of_redis_is_whole_with_its_last_value(piece) -> None:
    reply = Reply()
    for _ in range(2):
        data = memoryview(redis_reply(5))
        names = [reply.feed(data[at : at + piece]) for at in range(0, len(data), piece)]
        assert names[:-1] == [None] * (len(names) - 1)
        assert names[-1] == [b"1700000000000-%d" % n for n in range(5)]


def test_nothing_to_read_and_an_error_are_told_apart() -> None:
    assert Reply().feed(memoryview(b"*-1\r\n")) == []
    with pytest.raises(BenchError, match="NOGROUP"):
        Reply().feed(memoryview(b"-NOGROUP no such group\r\n"))
