"""The status code of each error. The text becomes the details of the status."""

from collections.abc import Mapping
from typing import Final

from grpc import StatusCode

from penstock.core.topics.topics import Topics
from penstock.errors import PenstockError, Reason

DETAIL_CHARS_MAX: Final = 1000
"""Details are sent in the trailing metadata. Clients accept 8 KiB of it by default, and a character can take twelve bytes."""

NAME_CHARS_SHOWN: Final = 249
"""The length of the longest topic name."""

CODES: Final[Mapping[Reason, StatusCode]] = {
    Reason.UNKNOWN_TOPIC_OR_PARTITION: StatusCode.NOT_FOUND,
    Reason.UNKNOWN_TOPIC_ID: StatusCode.NOT_FOUND,
    Reason.GROUP_ID_NOT_FOUND: StatusCode.NOT_FOUND,
    Reason.UNKNOWN_MEMBER_ID: StatusCode.NOT_FOUND,
    Reason.UNKNOWN_CONSUMER: StatusCode.NOT_FOUND,
    Reason.OFFSET_OUT_OF_RANGE: StatusCode.OUT_OF_RANGE,
    Reason.TOPIC_ALREADY_EXISTS: StatusCode.ALREADY_EXISTS,
    Reason.INVALID_REQUEST: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_TOPIC: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_CONFIG: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_PARTITIONS: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_REPLICATION_FACTOR: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_REPLICA_ASSIGNMENT: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_REQUIRED_ACKS: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_TIMESTAMP: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_GROUP_ID: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_SESSION_TIMEOUT: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_COMMIT_OFFSET_SIZE: StatusCode.INVALID_ARGUMENT,
    Reason.OFFSET_METADATA_TOO_LARGE: StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_RECORD: StatusCode.INVALID_ARGUMENT,
    Reason.RECORDS_TOO_LARGE: StatusCode.INVALID_ARGUMENT,
    Reason.RECORD_LIST_TOO_LARGE: StatusCode.INVALID_ARGUMENT,
    Reason.DEADLINE_EXCEEDED: StatusCode.INVALID_ARGUMENT,
    Reason.POLICY_VIOLATION: StatusCode.RESOURCE_EXHAUSTED,
    Reason.GROUP_MAX_SIZE_REACHED: StatusCode.RESOURCE_EXHAUSTED,
    Reason.QUOTA_EXCEEDED: StatusCode.RESOURCE_EXHAUSTED,
    Reason.BACKLOG_FULL: StatusCode.RESOURCE_EXHAUSTED,
    Reason.NOT_LEASE_OWNER: StatusCode.FAILED_PRECONDITION,
    Reason.NOT_IN_FLIGHT: StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_SINK: StatusCode.NOT_FOUND,
    Reason.SINK_BUSY: StatusCode.FAILED_PRECONDITION,
    Reason.INCONSISTENT_GROUP_PROTOCOL: StatusCode.FAILED_PRECONDITION,
    Reason.NON_EMPTY_GROUP: StatusCode.FAILED_PRECONDITION,
    Reason.GROUP_SUBSCRIBED_TO_TOPIC: StatusCode.FAILED_PRECONDITION,
    Reason.OUT_OF_ORDER_SEQUENCE: StatusCode.FAILED_PRECONDITION,
    Reason.DUPLICATE_SEQUENCE: StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_PRODUCER_ID: StatusCode.FAILED_PRECONDITION,
    Reason.INVALID_PRODUCER_EPOCH: StatusCode.FAILED_PRECONDITION,
    Reason.ILLEGAL_GENERATION: StatusCode.ABORTED,
    Reason.REBALANCE_IN_PROGRESS: StatusCode.ABORTED,
    Reason.MEMBER_ID_REQUIRED: StatusCode.ABORTED,
    Reason.FENCED_INSTANCE_ID: StatusCode.ABORTED,
    Reason.FETCH_SESSION_ID_NOT_FOUND: StatusCode.ABORTED,
    Reason.INVALID_FETCH_SESSION_EPOCH: StatusCode.ABORTED,
    Reason.FETCH_SESSION_TOPIC_ID_ERROR: StatusCode.ABORTED,
    Reason.TOPIC_AUTHORIZATION_FAILED: StatusCode.PERMISSION_DENIED,
    Reason.GROUP_AUTHORIZATION_FAILED: StatusCode.PERMISSION_DENIED,
    Reason.CLUSTER_AUTHORIZATION_FAILED: StatusCode.PERMISSION_DENIED,
    Reason.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: StatusCode.PERMISSION_DENIED,
    Reason.AUTHENTICATION_REQUIRED: StatusCode.UNAUTHENTICATED,
    Reason.AUTHENTICATION_FAILED: StatusCode.UNAUTHENTICATED,
    Reason.UNKNOWN_USER: StatusCode.NOT_FOUND,
    Reason.UNKNOWN_API_KEY: StatusCode.NOT_FOUND,
    Reason.UNKNOWN_ROLE: StatusCode.NOT_FOUND,
    Reason.USER_ALREADY_EXISTS: StatusCode.ALREADY_EXISTS,
    Reason.UNSUPPORTED_VERSION: StatusCode.UNIMPLEMENTED,
    Reason.UNSUPPORTED_FOR_MESSAGE_FORMAT: StatusCode.UNIMPLEMENTED,
    Reason.UNSUPPORTED_COMPRESSION_TYPE: StatusCode.UNIMPLEMENTED,
    Reason.TRANSACTIONS_NOT_SUPPORTED: StatusCode.UNIMPLEMENTED,
    Reason.SECURITY_DISABLED: StatusCode.UNIMPLEMENTED,
    # The same call may succeed in a moment.
    Reason.UNKNOWN_LEADER_EPOCH: StatusCode.UNAVAILABLE,
    Reason.FENCED_LEADER_EPOCH: StatusCode.UNAVAILABLE,
    Reason.NOT_LEADER_OR_FOLLOWER: StatusCode.UNAVAILABLE,
    Reason.LEADER_NOT_AVAILABLE: StatusCode.UNAVAILABLE,
    Reason.OFFSET_NOT_AVAILABLE: StatusCode.UNAVAILABLE,
    Reason.PREFERRED_LEADER_NOT_AVAILABLE: StatusCode.UNAVAILABLE,
    Reason.ELIGIBLE_LEADERS_NOT_AVAILABLE: StatusCode.UNAVAILABLE,
    Reason.ELECTION_NOT_NEEDED: StatusCode.FAILED_PRECONDITION,
    Reason.NO_REASSIGNMENT_IN_PROGRESS: StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_NODE: StatusCode.NOT_FOUND,
    Reason.COORDINATOR_LOAD_IN_PROGRESS: StatusCode.UNAVAILABLE,
    Reason.COORDINATOR_NOT_AVAILABLE: StatusCode.UNAVAILABLE,
    Reason.NOT_COORDINATOR: StatusCode.UNAVAILABLE,
    Reason.NOT_ENOUGH_REPLICAS: StatusCode.UNAVAILABLE,
    Reason.SHUTTING_DOWN: StatusCode.UNAVAILABLE,
    Reason.REQUEST_TIMED_OUT: StatusCode.DEADLINE_EXCEEDED,
    Reason.AUDIT_UNAVAILABLE: StatusCode.UNAVAILABLE,
    Reason.METADATA_UNAVAILABLE: StatusCode.UNAVAILABLE,
    Reason.LINK_LOST: StatusCode.DEADLINE_EXCEEDED,
    Reason.CORRUPT_RECORDS: StatusCode.DATA_LOSS,
    Reason.STORAGE_ERROR: StatusCode.INTERNAL,
    Reason.UNKNOWN: StatusCode.INTERNAL,
}


