"""What a client is told when something cannot be done: the texts of this API, and a sentence for everything else."""

from penstock.core.broker import Broker
from penstock.errors import PenstockError, Reason

_SHOWN_CHARS_MAX = 249
"""Of what a client sent and gets back in an error: as long as a topic's name may be."""

INVALID_JSON = "invalid_json"
INVALID_FIELD = "invalid_field"
LINE_TOO_LONG = "line_too_long"
UNKNOWN_TYPE = "unknown_type"
TOO_MUCH_UNSENT = "too_much_unsent"
INTERNAL_ERROR = "internal_error"
"""How these are counted beside the reasons of the core."""


class Refused(Exception):
    """A line that is no request, or one with a field missing or wrong. ``kind`` is how it is counted."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def shown(text: str) -> str:
    """What a client sent, short enough to be sent back."""
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[: _SHOWN_CHARS_MAX - 3]}..."


def text_for(error: PenstockError, broker: Broker, topic: str | None, partition: int | None, offset: int | None) -> str:
    """The error as this API says it, for a request that named these."""
    if error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION and topic is not None:
        if partition is None or topic not in broker.topics:
            return f"TopicNotFound: {shown(topic)}"
        return f"PartitionNotFound: {topic}/{partition}"
    if error.reason is Reason.OFFSET_OUT_OF_RANGE and offset is not None:
        return f"InvalidOffset: {offset}"
    if error.reason is Reason.GROUP_ID_NOT_FOUND:
        return "Group not found"
    return error.text
