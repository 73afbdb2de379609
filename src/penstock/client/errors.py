"""The errors of the client.

:class:`ClientError` is the base class. :class:`CannotConnect` (with :class:`NotKafka` and :class:`TlsFailed`), :class:`RequestTimeout` and
:class:`ConnectionLost` are about the connection, :class:`AuthenticationFailed` and :class:`InvalidSecurity` about credentials. :class:`BrokerRefused` is a refusal over the Kafka protocol, with the number and name of its code and a sentence;
:class:`RequestRefused` is a refusal over HTTP. ``retriable`` is whether the same request may succeed later.
"""

import re
import socket
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.address import Address


class ClientError(Exception):
    """The base class of all errors of the client. Its text is for people."""

    retriable = False


class CannotConnect(ClientError):
    """No broker answered at the addresses given."""


class NotKafka(CannotConnect):
    """The server at this address does not speak the Kafka protocol. The address is wrong, so it is no use to wait."""


class NotPenstock(CannotConnect):
    """The server at this address is not Penstock's HTTP API. The address is wrong, so it is no use to wait."""


class TlsFailed(CannotConnect):
    """The connection is not secure: the server does not use TLS, its certificate cannot be trusted, or it refuses this client's."""


class AuthenticationFailed(ClientError):
    """The broker refused the credentials, or did not prove that it knows them. It is no use to repeat the request."""


class AuthenticationRequired(AuthenticationFailed):
    """The broker requires credentials, and this client has none."""

    def __init__(self, address: Address) -> None:
        super().__init__(
            f"{address} requires authentication: specify --user and --password-file, or --token-file, or a context with them (--context)"
        )


class InvalidSecurity(ClientError, ValueError):
    """Settings of TLS or credentials that contradict each other, or a file that cannot be used. The text shows no secret."""


class ConnectionLost(ClientError):
    """The connection broke before the response; it is not known whether the request was carried out."""

    retriable = True


class RequestTimeout(ClientError):
    """No response in time."""


class BatchTooLarge(ClientError):
    """A batch that does not fit into a request: a broker would close the connection without a response."""

    def __init__(self, place: str, record_count: int, size_bytes: int, bytes_max: int) -> None:
        records = "a record" if record_count == 1 else f"a batch of {record_count} records"
        super().__init__(
            f"{place}: {records} of {size_bytes:,} bytes exceeds the largest request that a broker accepts ({bytes_max:,} bytes): write smaller "
            "records, or store large data elsewhere and write its location"
        )
        self.record_count = record_count
        self.size_bytes = size_bytes
        self.bytes_max = bytes_max


class UnsupportedByBroker(ClientError):
    """The broker does not support the API, or no version of it that this client supports."""


class ErrorKind(NamedTuple):
    """A Kafka error code: its name, whether a retry may help, and a sentence."""

    name: str
    retriable: bool
    sentence: str


class BrokerRefused(ClientError):
    """The broker answered with an error code.

    ``in_metadata``: the topic was in the metadata that the request is based on, so it exists, or did a moment ago.
    """

    def __init__(self, code: int, what: str = "", message: str | None = None, *, in_metadata: bool = False) -> None:
        kind = KINDS.get(code, ErrorKind(f"ERROR_{code}", False, f"the broker returned error {code}"))
        self.code = code
        self.name = kind.name
        self.retriable = kind.retriable
        self.in_metadata = in_metadata
        self.sentence = (message or kind.sentence).rstrip(".")
        before = f"{what}: " if what and not _names(self.sentence, what) else ""
        super().__init__(f"{before}{self.sentence} ({kind.name})")


