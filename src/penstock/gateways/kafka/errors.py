"""Kafka's error code for each reason for a refusal.

Where Kafka has no code for a reason, it gets the one with which clients react best: retry, refresh, or give up.
"""

from typing import Final

from penstock.errors import Reason
from penstock.meters import Meters
from penstock.types import Gateway

LOG_DIR_NOT_FOUND: Final = 57
MISMATCHED_ENDPOINT_TYPE: Final = 114
"""Errors that exist only in Kafka's protocol."""

CODES: Final[dict[Reason, int]] = {
    Reason.UNKNOWN: -1,  # UNKNOWN_SERVER_ERROR
    Reason.OFFSET_OUT_OF_RANGE: 1,
    Reason.CORRUPT_RECORDS: 2,  # CORRUPT_MESSAGE
    Reason.UNKNOWN_TOPIC_OR_PARTITION: 3,
    Reason.LEADER_NOT_AVAILABLE: 5,
    Reason.NOT_LEADER_OR_FOLLOWER: 6,
    # Clients look for another leader and try again, which is the broker after its restart.
    Reason.SHUTTING_DOWN: 6,  # NOT_LEADER_OR_FOLLOWER
    Reason.REQUEST_TIMED_OUT: 7,
    Reason.METADATA_UNAVAILABLE: 7,
    Reason.LINK_LOST: 7,
    Reason.RECORDS_TOO_LARGE: 10,  # MESSAGE_TOO_LARGE
    Reason.OFFSET_METADATA_TOO_LARGE: 12,
    Reason.COORDINATOR_LOAD_IN_PROGRESS: 14,
    Reason.COORDINATOR_NOT_AVAILABLE: 15,
    Reason.NOT_COORDINATOR: 16,
    Reason.INVALID_TOPIC: 17,  # INVALID_TOPIC_EXCEPTION
    Reason.RECORD_LIST_TOO_LARGE: 18,
    Reason.NOT_ENOUGH_REPLICAS: 19,
    Reason.INVALID_REQUIRED_ACKS: 21,
    Reason.ILLEGAL_GENERATION: 22,
    Reason.INCONSISTENT_GROUP_PROTOCOL: 23,
    Reason.INVALID_GROUP_ID: 24,
    Reason.UNKNOWN_MEMBER_ID: 25,
    Reason.UNKNOWN_CONSUMER: 25,  # UNKNOWN_MEMBER_ID
    Reason.INVALID_SESSION_TIMEOUT: 26,
    Reason.REBALANCE_IN_PROGRESS: 27,
    Reason.INVALID_COMMIT_OFFSET_SIZE: 28,
    Reason.TOPIC_AUTHORIZATION_FAILED: 29,
    Reason.GROUP_AUTHORIZATION_FAILED: 30,
    Reason.CLUSTER_AUTHORIZATION_FAILED: 31,
    Reason.INVALID_TIMESTAMP: 32,
    Reason.UNSUPPORTED_VERSION: 35,
    Reason.TOPIC_ALREADY_EXISTS: 36,
    Reason.INVALID_PARTITIONS: 37,
    Reason.INVALID_REPLICATION_FACTOR: 38,
    Reason.INVALID_REPLICA_ASSIGNMENT: 39,
    Reason.INVALID_CONFIG: 40,
    Reason.INVALID_REQUEST: 42,
    Reason.UNSUPPORTED_FOR_MESSAGE_FORMAT: 43,
    Reason.POLICY_VIOLATION: 44,
    Reason.AUDIT_UNAVAILABLE: 44,  # POLICY_VIOLATION
    Reason.OUT_OF_ORDER_SEQUENCE: 45,  # OUT_OF_ORDER_SEQUENCE_NUMBER
    Reason.DUPLICATE_SEQUENCE: 46,  # DUPLICATE_SEQUENCE_NUMBER
    Reason.INVALID_PRODUCER_EPOCH: 47,
    # The only code with which every client gives up at once; with others, some retry until their timeout.
    Reason.TRANSACTIONS_NOT_SUPPORTED: 53,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    Reason.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 53,
    Reason.SECURITY_DISABLED: 54,
    Reason.STORAGE_ERROR: 56,  # KAFKA_STORAGE_ERROR
    Reason.AUTHENTICATION_REQUIRED: 58,  # SASL_AUTHENTICATION_FAILED
    Reason.AUTHENTICATION_FAILED: 58,  # SASL_AUTHENTICATION_FAILED
    Reason.UNKNOWN_PRODUCER_ID: 59,
    Reason.NON_EMPTY_GROUP: 68,
    Reason.GROUP_ID_NOT_FOUND: 69,
    Reason.FETCH_SESSION_ID_NOT_FOUND: 70,
    Reason.INVALID_FETCH_SESSION_EPOCH: 71,
    Reason.FENCED_LEADER_EPOCH: 74,
    Reason.UNKNOWN_LEADER_EPOCH: 75,
    Reason.UNSUPPORTED_COMPRESSION_TYPE: 76,
    Reason.OFFSET_NOT_AVAILABLE: 78,
    Reason.MEMBER_ID_REQUIRED: 79,
    Reason.PREFERRED_LEADER_NOT_AVAILABLE: 80,
    Reason.GROUP_MAX_SIZE_REACHED: 81,
    Reason.FENCED_INSTANCE_ID: 82,
    Reason.ELIGIBLE_LEADERS_NOT_AVAILABLE: 83,
    Reason.ELECTION_NOT_NEEDED: 84,
    Reason.NO_REASSIGNMENT_IN_PROGRESS: 85,
    Reason.GROUP_SUBSCRIBED_TO_TOPIC: 86,
    Reason.INVALID_RECORD: 87,
    Reason.DEADLINE_EXCEEDED: 87,  # INVALID_RECORD
    Reason.BACKLOG_FULL: 89,  # THROTTLING_QUOTA_EXCEEDED
    Reason.QUOTA_EXCEEDED: 89,  # THROTTLING_QUOTA_EXCEEDED
    Reason.UNKNOWN_USER: 91,  # RESOURCE_NOT_FOUND
    Reason.USER_ALREADY_EXISTS: 92,  # DUPLICATE_RESOURCE
    Reason.UNKNOWN_TOPIC_ID: 100,
    Reason.UNKNOWN_NODE: 102,  # BROKER_ID_NOT_REGISTERED
    Reason.FETCH_SESSION_TOPIC_ID_ERROR: 106,
    Reason.NOT_LEASE_OWNER: 121,  # INVALID_RECORD_STATE
    Reason.NOT_IN_FLIGHT: 121,  # INVALID_RECORD_STATE
    Reason.UNKNOWN_SINK: 42,  # INVALID_REQUEST
    Reason.SINK_BUSY: 42,  # INVALID_REQUEST
}


def counted_code(meters: Meters, reason: Reason) -> int:
    """The code of a refusal, which is counted."""
    meters.request_errors.add((Gateway.KAFKA.value, reason.name.lower()))
    return CODES[reason]
