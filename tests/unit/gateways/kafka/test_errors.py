"""Kafka's numbers for our reasons, held against the names that another implementation gives them."""

import pytest
from kio.schema.errors import ErrorCode

from penstock.errors import Reason
from penstock.gateways.kafka.errors import CODES

NAMED_OTHERWISE = {
    Reason.UNKNOWN: "unknown_server_error",
    Reason.CORRUPT_RECORDS: "corrupt_message",
    Reason.SHUTTING_DOWN: "not_leader_or_follower",
    Reason.RECORDS_TOO_LARGE: "message_too_large",
    Reason.INVALID_TOPIC: "invalid_topic_exception",
    Reason.OUT_OF_ORDER_SEQUENCE: "out_of_order_sequence_number",
    Reason.DUPLICATE_SEQUENCE: "duplicate_sequence_number",
    Reason.TRANSACTIONS_NOT_SUPPORTED: "transactional_id_authorization_failed",
    Reason.STORAGE_ERROR: "kafka_storage_error",
    Reason.UNKNOWN_CONSUMER: "unknown_member_id",
    Reason.DEADLINE_EXCEEDED: "invalid_record",
    Reason.BACKLOG_FULL: "throttling_quota_exceeded",
    Reason.AUDIT_UNAVAILABLE: "policy_violation",
    Reason.QUOTA_EXCEEDED: "throttling_quota_exceeded",
    Reason.NOT_LEASE_OWNER: "invalid_record_state",
    Reason.NOT_IN_FLIGHT: "invalid_record_state",
    Reason.UNKNOWN_SINK: "invalid_request",
    Reason.SINK_BUSY: "invalid_request",
    Reason.METADATA_UNAVAILABLE: "request_timed_out",
    Reason.LINK_LOST: "request_timed_out",
    Reason.UNKNOWN_NODE: "broker_id_not_registered",
    Reason.AUTHENTICATION_REQUIRED: "sasl_authentication_failed",
    Reason.AUTHENTICATION_FAILED: "sasl_authentication_failed",
    Reason.UNKNOWN_USER: "resource_not_found",
    Reason.UNKNOWN_ROLE: "resource_not_found",
    Reason.USER_ALREADY_EXISTS: "duplicate_resource",
    Reason.UNKNOWN_API_KEY: "resource_not_found",
}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_the_code_of_its_name(reason: Reason) -> None:
    name = NAMED_OTHERWISE.get(reason, reason.name.lower())
    assert ErrorCode[name].value == CODES[reason]


def test_no_code_stands_for_success() -> None:
    assert 0 not in CODES.values()
