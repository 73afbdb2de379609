"""The requests and answers of ``/v1``, as msgspec structs.

Invariant: a request refuses unknown fields, and all its fields are optional; the handler checks which of them are required, with the
error texts of this API. Answers have exactly the fields of the contract, followed by Penstock's own. A field without a value is left
out, unless its null has a meaning.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.gateways.http.tarantoolmq.models import Encoding

INT64_MAX = 2**63 - 1

Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
"""Milliseconds, partitions, offsets, numbers of records."""
ATTEMPTS_MAX = 65535
Attempts = Annotated[int, Meta(ge=0, le=ATTEMPTS_MAX)]
MILLISECONDS_MAX = 10**15 - 1
"""The largest time that fits the header of a record."""
PEEKED_MAX = 1_000
"""Records in one answer of peek."""
Milliseconds = Annotated[int, Meta(ge=0, le=MILLISECONDS_MAX)]


class StrictRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request that refuses unknown fields."""


# Requests.


class RetryPolicy(StrictRequest, frozen=True):
    """The number of attempts, where 0 is unlimited, and the backoff between them."""

    max_attempts: (
        Annotated[Attempts, Meta(description="attempts before the record becomes a dead letter; 0: no limit")] | None
    ) = None
    backoff_ms: (
        Annotated[Milliseconds, Meta(description="the backoff after the first failure; doubled after each further one")]
        | None
    ) = None
    max_backoff_ms: Annotated[Milliseconds, Meta(description="the longest backoff")] | None = None


class EnvelopeFields(StrictRequest, frozen=True):
    """What is sent with a record's value. ``delay_ms`` and ``not_before_ms`` deliver it later."""

    run_id: str | None = None
    step_id: str | None = None
    parent_step_id: str | None = None
    tenant_id: str | None = None
    idempotency_key: (
        Annotated[str, Meta(description="a record with a key that is known is not appended again")] | None
    ) = None
    target_topic: str | None = None
    deadline: Annotated[str, Meta(description="RFC 3339; the record is not delivered after this time")] | None = None
    partition_override: (
        Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX), Meta(description="the partition, instead of the key's")]
        | None
    ) = None
    retry_policy: RetryPolicy | None = None
    delay_ms: Annotated[Milliseconds, Meta(description="delivered this much later")] | None = None
    not_before_ms: (
        Annotated[Milliseconds, Meta(description="unix time in milliseconds; not delivered before it")] | None
    ) = None


class ProduceRequest(StrictRequest, frozen=True):
    """POST /v1/produce."""

    topic: Annotated[str, Meta(description="the topic, which must exist")] = ""
    key: Annotated[str, Meta(description="records with the same key go to the same partition")] | None = None
    value: Annotated[str, Meta(description="the value")] | None = None
    envelope: EnvelopeFields | None = None
    encoding: Annotated[Encoding, Meta(description="base64: the value is bytes")] | None = None
    key_encoding: Annotated[Encoding, Meta(description="base64: the key is bytes")] | None = None


class CreateTopicRequest(StrictRequest, frozen=True):
    """POST /v1/topics."""

    name: Annotated[str, Meta(description="the topic's name")] = ""
    partitions: Annotated[Count, Meta(description="the number of partitions; default 1")] = 1


class WorkerRequest(StrictRequest, frozen=True):
    """The queue and the name of a worker."""

    topic: Annotated[str, Meta(description="the topic")] = ""
    group: Annotated[str, Meta(description="the consumer group")] = ""
    owner: Annotated[str, Meta(description="your name in the group")] = ""


class ConsumeRequest(WorkerRequest, frozen=True):
    """GET /v1/consume. A number of 0 means its default."""

    lease_ms: Annotated[Count, Meta(description="the duration of the lease; default 2000")] = 0
    max_in_flight: Annotated[
        Count, Meta(description="the maximum number of records that you hold at a time; default 16")
    ] = 0
    release_on_disconnect: Annotated[
        bool, Meta(description="release the leases when the stream ends, without counting the attempt; default false")
    ] = False


class LeaseRequest(WorkerRequest, frozen=True):
    """POST /v1/lease: lease some records once. The leases outlive the connection."""

    max_records: Annotated[Count, Meta(description="the maximum number of records; default 1")] = 1
    lease_ms: Annotated[Count, Meta(description="the duration of the lease; default 2000")] = 0
    wait_ms: Annotated[Count, Meta(description="how long to wait for the first record; default 0")] = 0


class RecordRequest(WorkerRequest, frozen=True):
    """A record that the worker holds."""

    partition: Annotated[Count, Meta(description="the record's partition")] | None = None
    offset: Annotated[Count, Meta(description="the record's offset")] | None = None


class RecordsRequest(RecordRequest, frozen=True):
    """One record by ``offset``, or several of one partition by ``offsets``."""

    offsets: (
        Annotated[list[Count], Meta(description="several offsets, separated by commas, instead of offset")] | None
    ) = None


class AckRequest(RecordsRequest, frozen=True):
    """POST /v1/ack: one record by ``offset``, or several of one partition by ``offsets``, all or none of them."""


class NackRequest(RecordsRequest, frozen=True):
    """POST /v1/nack."""

    reason: Annotated[str, Meta(description="the reason of the failure; error is an alias")] | None = None
    error: Annotated[str, Meta(description="an alias of reason")] | None = None


class AckCumulativeRequest(RecordRequest, frozen=True):
    """POST /v1/ack-cumulative: all records of the partition that are leased to the owner, up to and including ``offset``."""


class ExtendRequest(RecordsRequest, frozen=True):
    """POST /v1/extend: the leases expire ``lease_ms`` from now."""

    lease_ms: Annotated[Count, Meta(description="the duration of the lease; default 2000")] = 0


