"""Answers, as lines: ``{"ok": true, "data": ...}`` or ``{"ok": false, "error": ...}``."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.publish import Placed
from penstock.gateways.tcp.requests import Request
from penstock.text import text_of

_encoder: Final = msgspec.json.Encoder()
_encode: Final = _encoder.encode
encode_lines: Final = _encoder.encode_lines


class Record(msgspec.Struct, rename={"key_encoding": "keyEncoding"}, gc=False):
    """A record as clients see it. Where bytes are not UTF-8, base64 stands for them and an encoding beside it says so."""

    offset: int
    timestamp: str | None
    value: str | None
    key: str | None
    partition: int | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    key_encoding: str | UnsetType = UNSET


class Answer(msgspec.Struct, gc=False):
    """A line that says yes."""

    ok: bool
    data: object


class Refusal(msgspec.Struct, gc=False):
    """A line that says no."""

    ok: bool
    error: str


class _Data(msgspec.Struct):
    """What the smaller answers carry; what is not set is not there."""

    topic: str | UnsetType = UNSET
    partitions: int | tuple[int, ...] | UnsetType = UNSET
    groupId: str | UnsetType = UNSET  # noqa: N815 - as it stands on the wire


class Metrics(msgspec.Struct, rename="camel"):
    """What a partition holds, and how far a group has read it."""

    begin_offset: int
    end_offset: int
    size: int
    committed_offset: int | None
    lag: int


def refusal(text: str) -> bytes:
    """An error line."""
    return _encode(Refusal(False, text)) + b"\n"


def answer(data: object) -> bytes:
    """The line for any data."""
    return _encode(Answer(True, data)) + b"\n"


def topic_answer(topic: str, partitions: int) -> bytes:
    """Of createTopic."""
    return answer(_Data(topic=topic, partitions=partitions))


def deleted_answer(topic: str) -> bytes:
    """Of deleteTopic."""
    return answer(_Data(topic=topic))


def group_answer(group_id: str) -> bytes:
    """Of what a group is told."""
    return answer(_Data(groupId=group_id))


def partitions_answer(partitions: tuple[int, ...]) -> bytes:
    """Of joinGroup."""
    return answer(_Data(partitions=partitions))


def produced(request: Request, placed: Placed) -> Answer:
    """The record that a produce made. What the client gave as text comes back as it is."""
    partition, offset, timestamp_ms = placed
    time = iso_time(timestamp_ms)
    if request.encoding is None and request.key_encoding is None:
        return Answer(True, Record(offset, time, request.value, request.key, partition))
    encoding = UNSET if request.encoding is None else request.encoding
    key_encoding = UNSET if request.key_encoding is None or request.key is None else request.key_encoding
    return Answer(True, Record(offset, time, request.value, request.key, partition, encoding, key_encoding))


def record(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> Record:
    """A record that was read."""
    value_text, encoding = text_of(value)
    key_text, key_encoding = text_of(key)
    return Record(offset, iso_time(timestamp_ms), value_text, key_text, UNSET, encoding or UNSET, key_encoding or UNSET)


@lru_cache(maxsize=4096)
def iso_time(timestamp_ms: int) -> str | None:
    """As ISO 8601 in UTC; None for a record that has no time, or one that no calendar has."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
