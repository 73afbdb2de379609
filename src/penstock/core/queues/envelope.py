"""The envelope of a record: headers in ASCII text by which its producer sets delay, deadline, attempts and so on.

An invalid header is ignored: headers must not make a record undeliverable. Numbers are decimal and not negative. The queue does not
use all of these headers; some are for the worker.
"""

from dataclasses import dataclass
from typing import Final

from penstock.records.records import Headers

PREFIX: Final = "penstock."
NOT_BEFORE_MS: Final = "penstock.not_before_ms"
DEADLINE_MS: Final = "penstock.deadline_ms"
MAX_ATTEMPTS: Final = "penstock.max_attempts"
BACKOFF_MS: Final = "penstock.backoff_ms"
MAX_BACKOFF_MS: Final = "penstock.max_backoff_ms"
IDEMPOTENCY_KEY: Final = "penstock.idempotency_key"
TENANT_ID: Final = "penstock.tenant_id"
RUN_ID: Final = "penstock.run_id"
STEP_ID: Final = "penstock.step_id"
PARENT_STEP_ID: Final = "penstock.parent_step_id"
TARGET_TOPIC: Final = "penstock.target_topic"
PARTITION_OVERRIDE: Final = "penstock.partition_override"
DEADLINE: Final = "penstock.deadline"

MOVE_ID: Final = "penstock.move_id"
"""Set by the broker on a record that it moved from another topic; after a crash it shows that the move was done."""

ORIGINAL_TOPIC: Final = "original_topic"
ORIGINAL_PARTITION: Final = "original_partition"
ORIGINAL_OFFSET: Final = "original_offset"
ORIGINAL_GROUP: Final = "original_group"
ATTEMPTS: Final = "attempts"
LAST_ERROR: Final = "last_error"
ROUTED_AT_MS: Final = "routed_at_ms"

REDRIVEN_FROM: Final = "redriven_from"
"""On a redriven record: the dead letter that it was."""
FOR_GROUP: Final = "penstock.for_group"
"""On the same: the group in which it failed. The queues of other groups, which may have finished it long ago, skip it."""

DEAD_LETTER_HEADERS: Final = frozenset(
    {ORIGINAL_TOPIC, ORIGINAL_PARTITION, ORIGINAL_OFFSET, ORIGINAL_GROUP, ATTEMPTS, LAST_ERROR, ROUTED_AT_MS, MOVE_ID}
)
"""Headers that a dead letter has in addition to those of the original record."""

_NUMBER_CHARS_MAX: Final = 15
"""A longer number is no useful time in milliseconds; all shorter ones fit 64 bits."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The values of these headers; None if a record does not have one."""

    not_before_ms: int | None = None
    deadline_ms: int | None = None
    max_attempts: int | None = None
    backoff_ms: int | None = None
    max_backoff_ms: int | None = None
    idempotency_key: str | None = None
    tenant_id: str | None = None
    run_id: str | None = None
    step_id: str | None = None
    parent_step_id: str | None = None
    target_topic: str | None = None
    partition_override: int | None = None
    deadline: str | None = None
    for_group: str | None = None


NO_ENVELOPE: Final = Envelope()

_NUMBERS: Final = {
    NOT_BEFORE_MS: "not_before_ms",
    DEADLINE_MS: "deadline_ms",
    MAX_ATTEMPTS: "max_attempts",
    BACKOFF_MS: "backoff_ms",
    MAX_BACKOFF_MS: "max_backoff_ms",
    PARTITION_OVERRIDE: "partition_override",
}
_TEXTS: Final = {
    IDEMPOTENCY_KEY: "idempotency_key",
    TENANT_ID: "tenant_id",
    RUN_ID: "run_id",
    STEP_ID: "step_id",
    PARENT_STEP_ID: "parent_step_id",
    TARGET_TOPIC: "target_topic",
    DEADLINE: "deadline",
    FOR_GROUP: "for_group",
}
_POLICY: Final = frozenset(
    {NOT_BEFORE_MS, DEADLINE_MS, MAX_ATTEMPTS, BACKOFF_MS, MAX_BACKOFF_MS, IDEMPOTENCY_KEY, TENANT_ID, FOR_GROUP}
)


def has_policy(headers: Headers) -> bool:
    """Whether the queue must read this record's envelope."""
    return any(name in _POLICY for name, _ in headers)


def read_envelope(headers: Headers) -> Envelope:
    """The envelope in the headers; the last header of a name counts."""
    numbers: dict[str, int] = {}
    texts: dict[str, str] = {}
    for name, value in headers:
        if value is None or not name.startswith(PREFIX):
            continue
        if name in _NUMBERS:
            number = _number(value)
            if number is not None:
                numbers[_NUMBERS[name]] = number
        elif name in _TEXTS:
            try:
                texts[_TEXTS[name]] = value.decode()
            except UnicodeDecodeError:
                continue
    return Envelope(**numbers, **texts) if numbers or texts else NO_ENVELOPE  # type: ignore[arg-type]


def write_envelope(envelope: Envelope) -> Headers:
    """The headers of an envelope."""
    return tuple(
        (header, str(value).encode())
        for names in (_NUMBERS, _TEXTS)
        for header, field in names.items()
        if (value := getattr(envelope, field)) is not None
    )


def _number(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) <= _NUMBER_CHARS_MAX else None
