"""The tables of the side-by-side run."""

import pytest

from bench.results import Cost, Report, Result, best_rows, markdown, ratio
from penstock.bench.rows import Row


def result(
    system: str, turn: int, *, flush: str = "os", workload: str = "single-64", rate: float = 1000.0, p50: float = 50.0
) -> Result:
    row = Row(
        workload=workload,
        acks="all",
        seconds=1.0,
        records=1000,
        records_per_s=rate,
        mb_per_s=rate / 10,
        requests_per_s=rate,
        p50_us=p50,
        p99_us=p50 * 4,
        p999_us=p50 * 8,
        broker_cpu_s=0.5,
        broker_cpu_s_per_mb=0.002,
        broker_cpu_s_per_1000_requests=0.004,
        broker_cores=0.5,
        broker_rss_mb=10.0,
        broker_rss_anon_mb=5.0,
        generator_cores=0.5,
    )
    return Result(system, flush, turn, row)


SYSTEMS = {"penstock": "Penstock", "kafka": "Apache Kafka", "redis": "Redis"}


def line_of(text: str, *starts: str) -> list[str]:
    found = [line for line in text.splitlines() if all(start in line for start in starts)]
    return [cell.strip() for cell in found[0].strip("|").split("|")]


@pytest.mark.parametrize(
    ("value", "base", "more_is_better", "expected"),
    [
        (300, 100, True, 3.0),
        (50, 100, True, 0.5),
        (50, 100, False, 2.0),
        (400, 100, False, 0.25),
        (100, 100, False, 1.0),
    ],
)
def test_a_ratio_above_one_is_better_whichever_way_is_better(value, base, more_is_better, expected) -> None:
    assert ratio(value, base, more_is_better=more_is_better) == expected


@pytest.mark.parametrize(("value", "base"), [(None, 1), (1, None), (0, 1), (1, 0)])
def test_a_ratio_that_cannot_be_said_is_none(value, base) -> None:
    assert ratio(value, base, more_is_better=True) is None


def test_the_best_round_counts_by_what_the_row_is_about() -> None:
    best = best_rows(
        [result("kafka", 0, rate=900, p50=40), result("kafka", 1, rate=1000, p50=60), result("kafka", 2, rate=950)]
    )
    assert best["kafka", "os", "single-64/acks=all"].requests_per_s == 1000
    by_latency = [
        result("kafka", 0, workload="single-1", p50=40, rate=900),
        result("kafka", 1, workload="single-1", p50=60),
    ]
    assert best_rows(by_latency)["kafka", "os", "single-1/acks=all"].p50_us == 40


def test_ratios_compare_with_kafka_both_for_rates_and_for_times() -> None:
    report = Report(systems=SYSTEMS)
    report.results = [
        result("penstock", 0, rate=3000),
        result("kafka", 0, rate=1000),
        result("penstock", 0, workload="single-1", p50=50),
        result("kafka", 0, workload="single-1", p50=125),
    ]
    text = markdown(report)
    assert line_of(text, "single-64", "requests/s") == [
        "single-64/acks=all",
        "requests/s",
        "3.00 k",
        "3.00 ~",
        "1.00 k",
    ]
    assert line_of(text, "single-1/", "p50") == ["single-1/acks=all", "p50", "50.0 us", "2.50 ~", "125 us"]
    assert line_of(text, "single-64", "CPU us per request")[2:] == ["4.00", "1.00 ~", "4.00"]


def test_a_system_without_a_row_has_a_dash_and_no_ratio() -> None:
    report = Report(systems=SYSTEMS)
    report.results = [
        result("penstock", 0, workload="produce-1m", rate=2000),
        result("kafka", 0, workload="produce-1m", rate=1000),
        result("redis", 0, rate=500),
    ]
    assert line_of(markdown(report), "produce-1m", "MB/s")[2:] == ["200", "2.00 ~", "100", "-", "-"]


def test_a_ratio_is_marked_when_the_rounds_do_not_bear_it_out() -> None:
    report = Report(systems=SYSTEMS)
    apart = [
        result("penstock", 0, rate=2000),
        result("penstock", 1, rate=1500),
        result("kafka", 0, rate=1000),
        result("kafka", 1, rate=1400),
    ]
    report.results = apart
    assert line_of(markdown(report), "single-64", "requests/s")[3] == "1.43"
    report.results = [*apart, result("kafka", 2, rate=1600)]
    assert line_of(markdown(report), "single-64", "requests/s")[3] == "1.25 ~"


def test_synced_and_unsynced_rows_stay_apart() -> None:
    report = Report(systems=SYSTEMS)
    report.results = [result("kafka", 0, rate=1000), result("kafka", 0, flush="sync", rate=100)]
    text = markdown(report)
    unsynced, synced = text.index("## Unsynced"), text.index("## Synced")
    assert "1.00 k" in text[unsynced:synced]
    assert "| 100 |" in text[synced:]


def test_without_kafka_there_are_numbers_and_no_ratios() -> None:
    report = Report(systems={"penstock": "Penstock"}, missing={"kafka": "no java on the PATH"})
    report.results = [result("penstock", 0)]
    text = markdown(report)
    assert "| x Kafka |" not in text
    assert "flush = sync" not in text
    assert "kafka: not measured, no java on the PATH" in text


def test_costs_and_failures_are_said() -> None:
    report = Report(systems=SYSTEMS, failures=["redis, flush = os: it fell over"])
    report.costs = [
        Cost("penstock", 0.4, 60.0, 50.0, partitions=10_000, ready_with_partitions_s=0.5, served_with_partitions_s=3.2)
    ]
    text = markdown(report)
    assert "10,000" in text
    assert "3.20 s" in text
    assert "- redis, flush = os: it fell over" in text
