"""From a line to a request: the fields of each type, and the errors for missing and invalid ones.

One decoder for all types is the fast path. A line that it rejects is decoded again, slowly: an invalid field that the type does not
use is ignored, and one that it uses is named in the error.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, cast

import msgspec

from penstock.core.publish import NewRecord
from penstock.gateways.tcp.errors import INVALID_FIELD, INVALID_JSON, UNKNOWN_TYPE, Refused, shown
from penstock.records.records import Headers
from penstock.text import BASE64, bytes_of

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


class Request(
    msgspec.Struct,
    rename={"group_id": "groupId", "consumer_id": "consumerId", "key_encoding": "keyEncoding"},
    gc=False,
):
    """All fields of all types; null counts as absent. ``type`` is one of :data:`FIELDS`."""

    type: str | None = None
    topic: str | None = None
    value: str | None = None
    key: str | None = None
    partition: int | None = None
    offset: int | None = None
    max: int | None = None
    partitions: int | None = None
    group_id: str | None = None
    consumer_id: str | None = None
    encoding: str | None = None
    key_encoding: str | None = None


class _Fields(msgspec.Struct, frozen=True):
    needed: tuple[str, ...]
    missing: str
    """The error if one of them is missing."""
    optional: tuple[str, ...] = ()


FIELDS: Final[Mapping[str, _Fields]] = {
    "createTopic": _Fields(("topic",), "Missing topic", ("partitions",)),
    "deleteTopic": _Fields(("topic",), "Missing topic"),
    "produce": _Fields(("topic", "value"), "Missing topic or value", ("key", "partition", "encoding", "keyEncoding")),
    "fetch": _Fields(("topic", "partition", "offset"), "Missing topic/partition/offset", ("max",)),
    "commit": _Fields(("groupId", "topic", "partition", "offset"), "Missing groupId/topic/partition/offset"),
    "metrics": _Fields(("topic", "partition"), "Missing topic/partition", ("groupId",)),
    "listTopics": _Fields((), ""),
    "joinGroup": _Fields(("groupId", "topic", "consumerId"), "Missing groupId/topic/consumerId"),
    "leaveGroup": _Fields(("groupId", "consumerId"), "Missing groupId/consumerId"),
    "auth": _Fields((), ""),
    "heartbeat": _Fields(("groupId", "consumerId"), "Missing groupId/consumerId"),
}
_NAMES: Final = {field.encode_name: field.name for field in msgspec.structs.fields(Request)}
_INTEGERS: Final = frozenset({"partition", "offset", "max", "partitions"})
_MAY_BE_EMPTY: Final = frozenset({"value", "key", "encoding", "keyEncoding"})
_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a number",
    float: "a fraction",
    str: "a string",
    list: "an array",
}

_plain_record: Final[Callable[[tuple[bytes | None, bytes, Headers, int | None, None]], NewRecord]] = partial(
    tuple.__new__, NewRecord
)
"""Takes half the time of the constructor, which counts for every line."""
_decode: Final = msgspec.json.Decoder(Request).decode
_decode_any: Final = msgspec.json.Decoder().decode


def parse(line: bytes) -> Request:
    """The request in a line; :class:`Refused` if it is invalid."""
    try:
        request = _decode(line)
    except (ValueError, RecursionError):
        return _parse_slowly(line)
    if request.type == "produce":
        if not request.topic or request.value is None:
            raise Refused(INVALID_FIELD, FIELDS["produce"].missing)
        if request.partition is None:
            return request
    _check(request)
    return request


def _check(request: Request) -> None:
    if request.type is None:
        raise Refused(INVALID_FIELD, "Missing type")
    fields = FIELDS.get(request.type)
    if fields is None:
        raise Refused(UNKNOWN_TYPE, f"Unknown type: {shown(request.type)}")
    for name in fields.needed:
        given = getattr(request, _NAMES[name])
        if given is None or (given == "" and name not in _MAY_BE_EMPTY):
            raise Refused(INVALID_FIELD, fields.missing)
    for name in _INTEGERS:
        # Offsets and partitions are smaller, and errors must not repeat numbers of a thousand digits.
        given = getattr(request, name)
        if given is not None and not INT_MIN <= given <= INT_MAX:
            raise Refused(INVALID_FIELD, f"Invalid {name}: the number is too large")


def _parse_slowly(line: bytes) -> Request:
    try:
        given = _decode_any(line)
    except RecursionError:
        raise Refused(INVALID_JSON, "Invalid JSON: it is nested too deeply") from None
    except UnicodeDecodeError:
        raise Refused(INVALID_JSON, "Invalid JSON: it is not UTF-8") from None
    except ValueError as error:
        raise Refused(INVALID_JSON, f"Invalid JSON: {_plain(str(error))}") from None
    if not isinstance(given, dict):
        raise Refused(INVALID_JSON, 'Invalid JSON: a request is an object, such as {"type": "listTopics"}')
    wanted = given.get("type")
    if wanted is not None and not isinstance(wanted, str):
        raise Refused(UNKNOWN_TYPE, f"Unknown type: {shown(msgspec.json.encode(wanted).decode())}")
    fields = FIELDS.get(wanted or "")
    used = () if fields is None else (*fields.needed, *fields.optional)
    right = {name: given[name] for name in used if _is_right(name, given.get(name))}
    request = Request(type=wanted, **{_NAMES[name]: value for name, value in right.items()})
    for name in used:
        if name not in right and given.get(name) is not None:
            _check_others(request, fields, name)
            wanted_kind = "an integer" if name in _INTEGERS else "a string"
            raise Refused(INVALID_FIELD, f"Invalid {name}: give {wanted_kind}, not {_kind(given[name])}")
    _check(request)
    return request


def _check_others(request: Request, fields: _Fields | None, wrong: str) -> None:
    """A missing field takes precedence, because its error text is fixed."""
    for name in () if fields is None else fields.needed:
        if name != wrong and getattr(request, _NAMES[name]) is None:
            raise Refused(INVALID_FIELD, cast(_Fields, fields).missing)


def _is_right(name: str, value: object) -> bool:
    return type(value) is (int if name in _INTEGERS else str)


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "an object")


def _plain(text: str) -> str:
    """The parser's error text without its jargon."""
    return text.removeprefix("JSON is malformed: ").replace("Input data was truncated", "it ends too early")


def new_record(request: Request) -> NewRecord:
    """The record of a produce; :class:`Refused` if a text does not match its encoding."""
    key, value = request.key, request.value or ""
    if request.encoding is None and request.key_encoding is None:
        return _plain_record((None if key is None else key.encode(), value.encode(), (), request.partition, None))
    return NewRecord(
        None if key is None else _bytes("key", key, "keyEncoding", request.key_encoding),
        _bytes("value", value, "encoding", request.encoding),
        (),
        request.partition,
    )


def _bytes(name: str, text: str, encoding_name: str, encoding: str | None) -> bytes:
    if encoding not in (None, BASE64):
        raise Refused(INVALID_FIELD, f'Invalid {encoding_name}: give "base64", or leave it out for text')
    try:
        return bytes_of(text, encoding)
    except ValueError:
        raise Refused(INVALID_FIELD, f"Invalid {name}: it is not base64") from None
