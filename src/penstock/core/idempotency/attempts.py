"""A key that is in use: the requests with this key, and the progress of its record."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.core.idempotency.stored import Key
from penstock.core.publish import NewRecord, Placed
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.limits import IDEMPOTENCY_KEY_CHARS_MAX
from penstock.types import Acks, TopicName

OnceDone = Callable[[Placed | PenstockError, bool], None]
"""Receives the record's place and whether it was there before, or an error."""
Admit = Callable[[str, int], None]
"""Called with topic and partition before a record is appended; a PenstockError refuses it."""

NOTHING_APPENDED: Final = frozenset(
    {
        Reason.UNKNOWN_TOPIC_OR_PARTITION,
        Reason.INVALID_TOPIC,
        Reason.INVALID_RECORD,
        Reason.INVALID_TIMESTAMP,
        Reason.NOT_ENOUGH_REPLICAS,
        Reason.RECORDS_TOO_LARGE,
        Reason.RECORD_LIST_TOO_LARGE,
        Reason.TOPIC_AUTHORIZATION_FAILED,
        Reason.POLICY_VIOLATION,
        Reason.BACKLOG_FULL,
    }
)
"""Errors after which a record is certainly not in the log. After any other one, the log is searched when the key is used again."""


class KeyedRequest(NamedTuple):
    """A request to publish a record with a key."""

    caller: Caller
    record: NewRecord
    acks: Acks
    admit: Admit | None
    done: OnceDone


@dataclass(eq=False, slots=True)
class Attempt:
    """A key in use, from its first request until the record's place is stored."""

    key: Key
    topic: TopicName
    requests: list[KeyedRequest] = field(default_factory=list)
    placed: Placed | None = None
    over: bool = False
    is_renewed: bool = False
    """Whether the time of its intent was replaced, because the topic does not accept it any more."""


def encoded(text: str) -> bytes:
    """A tenant or a key in bytes."""
    # JSON may contain lone surrogates; they are allowed in keys.
    return text.encode("utf-8", "surrogatepass")


def check_key(tenant: str, key: str) -> None:
    """INVALID_REQUEST if the key is empty or too long."""
    if not key or len(key) > IDEMPOTENCY_KEY_CHARS_MAX or len(tenant) > IDEMPOTENCY_KEY_CHARS_MAX:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"An idempotency key has 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters, and a tenant no more than that; "
            "choose a shorter one",
        )
