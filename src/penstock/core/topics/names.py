"""Which names a topic may have."""

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
"""Keys of records that must not be taken twice."""

SINKS_TOPIC: Final = TopicName("__sinks")
"""Exactly-once sinks: their last batches, and what they are about to append."""

BUNDLE: Final = (OFFSETS_TOPIC, QUEUE_STATE_TOPIC)
"""What a group has in partition i of each belongs together: one node coordinates both. In the order in which they are loaded."""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, QUEUE_STATE_TOPIC, IDEMPOTENCY_TOPIC, SINKS_TOPIC})
"""Topics that the broker makes for itself; users may read them, and neither make nor delete them."""

STAGING_PREFIX: Final = "__staging."
"""Of the topics that hold what a sink has not committed: users produce to them, and nobody is shown them."""

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """``INVALID_TOPIC`` unless a topic may have the name."""
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
    # Whatever was sent, the answer stays short and printable.
    shown = ascii(name if len(name) <= 64 else f"{name[:61]}...")
    raise PenstockError(Reason.INVALID_TOPIC, f"The topic name {shown} {wrong}. Choose another name.")


def staging_topic(sink: str) -> TopicName:
    """Where the batches of a sink are staged."""
    return TopicName(STAGING_PREFIX + sink)


def is_staging(name: str) -> bool:
    """Whether this is the name of a staging topic."""
    return name.startswith(STAGING_PREFIX)


def is_reserved(name: str) -> bool:
    """Whether only the broker itself makes a topic of this name."""
    return name in INTERNAL_TOPICS or is_staging(name)


def collision_key(name: str) -> str:
    """Equal for two names that metrics cannot tell apart, where '.' turns into '_'. Only one of them may exist."""
    return name.replace(".", "_")
