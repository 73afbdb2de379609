"""The bodies of ``/v1``, as they are sent and answered: msgspec structs, each named for what it is.

Invariant: a request refuses a field it does not know, and every field of it may be left out here: which ones are needed is
said by the route, in the words its users know. Answers have exactly the fields of the contract; those of ours stand behind
them, and one that is None is left out unless it says something by being null.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.gateways.http.tarantoolmq.message_models import Encoding

INT64_MAX = 2**63 - 1

Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
"""Milliseconds, partitions, offsets, numbers of records: nothing here may be negative, or longer than a log can count."""


ATTEMPTS_MAX = 65535
Attempts = Annotated[int, Meta(ge=0, le=ATTEMPTS_MAX)]
MILLISECONDS_MAX = 10**15 - 1
"""A moment or a time that a queue can still keep in a header."""
Milliseconds = Annotated[int, Meta(ge=0, le=MILLISECONDS_MAX)]


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller asks; unknown fields are an error."""


# Requests.


class RetryPolicy(Request, frozen=True):
    """How often a record is tried, and how long it rests between two tries. 0 attempts: as often as it takes."""

    max_attempts: Attempts | None = None
    backoff_ms: Milliseconds | None = None
    max_backoff_ms: Milliseconds | None = None


class EnvelopeFields(Request, frozen=True):
    """What travels with a record beside its value. ``delay_ms`` and ``not_before_ms`` are ours: deliver it later."""

    run_id: str | None = None
    step_id: str | None = None
    parent_step_id: str | None = None
    tenant_id: str | None = None
    idempotency_key: str | None = None
    target_topic: str | None = None
    deadline: Annotated[str, Meta(description="RFC 3339, with a time zone")] | None = None
    partition_override: Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)] | None = None
    retry_policy: RetryPolicy | None = None
    delay_ms: Milliseconds | None = None
    not_before_ms: Annotated[Milliseconds, Meta(description="Unix time in milliseconds")] | None = None


class ProduceRequest(Request, frozen=True):
    """POST /v1/produce. ``encoding`` "base64": the value is bytes; ``key_encoding`` the same for the key."""

    topic: str = ""
    key: str | None = None
    value: str | None = None
    envelope: EnvelopeFields | None = None
    encoding: Encoding | None = None
    key_encoding: Encoding | None = None


class CreateTopicRequest(Request, frozen=True):
    """POST /v1/topics."""

    name: str = ""
    partitions: Count = 1


class WorkerRequest(Request, frozen=True):
    """Of somebody who works on a queue."""

    topic: str = ""
    group: str = ""
    owner: str = ""


class ConsumeRequest(WorkerRequest, frozen=True):
    """GET /v1/consume. 0 or no ``lease_ms``, ``max_in_flight``: the broker's default."""

    lease_ms: Count = 0
    max_in_flight: Count = 0
    release_on_disconnect: bool = False


class LeaseRequest(WorkerRequest, frozen=True):
    """POST /v1/lease: some records, once; the leases stay whether or not the connection does."""

    max_records: Count = 1
    lease_ms: Count = 0
    wait_ms: Count = 0


class RecordRequest(WorkerRequest, frozen=True):
    """About a record that the worker holds."""

    partition: Count | None = None
    offset: Count | None = None


class RecordsRequest(RecordRequest, frozen=True):
    """About one record by ``offset``, or several of one partition by ``offsets``."""

    offsets: list[Count] | None = None


class AckRequest(RecordsRequest, frozen=True):
    """POST /v1/ack: one record by ``offset``, or several of one partition by ``offsets``, all or none of them."""


class NackRequest(RecordsRequest, frozen=True):
    """POST /v1/nack. ``error`` is another name for ``reason``."""

    reason: str | None = None
    error: str | None = None


class AckCumulativeRequest(RecordRequest, frozen=True):
    """POST /v1/ack-cumulative: every record of the partition that is leased to the owner, up to and with ``offset``."""


class ExtendRequest(RecordsRequest, frozen=True):
    """POST /v1/extend: the leases run until ``lease_ms`` from now."""

    lease_ms: Count = 0


class WhyRequest(Request, frozen=True):
    """GET /v1/why."""

    topic: str = ""
    group: str = ""
    partition: Count | None = None
    offset: Count | None = None


class PeekRequest(Request, frozen=True):
    """GET /v1/queues/{topic}/{group}/peek."""

    max_records: Count = 100


class StatesRequest(Request, frozen=True):
    """GET /v1/queues/{topic}/{group}/states."""

    partition: Count | None = None
    offset: Count = 0


class DeadLettersRequest(Request, frozen=True):
    """Which dead letters are meant, everywhere under /v1/dlq; without fields all that are open.

    A ``reason`` that ends in ``*`` is how theirs begins; ``group`` is the one whose attempts were exhausted; ``partition`` is the
    original topic's and ``offset`` the dead-letter topic's; they died at or after ``from_ms`` and before ``until_ms``.
    """

    reason: str | None = None
    group: str | None = None
    partition: Count | None = None
    offset: Count | None = None
    from_ms: Count | None = None
    until_ms: Count | None = None
    max_records: Count | None = None


class ChosenLetters(Request, frozen=True):
    """Dead letters by their places in one partition of the dead-letter topic."""

    partition: Count
    offsets: list[Count]


class ChosenLettersRequest(DeadLettersRequest, frozen=True):
    """The same, or of those that match only these, by their places; not in a query string."""

    chosen: list[ChosenLetters] | None = None


class RedriveRequest(ChosenLettersRequest, frozen=True):
    """POST /v1/dlq/{topic}/redrive: which, and how fast. 0 a second: as fast as it goes."""

    rate_per_second: Annotated[float, Meta(ge=0)] = 0.0


class NoFields(Request, frozen=True):
    """A route that takes none."""


# Answers.


class ErrorAnswer(Struct, frozen=True):
    """Every refusal under /v1. ``error`` is a word for programs, ``message`` a sentence for people."""

    error: str
    message: str
    reason: str | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET


class Status(Struct, frozen=True):
    """GET /v1/healthz."""

    status: str


class Version(Struct, frozen=True):
    """GET /v1/version. What is acknowledged is always in the log: ``wal_enabled`` is true."""

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
    """POST /v1/produce. ``duplicate`` is there, and true, when the idempotency key was known."""

    status: str
    topic: str
    partition: int
    offset: int
    duplicate: bool | UnsetType = UNSET


class RetryPolicyOut(Struct, frozen=True, omit_defaults=True):
    """The policy as it was given."""

    max_attempts: int = 0
    backoff_ms: int = 0
    max_backoff_ms: int = 0


class EnvelopeOut(Struct, frozen=True, omit_defaults=True):
    """The envelope as it was given; what it does not have is left out."""

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

    ``key`` is empty for a record without one, ``value`` is null for a record without one (a Kafka tombstone), and
    ``last_error`` is empty on the first delivery. A dead letter has the ``original_*`` fields, and its ``attempts`` and
    ``last_error`` are those it died with: how often it was delivered from its own queue is ``deliveries``, and how that
    last went wrong ``delivery_error``. ``headers`` are those that are no part of all this.
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
