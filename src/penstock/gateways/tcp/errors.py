"""Error texts: those that this API fixes, and a sentence for all others."""

from penstock.core.broker import Broker
from penstock.errors import PenstockError, Reason

_SHOWN_CHARS_MAX = 249
"""Of a client's text in an error: the longest topic name."""

INVALID_JSON = "invalid_json"
INVALID_FIELD = "invalid_field"
LINE_TOO_LONG = "line_too_long"
UNKNOWN_TYPE = "unknown_type"
TOO_MUCH_UNSENT = "too_much_unsent"
WRONG_PROTOCOL = "wrong_protocol"
INTERNAL_ERROR = "internal_error"
"""The names of these errors in the metrics, besides the reasons of the core."""


class Refused(Exception):
    """An invalid line. ``kind`` is the name of the error in the metrics."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def shown(text: str) -> str:
    """A client's text, short enough for an error."""
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[: _SHOWN_CHARS_MAX - 3]}..."


def text_for(error: PenstockError, broker: Broker, topic: str | None, partition: int | None, offset: int | None) -> str:
    """The error text for a request with these fields."""
    if error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION and topic is not None:
        if partition is None or topic not in broker.topics:
            return f"TopicNotFound: {shown(topic)}"
        return f"PartitionNotFound: {topic}/{partition}"
    if error.reason is Reason.OFFSET_OUT_OF_RANGE and offset is not None:
        return f"InvalidOffset: {offset}"
    if error.reason is Reason.GROUP_ID_NOT_FOUND:
        return "Group not found"
    return error.text
