"""The names that topics may have, and those of the broker's own topics."""

import re
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.limits import TOPIC_NAME_CHARS_MAX
from penstock.types import TopicName

OFFSETS_TOPIC: Final = TopicName("__consumer_offsets")
"""Groups and their committed offsets."""
QUEUE_STATE_TOPIC: Final = TopicName("__queue_state")
"""Leases, attempts and finished records of queues."""
IDEMPOTENCY_TOPIC: Final = TopicName("__idempotency")
"""Keys of records that must not be appended twice."""
SINKS_TOPIC: Final = TopicName("__sinks")
"""Exactly-once sinks: their last batches, and commits in progress."""

AUDIT_TOPIC: Final = TopicName("__audit")
"""The audit log, which is created when it is on."""

GROUP_STATE_TOPICS: Final = (OFFSETS_TOPIC, QUEUE_STATE_TOPIC)
"""The state of a group is in partition i of each, so one node must lead both. In the order in which they are loaded."""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, QUEUE_STATE_TOPIC, IDEMPOTENCY_TOPIC, SINKS_TOPIC})
"""Topics that the broker creates for itself. Users may read them, but not create or delete them."""

STAGING_PREFIX: Final = "__staging."
"""The prefix of topics with the uncommitted records of a sink: users produce to them, but they are not listed."""

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """``INVALID_TOPIC`` unless the name is valid."""
    if not name:
        wrong = "is empty"
    elif name in (".", ".."):
        wrong = "is reserved by file systems"
    elif len(name) > TOPIC_NAME_CHARS_MAX:
        wrong = f"has {len(name)} characters, but the limit is {TOPIC_NAME_CHARS_MAX}"
    elif _NAME.fullmatch(name) is None:
        wrong = "has a character other than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    # The error stays short and printable, whatever the name.
    shown = ascii(name if len(name) <= 64 else f"{name[:61]}...")
    raise PenstockError(Reason.INVALID_TOPIC, f"The topic name {shown} {wrong}. Choose another name.")


def staging_topic(sink: str) -> TopicName:
    """The topic with the staged batches of a sink."""
    return TopicName(STAGING_PREFIX + sink)


def is_staging(name: str) -> bool:
    """Whether this is the name of a staging topic."""
    return name.startswith(STAGING_PREFIX)


def is_reserved(name: str) -> bool:
    """Whether only the broker may create a topic of this name."""
    return name in INTERNAL_TOPICS or name == AUDIT_TOPIC or is_staging(name)


def collision_key(name: str) -> str:
    """Equal for names that are the same in metrics, where '.' becomes '_'. Only one of them may exist."""
    return name.replace(".", "_")
