import json

import pytest
from rich.console import Console

from penstock.bench.report import as_json, as_table, duration, number
from penstock.bench.rows import Row


def row(**changes) -> Row:
    fields = {
        "workload": "single-64",
        "acks": "all",
        "seconds": 2.0,
        "records": 2000,
        "records_per_s": 1000.0,
        "mb_per_s": 0.1,
        "requests_per_s": 1000.0,
        "p50_us": 50.0,
        "p99_us": 1500.0,
        "p999_us": None,
        "broker_cpu_s": 0.5,
        "broker_cpu_s_per_mb": 2.5,
        "broker_cpu_s_per_1000_requests": 0.25,
        "broker_cores": 0.25,
        "broker_rss_mb": 80.0,
        "broker_rss_anon_mb": 60.0,
        "generator_cores": 0.9,
    }
    return Row(**(fields | changes))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.1234, "0.12"),
        (12.34, "12.3"),
        (123.4, "123"),
        (72_300, "72.3 k"),
        (1_340_000, "1.34 M"),
        (0, "0.00"),
    ],
)
def test_numbers_have_three_digits_that_matter(value, text) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (46.2, "46.2 us"), (1500, "1.50 ms"), (250_000, "250 ms")])
def test_durations_choose_their_unit(value, text) -> None:
    assert duration(value) == text


def test_json_has_every_number_of_every_row() -> None:
    parsed = json.loads(as_json([row(), row(workload="fetch-1m", acks=None)], {"bootstrap": "h:1", "pid": None}))
    assert parsed["about"] == {"bootstrap": "h:1", "pid": None}
    assert [entry["workload"] for entry in parsed["rows"]] == ["single-64", "fetch-1m"]
    assert parsed["rows"][0]["p99_us"] == 1500.0
    assert parsed["rows"][1]["p999_us"] is None


def test_the_table_shows_each_row_with_its_latency_and_cost() -> None:
    text = Console(width=250)
    with text.capture() as captured:
        text.print(as_table([row()], "title", wide=True))
    line = next(line for line in captured.get().splitlines() if "single-64" in line)
    for cell in ("1.00 k", "50.0 us", "1.50 ms", "2.50 k", "250", "0.90", "80.0"):
        assert cell in line


def test_the_usual_table_fits_into_80_columns() -> None:
    text = Console(width=80)
    widest = row(workload="librdkafka-out", records_per_s=1.34e6, mb_per_s=1340.0, p50_us=46.2, p99_us=12_300.0)
    with text.capture() as captured:
        text.print(as_table([widest], "title"))
    lines = captured.get().splitlines()
    (heading,) = [line for line in lines if "workload" in line]
    for column in ("acks", "records/s", "MB/s", "p50", "p99", "CPU s/GB"):
        assert column in heading
    (line,) = [line for line in lines if "librdkafka-out" in line]
    for cell in ("1.34 M", "1.34 k", "46.2 us", "12.3 ms", "2.50 k"):
        assert cell in line


def test_a_row_is_named_by_its_workload_and_acks() -> None:
    assert row().id == "single-64/acks=all"
    assert row(workload="fetch-1m", acks=None).id == "fetch-1m"