class WhyRequest(StrictRequest, frozen=True):
    """GET /v1/why."""

    topic: Annotated[str, Meta(description="the topic")] = ""
    group: Annotated[str, Meta(description="the consumer group")] = ""
    partition: Annotated[Count, Meta(description="the record's partition")] | None = None
    offset: Annotated[Count, Meta(description="the record's offset")] | None = None
    principal: (
        Annotated[str, Meta(description="whether this principal lacks the rights, for example User:anna")] | None
    ) = None


class PeekRequest(StrictRequest, frozen=True):
    """GET /v1/queues/{topic}/{group}/peek."""

    max_records: Annotated[
        Count, Meta(description=f"the maximum number of records, up to {PEEKED_MAX}; default 100")
    ] = 100


class StatesRequest(StrictRequest, frozen=True):
    """GET /v1/queues/{topic}/{group}/states."""

    partition: Annotated[Count, Meta(description="the partition")] | None = None
    offset: Annotated[Count, Meta(description="only records from this offset on")] = 0


class DeadLettersRequest(StrictRequest, frozen=True):
    """Selects dead letters under /v1/dlq; without fields, all that are open."""

    reason: Annotated[str, Meta(description="only this reason; a * at the end matches a prefix")] | None = None
    group: Annotated[str, Meta(description="only dead letters of this group")] | None = None
    partition: Annotated[Count, Meta(description="only this partition of the original topic")] | None = None
    offset: Annotated[Count, Meta(description="only this offset of the dead-letter topic")] | None = None
    from_ms: Annotated[Count, Meta(description="died at or after this unix time in milliseconds")] | None = None
    until_ms: Annotated[Count, Meta(description="died before this unix time in milliseconds")] | None = None
    max_records: Annotated[Count, Meta(description="the maximum number of dead letters")] | None = None


class ChosenLetters(StrictRequest, frozen=True):
    """Dead letters by their offsets in one partition of the dead-letter topic."""

    partition: Count
    offsets: list[Count]


class ChosenLettersRequest(DeadLettersRequest, frozen=True):
    """The same, and optionally only the dead letters in ``chosen``, which cannot be given in a query string."""

    chosen: list[ChosenLetters] | None = None


class RedriveRequest(ChosenLettersRequest, frozen=True):
    """POST /v1/dlq/{topic}/redrive: which dead letters, and how fast; 0 is as fast as possible."""

    rate_per_second: Annotated[float, Meta(ge=0), Meta(description="the number per second; 0 or omitted: no limit")] = (
        0.0
    )


class NoFields(StrictRequest, frozen=True):
    """A request without fields."""


# Answers.


class ErrorAnswer(Struct, frozen=True):
    """A refusal under /v1: ``error`` is a code for programs, ``message`` a sentence for people."""

    error: str
    message: str
    reason: str | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET


class Status(Struct, frozen=True):
    """GET /v1/healthz."""

    status: str


class Version(Struct, frozen=True):
    """GET /v1/version. ``wal_enabled`` is always true, because every acknowledged record is in the log."""

    version: str
    commit: str
    wal_enabled: bool


class TopicNames(Struct, frozen=True):
    """GET /v1/topics."""

    topics: list[str]


class TopicCreated(Struct, frozen=True):
    """POST /v1/topics."""

    status: str
    name: str
    partitions: int


class Produced(Struct, frozen=True):
    """POST /v1/produce. ``duplicate`` is true if the idempotency key was known, and left out otherwise."""

    status: str
    topic: str
    partition: int
    offset: int
    duplicate: bool | UnsetType = UNSET


class RetryPolicyOut(Struct, frozen=True, omit_defaults=True):
    """The policy as it was sent."""

    max_attempts: int = 0
    backoff_ms: int = 0
    max_backoff_ms: int = 0


class EnvelopeOut(Struct, frozen=True, omit_defaults=True):
    """The envelope as it was sent."""

    run_id: str | None = None
    step_id: str | None = None
    parent_step_id: str | None = None
    tenant_id: str | None = None
    idempotency_key: str | None = None
    target_topic: str | None = None
    deadline: str | None = None
    partition_override: int | None = None
    retry_policy: RetryPolicyOut | None = None
    not_before_ms: int | None = None


class ConsumedRecord(Struct, frozen=True):
    """A line of GET /v1/consume, and a record of POST /v1/lease (which has ``lease_until_ms`` too).

    ``key`` is empty for a record without a key, ``value`` is null for a record without a value (a Kafka tombstone), and ``last_error``
    is empty on the first delivery. A dead letter has the ``original_*`` fields, and the ``attempts`` and ``last_error`` that it died
    with; ``deliveries`` and ``delivery_error`` are those of its own queue. ``headers`` are all others.
    """

    partition: int
    offset: int
    attempts: int
    key: str
    value: str | None
    last_error: str
    topic: str
    timestamp: int
    envelope: EnvelopeOut | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    key_encoding: str | UnsetType = UNSET
    headers: dict[str, str | None] | UnsetType = UNSET
    header_encodings: dict[str, str] | UnsetType = UNSET
    original_topic: str | UnsetType = UNSET
    original_partition: int | UnsetType = UNSET
    original_offset: int | UnsetType = UNSET
    original_group: str | UnsetType = UNSET
    routed_at_ms: int | UnsetType = UNSET
    deliveries: int | UnsetType = UNSET
    delivery_error: str | UnsetType = UNSET
    lease_until_ms: int | UnsetType = UNSET


class LeasedRecords(Struct, frozen=True):
    """POST /v1/lease."""

    records: list[ConsumedRecord]