def code_of(reason: Reason) -> StatusCode:
    """The status code of a reason."""
    return CODES.get(reason, StatusCode.INTERNAL)


def details_of(error: PenstockError) -> str:
    """The text, shortened for the limits of clients."""
    text = error.text
    return text if len(text) <= DETAIL_CHARS_MAX else f"{text[: DETAIL_CHARS_MAX - 3]}..."


def topic_not_found(name: str) -> PenstockError:
    """The API's error for a topic that does not exist."""
    shown = name if len(name) <= NAME_CHARS_SHOWN else f"{name[:NAME_CHARS_SHOWN]}..."
    return PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{shown}' not found")


def no_partition(topic: str, partition: int, count: int) -> PenstockError:
    """The error for a partition that does not exist."""
    return PenstockError(
        Reason.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic}' has no partition {partition}; it has 0 to {count - 1}"
    )


def translated(error: PenstockError, topics: Topics, topic: str, partition: int = 0) -> PenstockError:
    """The error of a request for a topic or a partition; the API's own error if one of them does not exist."""
    if error.reason is not Reason.UNKNOWN_TOPIC_OR_PARTITION:
        return error
    found = topics.get(topic)
    if found is None:
        return topic_not_found(topic)
    if not 0 <= partition < found.partition_count:
        return no_partition(topic, partition, found.partition_count)
    return error
