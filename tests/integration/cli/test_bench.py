"""penstock bench: against a real broker, for a moment."""

SHORT = ("--seconds", "0.1", "--warmup", "0", "--acks", "1", "--only", "single-1")


def test_a_row_for_people_fits_80_columns_unless_all_is_wanted(penstock) -> None:
    usual = penstock("bench", *SHORT)
    assert "single-1" in usual.out
    assert max(map(len, usual.out.splitlines())) <= 80
    assert "requests/s" not in usual.out
    wide = penstock("bench", *SHORT, "--wide")
    for heading in ("requests/s", "p99.9", "CPU s/M req", "RSS MB"):
        assert heading in wide.out


def test_a_row_for_programs(penstock) -> None:
    document = penstock("bench", *SHORT, "-o", "json").json
    assert document["about"]["brokers"] == 1
    assert [row["workload"] for row in document["rows"]] == ["single-1"]
    (row,) = penstock("bench", *SHORT, "-o", "ndjson").lines
    assert (row["workload"], row["acks"]) == ("single-1", "1")
    assert row["records"] > 0


GATEWAYS = ("--gateways", "--seconds", "0.1", "--warmup", "0")


def test_a_row_of_a_gateway_and_why_another_is_left_out(penstock, broker_process) -> None:
    places = ("-b", broker_process.bootstrap, "--http", broker_process.addresses["http"], "--tcp", "off")
    done = penstock("bench", *GATEWAYS, *places, "--only", "queue-1,tcp-64", "-o", "ndjson")
    (row,) = done.lines
    assert row["workload"] == "queue-1"
    assert row["records"] > 0
    assert "Leaving out tcp-64: the broker's tcp listener is off" in done.err


def test_without_any_row_to_run_it_fails(penstock) -> None:
    done = penstock("bench", *GATEWAYS, "--only", "tcp-64", "--tcp", "off", code=2)
    assert "None of the workloads can run here" in done.err


def test_the_rows_of_the_gateways_are_listed(penstock) -> None:
    assert "http-batch-100" in penstock("bench", "--gateways", "--list").out
    assert "http-batch-100" not in penstock("bench", "--list").out
