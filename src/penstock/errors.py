"""Every reason why Penstock refuses a request, in one table.

The core raises :class:`PenstockError` with a :class:`Reason`; a gateway maps the reason to an error of its protocol
(``gateways/kafka/errors.py`` and its siblings). The text is for people and says what to do next.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final


class Reason(Enum):
    """Why a request was refused. The value is the text for a protocol without error codes."""

    # Something that does not exist.
    UNKNOWN_TOPIC_OR_PARTITION = "unknown topic or partition"
    UNKNOWN_TOPIC_ID = "unknown topic id"
    OFFSET_OUT_OF_RANGE = "offset out of range"
    GROUP_ID_NOT_FOUND = "unknown group"
    UNKNOWN_MEMBER_ID = "unknown group member"
    UNKNOWN_LEADER_EPOCH = "leader epoch is newer than this node's"
    FENCED_LEADER_EPOCH = "leader epoch is older than this node's"
    NOT_LEADER_OR_FOLLOWER = "this node does not lead the partition"
    LEADER_NOT_AVAILABLE = "the partition has no leader at the moment"
    OFFSET_NOT_AVAILABLE = "what is committed is not known yet after a change of leader"
    UNKNOWN_NODE = "no such node in the cluster"

    # An invalid request.
    INVALID_REQUEST = "invalid request"
    INVALID_TOPIC = "invalid topic name"
    INVALID_CONFIG = "invalid configuration"
    INVALID_PARTITIONS = "invalid number of partitions"
    INVALID_REPLICATION_FACTOR = "invalid replication factor"
    INVALID_REPLICA_ASSIGNMENT = "invalid replica assignment"
    INVALID_REQUIRED_ACKS = "acks must be 0, 1 or -1"
    INVALID_TIMESTAMP = "timestamp out of range"
    INVALID_GROUP_ID = "invalid group id"
    INVALID_SESSION_TIMEOUT = "session timeout out of range"
    INVALID_COMMIT_OFFSET_SIZE = "offset metadata is too long"
    OFFSET_METADATA_TOO_LARGE = "offset metadata is too large"
    TOPIC_ALREADY_EXISTS = "topic already exists"
    POLICY_VIOLATION = "refused by a limit of this broker"
    UNSUPPORTED_VERSION = "unsupported version"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = "unsupported message format"
    UNSUPPORTED_COMPRESSION_TYPE = "unsupported compression type"
    FETCH_SESSION_ID_NOT_FOUND = "unknown fetch session"
    INVALID_FETCH_SESSION_EPOCH = "fetch session epoch out of order"
    FETCH_SESSION_TOPIC_ID_ERROR = "fetch session mixes topic names and ids"
    TRANSACTIONS_NOT_SUPPORTED = "transactions are not supported"
    SECURITY_DISABLED = "security features are disabled"
    CLUSTER_AUTHORIZATION_FAILED = "not allowed on the cluster"
    PREFERRED_LEADER_NOT_AVAILABLE = "the preferred leader is not in sync"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = "no replica that is up may lead"
    ELECTION_NOT_NEEDED = "no election is needed for the partition"
    NO_REASSIGNMENT_IN_PROGRESS = "the partition is not being moved"

    # Records that are damaged, too large, or out of order.
    CORRUPT_RECORDS = "corrupt records"
    INVALID_RECORD = "invalid record"
    RECORDS_TOO_LARGE = "batch too large"
    RECORD_LIST_TOO_LARGE = "batch larger than a segment"
    OUT_OF_ORDER_SEQUENCE = "sequence number out of order"
    DUPLICATE_SEQUENCE = "duplicate sequence number"
    UNKNOWN_PRODUCER_ID = "unknown producer id"
    INVALID_PRODUCER_EPOCH = "producer epoch is fenced"

    # Groups.
    ILLEGAL_GENERATION = "generation is not the group's"
    INCONSISTENT_GROUP_PROTOCOL = "no protocol in common with the group"
    REBALANCE_IN_PROGRESS = "the group is rebalancing"
    MEMBER_ID_REQUIRED = "join again with the member id given"
    FENCED_INSTANCE_ID = "another member uses this instance id"
    NON_EMPTY_GROUP = "the group still has members"
    GROUP_SUBSCRIBED_TO_TOPIC = "the group is subscribed to the topic"
    GROUP_MAX_SIZE_REACHED = "the group is full"
    COORDINATOR_LOAD_IN_PROGRESS = "the coordinator is loading"
    COORDINATOR_NOT_AVAILABLE = "the coordinator is not available"
    NOT_COORDINATOR = "this node does not coordinate the group"

    # Queues.
    NOT_LEASE_OWNER = "not owner"
    NOT_IN_FLIGHT = "record is not in flight"
    DEADLINE_EXCEEDED = "message deadline exceeded"
    BACKLOG_FULL = "too many records wait to be consumed"
    UNKNOWN_CONSUMER = "unknown consumer of the group"

    # Sinks.
    UNKNOWN_SINK = "unknown sink"
    SINK_BUSY = "the sink is committing another batch"

    # Access.
    TOPIC_AUTHORIZATION_FAILED = "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = "not allowed on this group"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = "not allowed on this transactional id"
    AUTHENTICATION_REQUIRED = "authentication is required"
    AUTHENTICATION_FAILED = "authentication failed"
    UNKNOWN_USER = "unknown user"
    UNKNOWN_ROLE = "unknown role"
    USER_ALREADY_EXISTS = "the user already exists"
    UNKNOWN_API_KEY = "unknown API key"
    QUOTA_EXCEEDED = "over the quota"
    AUDIT_UNAVAILABLE = "the audit log cannot be written"

    # Failures outside the request.
    STORAGE_ERROR = "storage error"
    METADATA_UNAVAILABLE = "the metadata store cannot be reached"
    LINK_LOST = "another node did not answer; whether it did what was asked is not known"
    NOT_ENOUGH_REPLICAS = "too few replicas in sync"
    REQUEST_TIMED_OUT = "request timed out"
    SHUTTING_DOWN = "the broker is shutting down"
    UNKNOWN = "unexpected error"


class PenstockError(Exception):
    """A refusal: nothing was changed, and ``text`` tells the caller what to do.

    ``records`` are the invalid records of a batch, by their index, each with its text.
    """

    def __init__(self, reason: Reason, text: str = "", records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(text or reason.value)
        self.reason = reason
        self.text = text or reason.value
        self.records = records
        self.begun = False
        """Whether something may have been changed before the refusal, so that the request must not simply be repeated."""


RETRY_AFTER_MS: Final = 1_000
"""How long a producer should wait if the backlog of a partition is full."""


class BacklogBound(Enum):
    """The bound that was reached, in the words of the API."""

    RECORDS = "partition_buffer_full"
    BYTES = "partition_buffer_bytes_full"


class BacklogFull(PenstockError):
    """The refusal of a record because its partition has too many unconsumed records."""

    def __init__(self, bound: BacklogBound, text: str) -> None:
        super().__init__(Reason.BACKLOG_FULL, text)
        self.bound: Final = bound
        self.retry_after_ms: Final = RETRY_AFTER_MS


class QuotaExceeded(PenstockError):
    """The refusal of a caller that is over a quota of its user, client id or address."""

    def __init__(self, quota: str, retry_after_ms: int) -> None:
        super().__init__(
            Reason.QUOTA_EXCEEDED,
            f"The quota {quota} is exceeded; try again in {retry_after_ms} ms, or ask an administrator for more",
        )
        self.retry_after_ms: Final = retry_after_ms
