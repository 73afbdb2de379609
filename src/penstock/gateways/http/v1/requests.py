"""From a query string or a body to a request of ``/v1``.

A body that is not empty takes precedence over the query string. Unknown names are refused in both, because a misspelled ``lease_ms``
that is silently ignored is hard to find. In a query string, a name without a value counts as absent, old clients' names have aliases
(:data:`ALIASES`), and the first of two equal names counts.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from penstock.core.security.lanes import authorise_lane
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.errors import UnknownTopicError
from penstock.gateways.http.server.routing import HttpCall, Parameter
from penstock.gateways.http.tarantoolmq.models import Encoding
from penstock.gateways.http.v1.models import (
    ATTEMPTS_MAX,
    INT64_MAX,
    MILLISECONDS_MAX,
    Count,
    EnvelopeFields,
    Milliseconds,
    ProduceRequest,
    RetryPolicy,
    StrictRequest,
    WorkerRequest,
)
from penstock.operations.operation import Action

R = TypeVar("R", bound=StrictRequest)

QUERY_FIELDS_MAX: Final = 64
"""More than any request has."""

ENCODINGS: Final = frozenset(get_args(Encoding))

NO_SUCH_TOPIC: Final = "topic does not exist (create it first)"

Reader = Callable[[str, str], object]
"""From the name of a field and its text in the query string to its value; INVALID_REQUEST if it is invalid."""


def refuse(text: str) -> PenstockError:
    """An error for an invalid request."""
    return PenstockError(Reason.INVALID_REQUEST, text)


def _text(_: str, text: str) -> str:
    return text


def _encoding(name: str, text: str) -> str:
    if text not in ENCODINGS:
        raise refuse(f"invalid {name}: omit it for text, or use base64")
    return text


def _trimmed(_: str, text: str) -> str:
    return text.strip()


def _integer(low: int, high: int, name: str, text: str) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = None
    # int() takes other scripts' digits, underscores and any length.
    if number is None or not text.isascii() or "_" in text or abs(number) > INT64_MAX:
        raise refuse(f"invalid {name}: give an integer")
    if number < low:
        raise refuse(f"invalid {name}: give an integer that is not negative")
    if number > high:
        raise refuse(f"invalid {name}: the limit is {high}")
    return number


_count: Final = partial(_integer, 0, INT64_MAX)
_milliseconds: Final = partial(_integer, 0, MILLISECONDS_MAX)


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise refuse(f"invalid {name}: give a number") from None
    if not 0 <= number < math.inf:
        raise refuse(f"invalid {name}: give a number that is not negative")
    return number


def _counts(name: str, text: str) -> list[int]:
    return [_count(name, part) for part in text.split(",")]


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise refuse(f"invalid {name}: give true or false")
    return text == "true"


_UNTRIMMED: Final = frozenset({"key", "value", "reason", "error"})
_READERS: Final[Mapping[Any, Reader]] = {
    str: _trimmed,
    bool: _flag,
    float: _number,
    Encoding: _encoding,
    list[Count]: _counts,
}
"""By type. Integers depend on their bounds."""


class QueryField(NamedTuple):
    """A field that a query string may have, and its documentation."""

    read: Reader
    parameter: Parameter


@cache
def query_fields(model: type[StrictRequest]) -> Mapping[str, QueryField]:
    """The fields that a query string may have, by name, from the types in the model. Structures can only be in a body."""
    found: dict[str, QueryField] = {}
    for name, hint in get_type_hints(model, include_extras=True).items():
        kind = get_args(hint)[0] if get_origin(hint) in (Union, UnionType) else hint
        metas = getattr(kind, "__metadata__", ())
        kind = kind.__origin__ if metas else kind
        reader = _text if name in _UNTRIMMED else _READERS.get(kind)
        for meta in metas:
            if kind is int and meta.ge is not None:
                reader, kind = partial(_integer, meta.ge, meta.le), Annotated[int, meta]
        if reader is not None:
            description = next((meta.description for meta in metas if meta.description), "")
            found[name] = QueryField(reader, Parameter(name, str if reader is _counts else kind, description))
    return found


def parameters_of(model: type[StrictRequest], required: Container[str] = ()) -> tuple[Parameter, ...]:
    """The documentation of the fields that a query string may have."""
    fields = query_fields(model).values()
    return tuple(replace(field.parameter, required=field.parameter.name in required) for field in fields)


_RETRY_FIELDS: Final[Mapping[str, str]] = {f"retry_{name}": name for name in query_fields(RetryPolicy)}
_PRODUCE_FIELDS: Final = query_fields(ProduceRequest)
_ENVELOPE_FIELDS: Final = query_fields(EnvelopeFields)

ALIASES: Final[Mapping[str, str]] = {
    "tenant": "tenant_id",
    "idem_key": "idempotency_key",
    "deadline_rfc3339": "deadline",
}


def read(model: type[R], query: bytes, body: bytes | bytearray) -> R:
    """The request; INVALID_REQUEST if it is not valid. If it has a body, its fields in the query string must be valid nevertheless."""
    pairs = _pairs(query)
    if body:
        request = decode(model, body)
        if pairs:
            known = _PRODUCE_QUERY_FIELDS if model is ProduceRequest else query_fields(model)
            _read_pairs(model, {name: text for name, text in pairs.items() if name in known})
        return request
    return _read_pairs(model, pairs)


def _read_pairs(model: type[R], pairs: Mapping[str, str]) -> R:
    if model is ProduceRequest:
        return _produce(pairs)  # type: ignore[return-value]  # mypy does not narrow R by its value
    values: dict[str, object] = {}
    known = query_fields(model)
    for name, text in pairs.items():
        field = known.get(name)
        if field is None:
            raise _unknown(name, model.__struct_fields__)
        values[name] = field.read(name, text)
    return model(**values)


def decode(model: type[R], body: bytes | bytearray) -> R:
    """A request from JSON."""
    try:
        return msgspec.json.decode(body, type=model)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(f"invalid json body: {error}") from None


def rfc3339(unix_ms: int) -> str | None:
    """A time in the form of the envelope; None if it is out of range."""
    try:
        moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_ms(name: str, text: str) -> int:
    """Unix milliseconds of a text in RFC 3339; a time without a time zone is refused."""
    try:
        moment = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise refuse(f"invalid {name}: use RFC 3339 with a time zone, such as 2030-01-31T12:00:00Z")
    return int(moment.timestamp() * 1000)


def _pairs(query: bytes) -> dict[str, str]:
    if not query:
        return {}
    found: dict[str, str] = {}
    for name, text in _split(query):
        # Only in a key and in a value are blanks significant.
        if (text and not text.isspace()) or (text and name in ("key", "value")):
            found.setdefault(name, text)
    return found


def _split(query: bytes) -> Iterable[tuple[str, str]]:
    try:
        text = query.decode("ascii")
        if "%" in text or "+" in text or text.count("&") >= QUERY_FIELDS_MAX:
            return parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError:
        raise refuse(
            f"invalid query string: give at most {QUERY_FIELDS_MAX} fields, in UTF-8 with percent signs for the rest"
        ) from None
    # Most requests of workers need no decoding.
    return [(name, value) for name, _, value in (pair.partition("=") for pair in text.split("&"))]


def _unknown(name: str, known: tuple[str, ...]) -> PenstockError:
    shown = name if len(name) <= 64 else f"{name[:61]}..."
    takes = f"the fields are {', '.join(known)}" if known else "there are no fields"
    return refuse(f"unknown field: {shown}; {takes}")


def _produce(pairs: Mapping[str, str]) -> ProduceRequest:
    top: dict[str, object] = {}
    envelope: dict[str, object] = {}
    retry: dict[str, object] = {}
    for given, text in pairs.items():
        name = ALIASES.get(given, given)
        if name != given and name in pairs:
            continue
        if name in _ENVELOPE_FIELDS:
            envelope[name] = _ENVELOPE_FIELDS[name].read(given, text)
        elif name in _RETRY_FIELDS:
            retry[_RETRY_FIELDS[name]] = number = _milliseconds(given, text)
            if name == "retry_max_attempts" and number > ATTEMPTS_MAX:
                raise refuse(f"invalid {given}: {ATTEMPTS_MAX} is the limit, and 0 means no limit")
        elif name == "deadline_ms":
            moment = rfc3339(_count(given, text))
            if moment is None:
                raise refuse(f"invalid {given}: use unix time in milliseconds, before the year 10000")
            envelope.setdefault("deadline", moment)
        elif name in _PRODUCE_FIELDS:
            top[name] = _PRODUCE_FIELDS[name].read(given, text)
        else:
            raise _unknown(given, _PRODUCE_QUERY_FIELDS)
    if retry:
        envelope["retry_policy"] = RetryPolicy(**retry)  # type: ignore[arg-type]  # _count gives whole numbers
    if envelope:
        top["envelope"] = EnvelopeFields(**envelope)  # type: ignore[arg-type]  # each reader gives its field's type
    return ProduceRequest(**top)  # type: ignore[arg-type]  # texts all of them


PRODUCE_PARAMETERS: Final = (
    *parameters_of(ProduceRequest),
    *parameters_of(EnvelopeFields),
    *map(Parameter, ALIASES),
    Parameter("deadline_ms", Milliseconds, "the same as unix time in milliseconds"),
    *(replace(parameter, name=f"retry_{parameter.name}") for parameter in parameters_of(RetryPolicy)),
)
_PRODUCE_QUERY_FIELDS: Final = tuple(parameter.name for parameter in PRODUCE_PARAMETERS)


class Names(NamedTuple):
    """The queue and the name of a worker."""

    topic: str
    group: str
    owner: str


def names_of(request: WorkerRequest) -> Names:
    """The names in a worker's request; INVALID_REQUEST if one is missing."""
    topic, group, owner = request.topic.strip(), request.group.strip(), request.owner.strip()
    if not (topic and group and owner):
        raise refuse("topic, group, and owner are required")
    return Names(topic, group, owner)


def require_topic(call: HttpCall, name: str, action: Action) -> Topic:
    """A topic; the refusal of this API if it does not exist, which only those may know that have the right to the action.

    Whether the caller may do anything to a topic that exists, the operation checks.
    """
    topic = call.gateway.broker.topics.get(name)
    if topic is None:
        authorise_lane(call.gateway.broker, call.caller, action, name)
        raise UnknownTopicError(name, NO_SUCH_TOPIC)
    return topic
