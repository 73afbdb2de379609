"""penstock bench: against a real broker, for a moment."""

SHORT = ("--seconds", "0.1", "--warmup", "0", "--acks", "1", "--only", "single-1")


def test_a_row_for_people_fits_80_columns_unless_all_is_wanted(penstock):
    usual = penstock("bench", *SHORT)
    assert "single-1" in usual.out
    assert max(map(len, usual.out.splitlines())) <= 80
    assert "requests/s" not in usual.out
    wide = penstock("bench", *SHORT, "--wide")
    for heading in ("requests/s", "p99.9", "CPU s/M req", "RSS MB"):
        assert heading in wide.out


def test_a_row_for_programs(penstock):
    document = penstock("bench", *SHORT, "-o", "json").json
    assert document["about"]["brokers"] == 1
    assert [row["workload"] for row in document["rows"]] == ["single-1"]
    (row,) = penstock("bench", *SHORT, "-o", "ndjson").lines
    assert (row["workload"], row["acks"]) == ("single-1", "1")
    assert row["records"] > 0
