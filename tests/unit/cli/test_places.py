"""How people name a place in a topic."""

from datetime import UTC, datetime

import pytest

from penstock.cli.failures import Exit, Failure
from penstock.cli.places import Place, parse_moment, parse_place

NOON_MS = int(datetime(2026, 1, 31, 12, 0, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place()),
        ("latest", Place(latest=True)),
        ("0", Place(offset=0)),
        ("99999999999", Place(offset=99_999_999_999)),
        ("100000000000", Place(moment_ms=100_000_000_000)),
        ("offset:100000000000", Place(offset=100_000_000_000)),
        ("2026-01-31T12:00:00Z", Place(moment_ms=NOON_MS)),
        ("2026-01-31T13:00:00.000+01:00", Place(moment_ms=NOON_MS)),
        ("2026-01-31 12:00:00+00:00", Place(moment_ms=NOON_MS)),
    ],
)
def test_a_place_is_read(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize("text", ["", "-1", "first", "offset:x", "2026-13-01", "1.5", "٣"])
def test_what_is_no_place_is_refused_with_examples(text):
    with pytest.raises(Failure, match="write earliest, latest, an offset, or a moment") as caught:
        parse_place(text)
    assert caught.value.code is Exit.USAGE


def test_a_moment_without_a_zone_is_local_time():
    local_midnight = datetime(2026, 1, 31).astimezone()
    local = datetime(2026, 1, 31, 12, 0).astimezone()
    assert parse_moment("2026-01-31T12:00", "--to-datetime") == int(local.timestamp() * 1000)
    assert parse_moment("2026-01-31", "--to-datetime") == int(local_midnight.timestamp() * 1000)


def test_a_moment_may_be_milliseconds_of_any_size():
    assert parse_moment("5", "--to-datetime") == 5
