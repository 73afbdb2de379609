"""Messages as this API sends and takes them, and the way between them and records.

A value, a key or a header is text; bytes that are not UTF-8 are given as base64 and say so beside it, and are taken the same way.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.core.publish import NewRecord, Placed, record_id
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.errors import Refusal, refusal_of
from penstock.records.records import Headers, Record
from penstock.text import BASE64, bytes_of, text_of
from penstock.types import Acks

MISSING_VALUE: Final = "Missing message value"
PARTITION_NOT_FOUND: Final = "Partition not found"
_NOT_TEXT: Final = (
    'A value is a string: send other JSON as text, and bytes as base64 with "encoding": "base64" beside the value.'
)

Encoding = Literal["base64", "utf-8"]
AcksName = Literal["all", "leader", "none"]

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder says of bytes that are not JSON."""

ACKS: Final = {acks.value: acks for acks in Acks}


class MessageRequest(Struct, frozen=True, gc=False):
    """One message to publish."""

    value: Annotated[str, Meta(examples=["hello"])] | None = None
    key: str | None = None
    partition: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    headers: dict[str, str | None] | None = None
    acks: AcksName | None = None
    encoding: Annotated[Encoding, Meta(description="base64: the value is bytes")] | None = None
    key_encoding: Encoding | None = None
    header_encodings: dict[str, Encoding] | None = None


class PublishRequest(MessageRequest, frozen=True, gc=False):
    """One message, or ``messages``: many, with the ``acks`` of those that do not say."""

    messages: list[MessageRequest] | UnsetType = UNSET


_ELEMENTS: Final = {
    "items": {
        "anyOf": [
            {"$ref": f"#/components/schemas/{MessageRequest.__name__}"},
            {"description": "Any other value is reported as an error in the results."},
        ]
    }
}

MessageArray = Annotated[list[Any], Meta(extra_json_schema=_ELEMENTS)]
"""For the document: each element is judged by itself."""


class BatchRequest(Struct, frozen=True):
    """Many messages; ``acks`` is for those that do not say."""

    messages: MessageArray
    acks: AcksName | None = None


class Published(Struct, frozen=True, gc=False, rename={"record_id": "id"}):
    """Where a message is. ``timestamp`` in ms; ``acked`` is false when nothing was waited for."""

    record_id: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    acked: bool


class NotPublished(Struct, frozen=True, gc=False):
    """Why a message of a batch was not published; the others were."""

    error: str


_RESULT: Final = {"anyOf": [{"$ref": f"#/components/schemas/{model.__name__}"} for model in (Published, NotPublished)]}
"""msgspec has no schema for a union of structs."""


class PublishedBatch(Struct, frozen=True):
    """One result for each message, in their order."""

    results: Annotated[list[Any], Meta(extra_json_schema={"items": _RESULT})]


class Message(Struct, frozen=True, gc=False, rename={"record_id": "id"}):
    """A message as it is read. ``encoding`` stands there when the value is bytes; ``timestamp`` is ms, ``produced_at`` s."""

    record_id: str
    topic: str
    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: dict[str, str | None]
    timestamp: int
    produced_at: int
    acked: bool
    encoding: Literal["base64"] | UnsetType = UNSET
    key_encoding: Literal["base64"] | UnsetType = UNSET
    header_encodings: dict[str, Literal["base64"]] | UnsetType = UNSET


class MessageList(Struct, frozen=True):
    """Messages of one partition, in the order of their offsets."""

    messages: list[Message]


message_decoder: Final = msgspec.json.Decoder(MessageRequest)
publish_decoder: Final = msgspec.json.Decoder(PublishRequest)
batch_decoder: Final = msgspec.json.Decoder(list[MessageRequest])
raw_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


def record_of(message: MessageRequest) -> NewRecord:
    """The record to append, or a refusal that says what to send."""
    value = message.value
    if value is None:
        raise Refusal(400, MISSING_VALUE)
    key = message.key
    return NewRecord(
        (key.encode() if message.key_encoding != BASE64 else _from_base64(key, "key")) if key is not None else None,
        value.encode() if message.encoding != BASE64 else _from_base64(value, "value"),
        _headers_of(message) if message.headers else (),
        message.partition,
    )


def _headers_of(message: MessageRequest) -> Headers:
    encodings = message.header_encodings or {}
    return tuple(
        (
            name,
            None
            if value is None
            else _from_base64(value, f"header {name!a}")
            if encodings.get(name) == BASE64
            else value.encode(),
        )
        for name, value in (message.headers or {}).items()
    )


def _from_base64(text: str, what: str) -> bytes:
    try:
        return bytes_of(text, BASE64)
    except ValueError:
        raise Refusal(
            400, f"The {what} is not base64, but its encoding is base64. Encode it, or remove the encoding."
        ) from None


def wrong_message(raw: msgspec.Raw | bytes) -> str:
    """What is wrong with a message that does not fit the model."""
    try:
        message_decoder.decode(raw)
    except msgspec.ValidationError as error:
        text = str(error)
        if text.endswith("`$.value`"):
            return _NOT_TEXT
        return f"The message is invalid: {text[:1].upper()}{text[1:]}."
    except NOT_JSON as error:
        return f"The message is not JSON: {error}."
    return "The message is invalid."


def published(topic: str, placed: Placed, *, acked: bool) -> Published:
    """The answer for a record that has its place."""
    partition, offset, timestamp_ms = placed
    return Published(record_id(topic, partition, offset), topic, partition, offset, timestamp_ms, acked)


def publish_refusal(error: PenstockError) -> Refusal:
    """Why a record was not published, in this API's words."""
    if error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION:
        return Refusal(400, PARTITION_NOT_FOUND)
    return refusal_of(error)


def message_of(topic: str, partition: int, record: Record) -> Message:
    """A record as it is read."""
    offset, timestamp_ms, key, value, headers = record
    key_text, key_encoding = text_of(key)
    value_text, encoding = text_of(value)
    shown: dict[str, str | None] = {}
    encodings: dict[str, Literal["base64"]] = {}
    for name, content in headers:
        shown[name], header_encoding = text_of(content)
        if header_encoding is not None:
            encodings[name] = header_encoding
        else:
            encodings.pop(name, None)
    return Message(
        record_id(topic, partition, offset),
        topic,
        partition,
        offset,
        key_text,
        value_text,
        shown,
        timestamp_ms,
        timestamp_ms // 1000,
        True,
        encoding or UNSET,
        key_encoding or UNSET,
        encodings or UNSET,
    )