class RequestRefused(ClientError):
    """A refusal over HTTP: the status, the error code, the broker's sentence, and how long to wait, if the broker specified it."""

    def __init__(
        self, status: int, code: str, sentence: str, *, reason: str | None = None, retry_after_ms: int | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.sentence = sentence.rstrip(".")
        self.reason = reason
        self.retry_after_ms = retry_after_ms
        self.retriable = status in RETRIABLE_STATUSES
        super().__init__(f"{self.sentence} ({code})")

    @property
    def is_not_found(self) -> bool:
        """Whether something was not found. Some calls report a missing topic as an invalid argument."""
        return self.status == NOT_FOUND_STATUS or self.sentence.startswith("topic does not exist")


RETRIABLE_STATUSES: Final = frozenset({429, 503, 504})
NOT_FOUND_STATUS: Final = 404
UNAUTHENTICATED_STATUS: Final = 401


def _names(sentence: str, what: str) -> bool:
    """Whether a broker's sentence already names the thing: "Topic x ..." for "topic 'x'"."""
    kind, _, name = what.partition(" ")
    name = re.escape(name.strip("'"))
    return bool(name) and re.search(rf"\b{kind} '?{name}(?![\w.-]*\w)", sentence, re.IGNORECASE) is not None


def check(code: int, what: str = "", message: str | None = None, *, in_metadata: bool = False) -> None:
    """Raise :class:`BrokerRefused` unless the code is 0."""
    if code:
        raise BrokerRefused(code, what, message, in_metadata=in_metadata)


def cannot_connect(address: Address, error: OSError, flag: str) -> CannotConnect:
    """The error for an address that cannot be connected to; ``flag`` is the option of the command line that has it."""
    if isinstance(error, socket.gaierror):
        return CannotConnect(f"Cannot find the host {address.host!r}: check the name in {flag}")
    why = "No answer in time." if isinstance(error, TimeoutError) else f"{error.strerror or error}."
    if isinstance(error, ConnectionRefusedError):
        why = "Is the broker running?"
    return CannotConnect(
        f'Cannot connect to {address}. {why} Start a broker with "penstock serve", or specify another with {flag}'
    )


def cannot_connect_to_any(addresses: Iterable[Address], flag: str) -> CannotConnect:
    """The error for several nodes of which none can be connected to."""
    names = ", ".join(map(str, addresses))
    return CannotConnect(f"Cannot connect to any of {names}: start the cluster, or specify its nodes with {flag}")


UNKNOWN_SERVER_ERROR: Final = -1
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
NOT_ENOUGH_REPLICAS: Final = 19
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
NOT_CONTROLLER: Final = 41
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46
GROUP_ID_NOT_FOUND: Final = 69
ELECTION_NOT_NEEDED: Final = 84
NO_REASSIGNMENT_IN_PROGRESS: Final = 85
MEMBER_ID_REQUIRED: Final = 79
UNKNOWN_TOPIC_ID: Final = 100

NOT_FOUND_CODES: Final = frozenset({UNKNOWN_TOPIC_OR_PARTITION, GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_ID})
"""Codes for something that does not exist."""

NODES_MISSING_CODES: Final = frozenset({LEADER_NOT_AVAILABLE, COORDINATOR_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS, 83})
"""Codes for nodes that are not up. They are reported after several attempts."""

KINDS: Final[dict[int, ErrorKind]] = {
    -1: ErrorKind("UNKNOWN_SERVER_ERROR", False, "the broker had an unexpected error; see its log"),
    1: ErrorKind("OFFSET_OUT_OF_RANGE", False, "the offset is out of range for the partition"),
    2: ErrorKind("CORRUPT_MESSAGE", True, "the checksum of the records does not match"),
    3: ErrorKind("UNKNOWN_TOPIC_OR_PARTITION", True, "there is no such topic or partition"),
    4: ErrorKind("INVALID_FETCH_SIZE", False, "the fetch size is invalid"),
    5: ErrorKind("LEADER_NOT_AVAILABLE", True, "the partition has no leader at the moment"),
    6: ErrorKind("NOT_LEADER_OR_FOLLOWER", True, "another broker is now the leader of the partition"),
    7: ErrorKind("REQUEST_TIMED_OUT", True, "the broker could not finish in time"),
    8: ErrorKind("BROKER_NOT_AVAILABLE", False, "the broker is not available"),
    9: ErrorKind("REPLICA_NOT_AVAILABLE", True, "the replica is not available"),
    10: ErrorKind(
        "MESSAGE_TOO_LARGE", False, "the batch is larger than the topic's max.message.bytes; send smaller records"
    ),
    11: ErrorKind("STALE_CONTROLLER_EPOCH", False, "the controller's epoch is stale"),
    12: ErrorKind("OFFSET_METADATA_TOO_LARGE", False, "the metadata of the offset is too large"),
    13: ErrorKind("NETWORK_EXCEPTION", True, "the broker lost a connection to another node"),
    14: ErrorKind("COORDINATOR_LOAD_IN_PROGRESS", True, "the group coordinator is still loading"),
    15: ErrorKind("COORDINATOR_NOT_AVAILABLE", True, "the group coordinator is not available"),
    16: ErrorKind("NOT_COORDINATOR", True, "another broker is now the coordinator of the group"),
    17: ErrorKind("INVALID_TOPIC_EXCEPTION", False, "the topic name is invalid; use up to 249 of a-z A-Z 0-9 . _ -"),
    18: ErrorKind("RECORD_LIST_TOO_LARGE", False, "the batch is larger than a segment; send smaller batches"),
    19: ErrorKind("NOT_ENOUGH_REPLICAS", True, "too few replicas are in sync"),
    20: ErrorKind("NOT_ENOUGH_REPLICAS_AFTER_APPEND", True, "written, but too few replicas were in sync afterwards"),
    21: ErrorKind("INVALID_REQUIRED_ACKS", False, "acks must be 0, 1 or all"),
    22: ErrorKind("ILLEGAL_GENERATION", False, "the generation of the group has changed; join again"),
    23: ErrorKind("INCONSISTENT_GROUP_PROTOCOL", False, "the members of the group have no assignor in common"),
    24: ErrorKind("INVALID_GROUP_ID", False, "the group id is invalid"),
    25: ErrorKind("UNKNOWN_MEMBER_ID", False, "the group does not know this member; join again"),
    26: ErrorKind("INVALID_SESSION_TIMEOUT", False, "the session timeout is outside the range that the broker allows"),
    27: ErrorKind("REBALANCE_IN_PROGRESS", False, "the group is rebalancing; join again"),
    28: ErrorKind("INVALID_COMMIT_OFFSET_SIZE", False, "the offset commit is too large"),
    29: ErrorKind("TOPIC_AUTHORIZATION_FAILED", False, "not allowed on this topic"),
    30: ErrorKind("GROUP_AUTHORIZATION_FAILED", False, "not allowed on this group"),
    31: ErrorKind("CLUSTER_AUTHORIZATION_FAILED", False, "not allowed on this cluster"),
    32: ErrorKind("INVALID_TIMESTAMP", False, "the timestamp is out of range"),
    33: ErrorKind("UNSUPPORTED_SASL_MECHANISM", False, "the broker does not support this SASL mechanism"),
    34: ErrorKind("ILLEGAL_SASL_STATE", False, "not allowed in this state of authentication"),
    35: ErrorKind("UNSUPPORTED_VERSION", False, "the broker does not support this version of the request"),
    36: ErrorKind("TOPIC_ALREADY_EXISTS", False, "the topic already exists"),
    37: ErrorKind("INVALID_PARTITIONS", False, "the number of partitions is invalid"),
    38: ErrorKind(
        "INVALID_REPLICATION_FACTOR", False, "the replication factor is below 1 or above the number of brokers"
    ),
    39: ErrorKind("INVALID_REPLICA_ASSIGNMENT", False, "the replica assignment is invalid"),
    40: ErrorKind("INVALID_CONFIG", False, "the configuration is invalid"),
    41: ErrorKind("NOT_CONTROLLER", True, "another broker is now the controller"),
    42: ErrorKind("INVALID_REQUEST", False, "the request is invalid"),
    43: ErrorKind("UNSUPPORTED_FOR_MESSAGE_FORMAT", False, "not possible with this message format"),
    44: ErrorKind("POLICY_VIOLATION", False, "refused by a limit of the broker"),
    45: ErrorKind("OUT_OF_ORDER_SEQUENCE_NUMBER", False, "the producer's batches are out of order"),
    46: ErrorKind("DUPLICATE_SEQUENCE_NUMBER", False, "the batch was already written"),
    47: ErrorKind("INVALID_PRODUCER_EPOCH", False, "a newer producer has taken over this id"),
    48: ErrorKind("INVALID_TXN_STATE", False, "not possible in this state of the transaction"),
    53: ErrorKind("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False, "not allowed to use this transactional id"),
    54: ErrorKind("SECURITY_DISABLED", False, "the broker's security features are disabled"),
    56: ErrorKind("KAFKA_STORAGE_ERROR", True, "the broker's disk failed or is full; check its log and the free space"),
    58: ErrorKind("SASL_AUTHENTICATION_FAILED", False, "the user name or password is wrong"),
    59: ErrorKind("UNKNOWN_PRODUCER_ID", False, "the broker does not know this producer"),
    60: ErrorKind("REASSIGNMENT_IN_PROGRESS", False, "partitions are being moved; try again later"),
    68: ErrorKind("NON_EMPTY_GROUP", False, "the group still has members; stop them first"),
    69: ErrorKind("GROUP_ID_NOT_FOUND", False, "there is no such group"),
    70: ErrorKind("FETCH_SESSION_ID_NOT_FOUND", True, "the broker dropped the fetch session"),
    71: ErrorKind("INVALID_FETCH_SESSION_EPOCH", True, "the epoch of the fetch session does not match"),
    72: ErrorKind("LISTENER_NOT_FOUND", True, "the leader has no listener of this kind"),
    73: ErrorKind("TOPIC_DELETION_DISABLED", False, "deleting topics is disabled"),
    74: ErrorKind("FENCED_LEADER_EPOCH", True, "this client's metadata of the partition is outdated"),
    75: ErrorKind("UNKNOWN_LEADER_EPOCH", True, "the broker's metadata of the partition is outdated"),
    76: ErrorKind("UNSUPPORTED_COMPRESSION_TYPE", False, "the broker does not support this compression codec"),
    78: ErrorKind("OFFSET_NOT_AVAILABLE", True, "the offset is not known yet after a change of leader"),
    79: ErrorKind("MEMBER_ID_REQUIRED", False, "join again with the member id given"),
    80: ErrorKind("PREFERRED_LEADER_NOT_AVAILABLE", True, "the preferred leader is not up and in sync"),
    81: ErrorKind("GROUP_MAX_SIZE_REACHED", False, "the group is full"),
    82: ErrorKind("FENCED_INSTANCE_ID", False, "another member uses this instance id"),
    83: ErrorKind("ELIGIBLE_LEADERS_NOT_AVAILABLE", True, "no eligible replica is up"),
    84: ErrorKind("ELECTION_NOT_NEEDED", True, "no election is needed for the partition"),
    85: ErrorKind("NO_REASSIGNMENT_IN_PROGRESS", False, "the partition is not being moved"),
    86: ErrorKind("GROUP_SUBSCRIBED_TO_TOPIC", False, "the group still reads this topic; stop its members first"),
    87: ErrorKind("INVALID_RECORD", False, "a record is invalid; on a compacted topic every record needs a key"),
    88: ErrorKind("UNSTABLE_OFFSET_COMMIT", True, "a transaction on these offsets is still open"),
    89: ErrorKind("THROTTLING_QUOTA_EXCEEDED", True, "too many requests of this kind; try again later"),
    90: ErrorKind("PRODUCER_FENCED", False, "a newer producer has taken over this id"),
    95: ErrorKind("INVALID_UPDATE_VERSION", False, "the version to update to is invalid"),
    100: ErrorKind("UNKNOWN_TOPIC_ID", True, "there is no topic with this id"),
    102: ErrorKind("BROKER_ID_NOT_REGISTERED", False, "there is no such broker"),
    103: ErrorKind("INCONSISTENT_TOPIC_ID", True, "the topic was deleted and made again"),
    106: ErrorKind("FETCH_SESSION_TOPIC_ID_ERROR", True, "the topic ids of the fetch session changed"),
}
