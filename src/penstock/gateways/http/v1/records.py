"""A record in the form of ``/v1``, and its envelope in both directions.

The envelope is stored in headers of the record (``core/queues/envelope.py``), so Kafka clients can set it, too. A key or a value that
is not UTF-8 is base64, and an encoding field says so.
"""

from typing import Final

from msgspec import UNSET, UnsetType

from penstock.core.queues import envelope as names
from penstock.core.queues.envelope import Envelope, read_envelope
from penstock.gateways.http.v1.models import (
    MILLISECONDS_MAX,
    ConsumedRecord,
    EnvelopeFields,
    EnvelopeOut,
    RetryPolicyOut,
)
from penstock.gateways.http.v1.requests import moment_ms, refuse, rfc3339
from penstock.operations.queues import Delivery
from penstock.records.records import Headers
from penstock.text import BASE64, text_of, texts_of
from penstock.text import bytes_of as decoded

_NO_POLICY: Final = RetryPolicyOut()
_NO_ENVELOPE: Final = EnvelopeOut()


def bytes_of(name: str, text: str, encoding: str | None) -> bytes:
    """Text as bytes; ``name`` is the name of the field, for the error."""
    try:
        return decoded(text, encoding)
    except ValueError:
        raise refuse(f"invalid {name}: it is not {BASE64}, but its encoding is {BASE64}") from None


def consumed(delivery: Delivery, *, until: bool = False) -> ConsumedRecord:
    """A leased record, with the end of the lease if ``until``."""
    topic, partition, offset, attempts, key, value, headers, timestamp, last_error, lease_until_ms = delivery
    key_text, key_encoding = text_of(key) if key else ("", None)
    value_text, encoding = text_of(value)
    lease_until = lease_until_ms if until else UNSET
    if not headers:
        return ConsumedRecord(
            partition,
            offset,
            attempts,
            key_text,
            value_text,
            last_error or "",
            topic,
            timestamp,
            encoding=encoding or UNSET,
            key_encoding=key_encoding or UNSET,
            lease_until_ms=lease_until,
        )
    dead = _dead_letter(headers)
    is_dead = names.ORIGINAL_TOPIC in dead
    others, other_encodings = other_headers(headers, is_dead=is_dead)
    return ConsumedRecord(
        partition,
        offset,
        _number(dead.get(names.ATTEMPTS)) or attempts if is_dead else attempts,
        key_text,
        value_text,
        dead.get(names.LAST_ERROR, "") if is_dead else last_error or "",
        topic,
        timestamp,
        envelope=envelope_out(headers),
        encoding=encoding or UNSET,
        key_encoding=key_encoding or UNSET,
        headers=others or UNSET,
        header_encodings=other_encodings or UNSET,
        original_topic=dead[names.ORIGINAL_TOPIC] if is_dead else UNSET,
        original_partition=_known(dead.get(names.ORIGINAL_PARTITION)) if is_dead else UNSET,
        original_offset=_known(dead.get(names.ORIGINAL_OFFSET)) if is_dead else UNSET,
        original_group=dead.get(names.ORIGINAL_GROUP, UNSET) if is_dead else UNSET,
        routed_at_ms=_known(dead.get(names.ROUTED_AT_MS)) if is_dead else UNSET,
        deliveries=attempts if is_dead else UNSET,
        delivery_error=last_error or UNSET if is_dead else UNSET,
        lease_until_ms=lease_until,
    )


def envelope_out(headers: Headers) -> EnvelopeOut | UnsetType:
    """The envelope as it was sent, if it was."""
    found = read_envelope(headers)
    policy = RetryPolicyOut(found.max_attempts or 0, found.backoff_ms or 0, found.max_backoff_ms or 0)
    out = EnvelopeOut(
        run_id=found.run_id,
        step_id=found.step_id,
        parent_step_id=found.parent_step_id,
        tenant_id=found.tenant_id,
        idempotency_key=found.idempotency_key,
        target_topic=found.target_topic,
        deadline=found.deadline or (None if found.deadline_ms is None else rfc3339(found.deadline_ms)),
        partition_override=found.partition_override,
        retry_policy=None if policy == _NO_POLICY else policy,
        not_before_ms=found.not_before_ms,
    )
    return UNSET if out == _NO_ENVELOPE else out


def envelope_in(given: EnvelopeFields, now_ms: int) -> Envelope:
    """The envelope as it is stored. A delay becomes the time at which it ends."""
    retry = given.retry_policy
    not_before_ms = given.not_before_ms
    if given.delay_ms:
        not_before_ms = min(MILLISECONDS_MAX, max(not_before_ms or 0, now_ms + given.delay_ms))
    return Envelope(
        not_before_ms=not_before_ms,
        deadline_ms=max(0, moment_ms("deadline", given.deadline)) if given.deadline else None,
        max_attempts=retry.max_attempts if retry else None,
        backoff_ms=retry.backoff_ms if retry else None,
        max_backoff_ms=retry.max_backoff_ms if retry else None,
        idempotency_key=given.idempotency_key or None,
        tenant_id=given.tenant_id or None,
        run_id=given.run_id or None,
        step_id=given.step_id or None,
        parent_step_id=given.parent_step_id or None,
        target_topic=given.target_topic or None,
        partition_override=given.partition_override,
        deadline=given.deadline or None,
    )


def _dead_letter(headers: Headers) -> dict[str, str]:
    """The headers of a dead letter that tell why it died."""
    return {
        name: value.decode(errors="replace")
        for name, value in headers
        if value is not None and name in names.DEAD_LETTER_HEADERS
    }


def other_headers(headers: Headers, *, is_dead: bool) -> tuple[dict[str, str | None], dict[str, str]]:
    """The producer's own headers, and which of them are base64."""
    return texts_of(
        (name, value)
        for name, value in headers
        if not name.startswith(names.PREFIX) and not (is_dead and name in names.DEAD_LETTER_HEADERS)
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None


def _known(text: str | None) -> int | UnsetType:
    number = _number(text)
    return UNSET if number is None else number
