"""How people name a place in a topic."""

from datetime import UTC, datetime

import pytest

from penstock.cli.failures import Exit, Failure
from penstock.cli.places import ReadFrom, moment, parse_moment, parse_place, parse_record

NOON_MS = int(datetime(2026, 1, 31, 12, 0, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", ReadFrom()),
        ("latest", ReadFrom(latest=True)),
        ("0", ReadFrom(offset=0)),
        ("99999999999", ReadFrom(offset=99_999_999_999)),
        ("100000000000", ReadFrom(moment_ms=100_000_000_000)),
        ("offset:100000000000", ReadFrom(offset=100_000_000_000)),
        ("2026-01-31T12:00:00Z", ReadFrom(moment_ms=NOON_MS)),
        ("2026-01-31T13:00:00.000+01:00", ReadFrom(moment_ms=NOON_MS)),
        ("2026-01-31 12:00:00+00:00", ReadFrom(moment_ms=NOON_MS)),
    ],
)
def test_a_place_is_read(text, place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize("text", ["", "-1", "first", "offset:x", "2026-13-01", "1.5", "٣"])
def test_what_is_no_place_is_refused_with_examples(text) -> None:
    with pytest.raises(Failure, match="write earliest, latest, an offset, or a time") as caught:
        parse_place(text)
    assert caught.value.code is Exit.USAGE


def test_a_moment_without_a_zone_is_local_time() -> None:
    local_midnight = datetime(2026, 1, 31).astimezone()
    local = datetime(2026, 1, 31, 12, 0).astimezone()
    assert parse_moment("2026-01-31T12:00", "--to-datetime") == int(local.timestamp() * 1000)
    assert parse_moment("2026-01-31", "--to-datetime") == int(local_midnight.timestamp() * 1000)


def test_a_moment_may_be_milliseconds_of_any_size() -> None:
    assert parse_moment("5", "--to-datetime") == 5


def test_a_record_is_named_by_topic_partition_and_offset() -> None:
    assert parse_record("orders.v1/0@42") == ("orders.v1", 0, 42)
    assert str(parse_record("orders/3@7")) == "orders/3@7"
    for wrong in ("orders", "orders/0", "orders@1", "/0@1", "orders/-1@1", "orders/0@x", "a/b/0@1", ""):
        with pytest.raises(Failure, match="is not a record: write TOPIC/PARTITION@OFFSET"):
            parse_record(wrong)


def test_a_moment_is_written_as_it_can_be_given_back() -> None:
    assert moment(None) is None
    assert moment(1_767_225_600_123) == "2026-01-01T00:00:00.123Z"
    assert parse_moment("2026-01-01T00:00:00.123Z", "--since") == 1_767_225_600_123
