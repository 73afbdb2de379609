"""Messages in the form of this API, and their conversion from and to records.

A value, a key or a header is text. Bytes that are not UTF-8 are base64, and an encoding field says so, in both directions.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.core.publish import NewRecord, Placed, record_id
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.errors import Refusal, refusal_of
from penstock.records.records import Headers, Record
from penstock.text import BASE64, bytes_of, text_of, texts_of
from penstock.types import Acks

MISSING_VALUE: Final = "Missing message value"
PARTITION_NOT_FOUND: Final = "Partition not found"
_NOT_TEXT: Final = (
    'A value is a string: send other JSON as text, and bytes as base64 with "encoding": "base64" beside the value.'
)

Encoding = Literal["base64", "utf-8"]
AcksName = Literal["all", "leader", "none"]

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of a decoder for bytes that are not JSON."""

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
    """One message, or many in ``messages``, with their default ``acks``."""

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
"""For the document: each element is checked by itself."""


class BatchRequest(Struct, frozen=True):
    """Many messages; ``acks`` is the default for messages without it."""

    messages: MessageArray
    acks: AcksName | None = None


class Published(Struct, frozen=True, gc=False, rename={"record_id": "id"}):
    """The position of a message. ``timestamp`` is in ms; ``acked`` is false for acks none."""

    record_id: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    acked: bool


class NotPublished(Struct, frozen=True, gc=False):
    """The reason why a message of a batch was not published."""

    error: str


_RESULT: Final = {"anyOf": [{"$ref": f"#/components/schemas/{model.__name__}"} for model in (Published, NotPublished)]}
"""msgspec has no schema for a union of structs."""


class PublishedBatch(Struct, frozen=True):
    """One result for each message, in order."""

    results: Annotated[list[Any], Meta(extra_json_schema={"items": _RESULT})]


class Message(Struct, frozen=True, gc=False, rename={"record_id": "id"}):
    """A message that is read. ``encoding`` is set if the value is not text; ``timestamp`` is in ms, ``produced_at`` in seconds."""

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
    """The record to append, or a refusal."""
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


def decode_message(raw: msgspec.Raw | bytes) -> MessageRequest | NotPublished:
    """A message, or its error."""
    try:
        return message_decoder.decode(raw)
    except NOT_JSON:
        return NotPublished(wrong_message(raw))


def wrong_message(raw: msgspec.Raw | bytes) -> str:
    """The error text for a message that does not match the model."""
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
    """The answer for a record that was appended."""
    partition, offset, timestamp_ms = placed
    return Published(record_id(topic, partition, offset), topic, partition, offset, timestamp_ms, acked)


def publish_refusal(error: PenstockError) -> Refusal:
    """The refusal of a record that was not published."""
    if error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION:
        return Refusal(400, PARTITION_NOT_FOUND)
    return refusal_of(error)


def message_of(topic: str, partition: int, record: Record) -> Message:
    """A record that is read."""
    offset, timestamp_ms, key, value, headers = record
    key_text, key_encoding = text_of(key)
    value_text, encoding = text_of(value)
    texts, encodings = texts_of(headers)
    return Message(
        record_id(topic, partition, offset),
        topic,
        partition,
        offset,
        key_text,
        value_text,
        texts,
        timestamp_ms,
        timestamp_ms // 1000,
        True,
        encoding or UNSET,
        key_encoding or UNSET,
        encodings or UNSET,
    )
