"""From a query string or a body to a request of ``/v1``.

A body that is not empty takes precedence over the query string. Unknown names are refused in both, because a misspelled ``lease_ms``
that is silently ignored is hard to find. In a query string, a name without a value counts as absent, old clients' names have aliases
(:data:`ALIASES`), and the first of two equal names counts.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar, get_args
from urllib.parse import parse_qsl

import msgspec

from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.errors import UnknownTopicError
from penstock.gateways.http.server.routing import HttpCall
from penstock.gateways.http.tarantoolmq.models import Encoding
from penstock.gateways.http.v1.models import (
    ATTEMPTS_MAX,
    INT64_MAX,
    MILLISECONDS_MAX,
    EnvelopeFields,
    ProduceRequest,
    RetryPolicy,
    StrictRequest,
    WorkerRequest,
)

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


def _whole(name: str, text: str) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = None
    # int() takes other scripts' digits, underscores and any length.
    if number is None or not text.isascii() or "_" in text or abs(number) > INT64_MAX:
        raise refuse(f"invalid {name}: give an integer")
    return number


def _count(name: str, text: str) -> int:
    number = _whole(name, text)
    if number < 0:
        raise refuse(f"invalid {name}: give an integer that is not negative")
    return number


def _milliseconds(name: str, text: str) -> int:
    number = _count(name, text)
    if number > MILLISECONDS_MAX:
        raise refuse(f"invalid {name}: the limit is {MILLISECONDS_MAX}")
    return number


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


_FIELDS: Final[Mapping[str, Reader]] = {
    "topic": _trimmed,
    "name": _trimmed,
    "group": _trimmed,
    "owner": _trimmed,
    "partition": _count,
    "partitions": _count,
    "offset": _count,
    "offsets": _counts,
    "lease_ms": _count,
    "max_in_flight": _count,
    "release_on_disconnect": _flag,
    "wait_ms": _count,
    "remember_ms": _milliseconds,
    "max_records": _count,
    "from_ms": _count,
    "until_ms": _count,
    "rate_per_second": _number,
    "reason": _text,
    "error": _text,
}

_PRODUCE_FIELDS: Final[Mapping[str, Reader]] = {
    "topic": _trimmed,
    "key": _text,
    "value": _text,
    "encoding": _encoding,
    "key_encoding": _encoding,
}

_ENVELOPE_FIELDS: Final[Mapping[str, Reader]] = {
    "run_id": _trimmed,
    "step_id": _trimmed,
    "parent_step_id": _trimmed,
    "tenant_id": _trimmed,
    "idempotency_key": _trimmed,
    "target_topic": _trimmed,
    "deadline": _trimmed,
    "partition_override": _whole,
    "delay_ms": _milliseconds,
    "not_before_ms": _milliseconds,
}

_RETRY_FIELDS: Final[Mapping[str, str]] = {
    "retry_max_attempts": "max_attempts",
    "retry_backoff_ms": "backoff_ms",
    "retry_max_backoff_ms": "max_backoff_ms",
}

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
            known = PRODUCE_QUERY_FIELDS if model is ProduceRequest else _FIELDS.keys() & model.__struct_fields__
            _read_pairs(model, {name: text for name, text in pairs.items() if name in known})
        return request
    return _read_pairs(model, pairs)


def _read_pairs(model: type[R], pairs: Mapping[str, str]) -> R:
    if model is ProduceRequest:
        return _produce(pairs)  # type: ignore[return-value]  # mypy does not narrow R by its value
    values: dict[str, object] = {}
    known = model.__struct_fields__
    for name, text in pairs.items():
        reader = _FIELDS.get(name) if name in known else None
        if reader is None:
            raise _unknown(name, known)
        values[name] = reader(name, text)
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
            envelope[name] = _ENVELOPE_FIELDS[name](given, text)
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
            top[name] = _PRODUCE_FIELDS[name](given, text)
        else:
            raise _unknown(given, PRODUCE_QUERY_FIELDS)
    if retry:
        envelope["retry_policy"] = RetryPolicy(**retry)  # type: ignore[arg-type]  # _count gives whole numbers
    if envelope:
        top["envelope"] = EnvelopeFields(**envelope)  # type: ignore[arg-type]  # each reader gives its field's type
    return ProduceRequest(**top)  # type: ignore[arg-type]  # texts all of them


PRODUCE_QUERY_FIELDS: Final = (
    *_PRODUCE_FIELDS,
    *_ENVELOPE_FIELDS,
    *ALIASES,
    "deadline_ms",
    *_RETRY_FIELDS,
)


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


def require_topic(call: HttpCall, name: str) -> Topic:
    """A topic; the refusal of this API if it does not exist."""
    topic = call.gateway.broker.topics.get(name)
    if topic is None:
        raise UnknownTopicError(name, NO_SUCH_TOPIC)
    return topic
