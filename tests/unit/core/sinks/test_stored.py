"""What lies in ``__sinks`` is read as it was written, and by nobody who cannot."""

from uuid import UUID

import pytest

from penstock.core.sinks.stored import Intent, StoredSink, Target, decode, encode, encode_key, merged

TARGET = Target(topic="t", topic_id=UUID(int=5), partition=3, end_offset=7, staged=[(0, 4), (9, 10)])
STORED = StoredSink(
    since_ms=1,
    staging_id=UUID(int=6),
    staged_from=2,
    last_batch_id=3,
    committed_ms=4,
    producer_id=5,
    producer_epoch=6,
    intent=Intent(batch_id=4, targets=[TARGET]),
    remember_ms=7,
    used_ms=8,
)


@pytest.mark.parametrize("stored", [STORED, StoredSink(since_ms=9)])
def test_a_sink_comes_back_as_it_was(stored) -> None:
    assert decode(encode_key("q.0"), encode(stored)) == ("q.0", stored)


def test_it_lies_there_as_a_later_version_will_find_it() -> None:
    assert encode(StoredSink(since_ms=9)) == (
        b'{"version":1,"since_ms":9,"staging_id":null,"staged_from":0,"last_batch_id":null,"committed_ms":null,'
        b'"producer_id":-1,"producer_epoch":-1,"intent":null,"remember_ms":null,"used_ms":null}'
    )
    assert b'"targets":[{"topic":"t","topic_id":"00000000-0000-0000-0000-000000000005","partition":3' in encode(STORED)


def test_what_was_stored_before_sinks_were_forgotten_is_read() -> None:
    before = b'{"version":1,"since_ms":9,"staged_from":0,"last_batch_id":3,"committed_ms":10,"producer_id":-1,"producer_epoch":-1}'
    read = decode(b"q", before)
    assert read is not None
    assert (read[1].remember_ms, read[1].last_used_ms) == (None, 10)


def test_the_last_use_is_the_latest_of_all_that_is_stored() -> None:
    for since_ms, committed_ms, used_ms in ((9, 1, 2), (1, 9, 2), (1, None, 9), (9, None, None)):
        assert StoredSink(since_ms=since_ms, committed_ms=committed_ms, used_ms=used_ms).last_used_ms == 9


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"q", b"{"), (b"q", b"{}"), (b"q", b'{"version": 2, "since_ms": 1}'), (b"\xff", encode(STORED)), (b"q", b"\xff")],
)
def test_what_cannot_be_read_is_nothing(key, value) -> None:
    assert decode(key, value) is None


def test_a_target_knows_how_many_records_it_gets() -> None:
    assert TARGET.record_count == 5


def test_ranges_that_touch_are_one_and_the_order_stays() -> None:
    assert merged([(0, 2), (2, 3), (5, 6), (3, 5), (6, 7)]) == [(0, 3), (5, 6), (3, 5), (6, 7)]
    assert merged([(5, 6), (6, 8)]) == [(5, 8)]
    assert merged([]) == []
