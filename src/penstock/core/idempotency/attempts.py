"""A key that is in use: who brought it, and how far its record is."""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.core.access import Caller
from penstock.core.idempotency.stored import Key
from penstock.core.publish import NewRecord, Placed
from penstock.errors import PenstockError, Reason
from penstock.limits import IDEMPOTENCY_KEY_CHARS_MAX
from penstock.types import Acks, TopicName

OnceDone = Callable[[Placed | PenstockError, bool], None]
"""Told the place and whether it was there before, or why there is none."""
Admit = Callable[[str, int], None]
"""Asked before a record is appended, with its topic and partition; a PenstockError refuses it."""

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
"""Refusals after which a record is surely not in the log. After any other one the log is asked when the key comes again."""


class Asker(NamedTuple):
    """Somebody who wants a record published under a key."""

    caller: Caller
    record: NewRecord
    acks: Acks
    admit: Admit | None
    done: OnceDone


class Attempt:
    """A key whose record is on its way: looked for, intended, appended, or placed and not yet noted."""

    __slots__ = ("askers", "key", "over", "placed", "topic")

    def __init__(self, key: Key, topic: TopicName) -> None:
        self.key: Final = key
        self.topic: Final = topic
        self.askers: list[Asker] = []
        self.placed: Placed | None = None
        self.over = False


def encoded(text: str) -> bytes:
    """A tenant or a key in bytes."""
    # A lone surrogate can come in by JSON; it is a key like any other.
    return text.encode("utf-8", "surrogatepass")


def check_key(tenant: str, key: str) -> None:
    """INVALID_REQUEST for a key that is none."""
    if not key or len(key) > IDEMPOTENCY_KEY_CHARS_MAX or len(tenant) > IDEMPOTENCY_KEY_CHARS_MAX:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"an idempotency key has 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters, and a tenant no more than that; "
            "choose a shorter one",
        )


def not_coordinator() -> PenstockError:
    """Somebody else knows the keys."""
    return PenstockError(
        Reason.NOT_COORDINATOR,
        "Another node coordinates the produce keys of this topic. Send the record again with the same key.",
    )


def still_loading() -> PenstockError:
    """In a moment this node knows the keys."""
    return PenstockError(
        Reason.COORDINATOR_LOAD_IN_PROGRESS, "The produce keys of this topic are being loaded. Try again in a moment."
    )
