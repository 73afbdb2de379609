import pytest

from penstock.core.publish import NewRecord
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.records import new_record
from penstock.wire.mq.mq_generated import PublishRequest


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        ({}, NewRecord(None, b"")),
        ({"payload": b"\xff"}, NewRecord(None, b"\xff")),
        ({"key": b""}, NewRecord(b"", b"")),
        ({"key": b"k", "partition": 0}, NewRecord(b"k", b"", (), 0)),
        ({"timestamp_ms": 5}, NewRecord(None, b"", timestamp_ms=5)),
        ({"timestamp_ms": 0}, NewRecord(None, b"")),
        ({"tombstone": True}, NewRecord(None, None)),
        ({"tombstone": True, "payload": b"x"}, NewRecord(None, b"x")),
        ({"headers": {"a": "grün"}}, NewRecord(None, b"", (("a", "grün".encode()),))),
        ({"headers": {"a": "/wA="}, "base64_headers": ["a"]}, NewRecord(None, b"", (("a", b"\xff\x00"),))),
        ({"headers": {"a": "/wA="}}, NewRecord(None, b"", (("a", b"/wA="),))),
    ],
)
def test_what_is_sent_becomes_the_record(fields, record) -> None:
    assert new_record(PublishRequest(**fields)) == record


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"headers": {"a": "x"}, "base64_headers": ["b"]},
            "base64_headers names 'b', which is not among the headers",
        ),
        (
            {"headers": {"a": "???"}, "base64_headers": ["a"]},
            "Header 'a' is listed in base64_headers, but is not base64",
        ),
        ({"headers": {"a": "ü"}, "base64_headers": ["a"]}, "Header 'a' is listed in base64_headers, but is not base64"),
    ],
)
def test_what_cannot_be_a_record_is_refused(fields, text) -> None:
    with pytest.raises(PenstockError) as caught:
        new_record(PublishRequest(**fields))
    assert (caught.value.reason, caught.value.text) == (Reason.INVALID_RECORD, text)
