"""Every limit of the broker, with the reason for its size. The assertions at the end check the relations between them."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# A frame starts with its size, which is checked before memory is allocated.
REQUEST_BYTES_MAX = 100 * MIB
"""As Kafka's socket.request.max.bytes."""
RECEIVE_SCRATCH_BYTES = 256 * KIB
"""All connections of a gateway read into one buffer of this size; only an incomplete frame gets a separate one."""
RECEIVE_BUFFER_BYTES_INITIAL = 16 * KIB
RECEIVE_GROWTH = 8
"""The buffer of a frame is at most this many times the received bytes, whatever its length says."""
RECEIVE_BUFFER_BYTES_KEPT_MAX = 4 * MIB
RECEIVE_BUFFERS_POOLED_MAX = 8
RECEIVE_BACKLOG_BYTES_MAX = 256 * KIB
"""Received bytes of a connection whose request is still running; reading pauses above it."""
CONNECTIONS_MAX = 10_000
CONNECTION_IDLE_MS_MAX = 10 * 60 * 1000
CONNECTION_ENDED_MS_MAX = 30 * 1000
"""How long the connection of a client that has closed its side stays open while no response becomes ready: the client may still
read, or be gone, which cannot be distinguished."""
ACCEPT_BACKLOG = 1024
"""Connections that wait in the kernel to be accepted."""
ACCEPTS_PER_TURN = 64
"""Connections of one listener that are accepted before the event loop serves others."""
STRANGERS_MAX = 1000
"""Connections of all listeners in the TLS handshake or before the login; the oldest makes room for the next. With uvloop, each takes some
25 KiB from its first byte on."""
STRANGERS_PER_ADDRESS_MAX = 50
"""The same for one address, so that one client cannot take the places of others."""
HANDSHAKE_RATE_MAX = 1000
"""TLS handshakes per second: one takes half a millisecond, so this is half a core. More connections wait in the kernel."""
HANDSHAKE_MS_MAX = 10_000
"""A client with a working network needs three round trips."""
TLS_SHUTDOWN_MS_MAX = 2000
"""How long a closed connection waits for the client's goodbye."""
CONNECTION_PENDING_REQUESTS_MAX = 1024
"""Unanswered requests of one connection; reading pauses above it."""
CONNECTION_PENDING_OUTPUT_BYTES_MAX = 64 * MIB
"""Bytes that a slow client has not received; reading pauses above it."""

FETCH_BYTES_MAX = 55 * MIB
"""Maximum of one fetch response, whatever the client requests (as Kafka's fetch.max.bytes); one larger batch is still sent."""
FETCH_WAIT_MS_MAX = 5 * 60 * 1000
SETTLE_MS_MAX = 1000
"""How long a lookup or a fetch waits for followers to replicate records that its leader has acknowledged and synced: much longer
than healthy followers take, and short for a client if one of them has just failed."""
FETCH_SESSIONS_MAX = 1000
FETCH_SESSION_PARTITIONS_MAX = 100_000
FETCH_SESSIONS_PARTITIONS_MAX = 1_000_000
"""Total of all sessions: some hundred bytes each. A client that would need more continues without a session."""
FETCH_SESSION_IDLE_MS_MIN = 2 * 60 * 1000

TOPIC_NAME_CHARS_MAX = 249
TOPICS_MAX = 100_000
PARTITIONS_PER_TOPIC_MAX = 10_000
PARTITIONS_MAX = 200_000
DESCRIBED_RESOURCES_MAX = 10_000
"""Resources whose configs one request may describe: some kilobytes of response each."""
FIND_COORDINATOR_KEYS_MAX = 10_000
"""Groups whose coordinator one request may look up. Clients look up all groups that they describe in one request."""
DESCRIBED_PARTITIONS_MAX = 2000
"""In one response of DescribeTopicPartitions (as Kafka's max.request.partition.size.limit); a cursor leads to the rest."""

GROUPS_MAX = 100_000
CONFIGURED_GROUPS_MAX = 10_000
"""Groups with their own configs: all of them are in memory on every node."""
CONFIG_CHARS_MAX = 4 * KIB
"""The value of one config. CONFIGURED_GROUPS_MAX times the configs of a group are in memory on every node."""
CONFIG_LIST_CHARS_MAX = 400 * KIB
"""The value of one list: the throttled replicas of a topic with PARTITIONS_PER_TOPIC_MAX partitions. A topic has two such lists, stored together."""
GROUP_MEMBERS_MAX = 10_000
GROUP_ID_CHARS_MAX = 249
GROUP_METADATA_BYTES_MAX = 1 * MIB
"""One member's subscription or assignment."""
GROUP_STATE_BYTES_MAX = 32 * MIB
"""All subscriptions, or all assignments, of one group: the leader receives them in one response, and they are stored in one record."""
GROUP_PROTOCOLS_MAX = 64
"""Assignment protocols that one member may support; clients list one to four."""
SHARED_MEMBER_TOPICS_MAX = 1000
"""Topics of one member whose partitions the broker assigns."""
OFFSET_METADATA_BYTES_MAX = 4096

GRPC_MESSAGE_BYTES_MAX = 32 * MIB
"""One message of a client: a frame of many records, or one large record."""
GRPC_CONNECTION_STREAMS_MAX = 1000
"""Concurrent calls on one connection; in gRPC the next one waits."""
GRPC_STREAMS_MAX = 10_000
"""Concurrent calls in total, including subscriptions; the next one is refused."""
GRPC_LOOKAHEAD_BYTES = 256 * KIB
"""What a client may send for a call before the broker reads it: with a round trip of 50 ms, a stream reaches 5 MB/s."""
GRPC_PENDING_FRAMES_MAX = 128
"""Unanswered frames of one PublishStream; reading pauses above it."""
GRPC_PENDING_RECORDS_MAX = 100_000
"""Records in those frames: the place of each is kept until the response, some 150 bytes per record."""
GRPC_BATCH_RECORDS_MAX = 1000
"""Records in a frame of SubscribeBatch: building one takes some milliseconds of the event loop."""
GRPC_BATCH_BYTES_MAX = 1 * MIB
"""Approximate size of a frame; one larger record is still sent. Clients accept 4 MiB by default."""

PRODUCER_IDS_PER_PARTITION_MAX = 100_000
PRODUCER_BATCHES_REMEMBERED = 5
"""As Kafka's clients expect: max.in.flight is at most five with idempotence."""
PRODUCER_ID_BLOCK = 1000

IDEMPOTENCY_KEYS_MAX = 1_000_000
"""Remembered produce keys, some 200 bytes each. A key must not be forgotten within its window, so new ones are refused above it."""
IDEMPOTENCY_KEY_CHARS_MAX = 1024

MESSAGE_BYTES_DEFAULT = 1 * MIB + 12
DECOMPRESSED_RATIO_MAX = 64
"""A batch may decompress to at most max.message.bytes times this."""
BATCH_RECORDS_MAX = 262_144
"""In one batch of a producer. More than fit into max.message.bytes without compression, and opening so many takes some tenths of a
second: ten million records without a value compress to a few kilobytes."""
RECORD_HEADERS_MAX = 10_000
"""Of a record that is published or decoded separately, for the same reason."""
SEGMENT_BYTES_MIN = 14
SEGMENT_BYTES_DEFAULT = 1 * GIB
SEGMENT_BYTES_MAX = 2 * GIB - 1
"""Positions in the offset index are 32 bits."""
INDEX_INTERVAL_BYTES_DEFAULT = 4096

PUBLISHED_BATCH_BYTES_MAX = 1 * MIB
"""Records that are published one by one share batches up to this size, which a reader of one of them must open."""
APPEND_GATHER_BYTES_MAX = 64 * KIB
"""Batches up to this size are collected until the end of the event loop's turn; larger ones are written immediately."""

COMPACTION_KEYS_MAX = 500_000
"""Keys that one run of compaction keeps in memory, some 150 bytes each; more of them take more runs."""
COMPACTION_READ_BYTES = 1 * MIB

METADATA_KEY_BYTES_MAX = 1 * KIB
METADATA_VALUE_BYTES_MAX = 1 * MIB
"""Less than etcd accepts in one request (1.5 MiB)."""
METADATA_COMMIT_TXNS_MAX = 128
"""Transactions that share one commit of the embedded store."""
METADATA_BUSY_MS_MAX = 5000
"""How long the embedded store waits for another process that has locked its file."""

REQUEST_ELEMENTS_MAX = 500_000
"""Array elements in one Kafka request, all its arrays together. An element that takes two bytes on the wire takes some
200 in memory, so without this a frame within REQUEST_BYTES_MAX could take gigabytes, and seconds of the event loop."""
RESPONSE_ELEMENTS_MAX = 4_000_000
"""The same for responses that our own client reads: the metadata of a large cluster must fit."""

QUEUE_IDEMPOTENCY_KEYS_MAX = 100_000
"""Finished keys that one queue remembers, some 300 bytes each; the oldest are dropped first."""
QUEUE_OWNER_CHARS_MAX = 249
QUEUE_IN_FLIGHT_MAX = 1_000_000
"""Leased records of one queue; each costs some 30 bytes."""

SINKS_MAX = 10_000
"""Exactly-once sinks that are remembered, some 500 bytes each."""
SINK_REMEMBER_MS_MIN = 600_000
"""The minimum that an opener may request: for so long our client repeats a commit whose response was lost."""
SINK_NAME_CHARS_MAX = 200
"""The name of its staging topic must fit into TOPIC_NAME_CHARS_MAX."""
SINK_TARGETS_MAX = 10_000
"""Partitions that one commit appends to."""
SINK_STAGED_MAX = 100_000
"""Staged ranges in one commit: some 2 MB of JSON, and a tenth of a second of the event loop. A range may have many batches."""
SINK_WAITING_MAX = 4
"""Commits of one sink that wait for the running one: there is one driver, and perhaps a few old ones that were replaced."""

USERS_MAX = 10_000
"""All users are in memory on every node, less than a kilobyte each."""
USER_NAME_CHARS_MAX = 128
PASSWORD_CHARS_MAX = 256
API_KEYS_MAX = 20_000
API_KEYS_PER_USER_MAX = 100
"""A user makes its own keys, and must not use up those of all."""
API_KEY_NAME_CHARS_MAX = 128
SCRAM_ITERATIONS = 4096
"""As RFC 7677 demands at least, and Kafka's default: a millisecond for SHA-256."""
SCRAM_ITERATIONS_MAX = 16_384
"""As Kafka's: four milliseconds for SHA-256, nine for SHA-512, of a thread."""
SCRAM_SALT_BYTES = 16
SCRAM_SALT_BYTES_MAX = 256
"""Of a salt that a client made."""
ALTERED_CREDENTIALS_MAX = 1_000
"""SCRAM credentials that one request may change."""
LOGIN_MS_MAX = 10_000
"""A connection that must authenticate is closed after this time without it; waits that the broker imposes do not count."""
LOGIN_FRAME_BYTES_MAX = 64 * KIB
"""The longest Kafka request before authentication: a token with its groups has some kilobytes."""
LOGIN_LINE_BYTES_MAX = 9 * KIB
"""The longest JSON line before authentication: TOKEN_BYTES_MAX and the rest of the line."""
LOGIN_LINE_FAILURES_MAX = 3
"""Failed ``auth`` lines after which the connection is closed."""
LOGIN_DELAY_MS = 100
"""Before the answer to a failed login."""
LOGIN_DELAY_MS_MAX = 30_000
LOGIN_FAILURES_FREE = 10
"""Failed logins of an address or a user, within a minute, that do not delay the next one."""
LOGIN_FAILURE_FORGIVEN_MS = 6_000
"""After this time one failure is forgotten: ten a minute."""
LOGIN_FAILURES_KEPT_MAX = 10_000
"""Addresses and users whose failures are remembered."""
LOGINS_PER_CLIENT_MAX = 50
"""Passwords of one address, or of one user at an address from which it has logged in, under way; further ones are refused."""
LOGINS_WAITING_MAX = 1_000
"""Passwords that wait to be checked, which takes milliseconds each; further ones are refused."""
LOGIN_THREADS = 2
"""Passwords that are checked at the same time."""
CREDENTIALS_REMEMBERED_MAX = 10_000
CREDENTIALS_REMEMBERED_MS = 5 * 60 * 1000
"""How long a checked password is known without checking it again; a change of users or keys forgets all."""
TOKEN_BYTES_MAX = 8 * KIB
TOKEN_GROUPS_MAX = 200
JWKS_BYTES_MAX = 256 * KIB
JWKS_KEYS_MAX = 100
JWKS_FETCH_SECONDS_MAX = 10
JWKS_REFRESH_MS = 60 * 60 * 1000
JWKS_RETRY_MS = 60 * 1000
"""A token with an unknown key makes this node fetch the keys again, at most this often."""
JWKS_KEPT_MS_MAX = 24 * 60 * 60 * 1000
"""How long keys are used while the provider cannot be reached: a key that it withdrew must not work forever."""
ACLS_MAX = 20_000
"""Access rules, about a kilobyte each. A change builds the index from all of them, which takes some hundredths of a second for so many."""
ACL_NAME_CHARS_MAX = 249
"""The name of a resource in an access rule: topics and groups have no longer ones."""
PRINCIPAL_CHARS_MAX = 255
"""Of a name that a rule, a token or a certificate gives to a principal."""
ROLES_MAX = 1_000
ROLE_NAME_CHARS_MAX = 100
ROLE_MEMBERS_MAX = 1_000
"""All members of a role are one value of the metadata store."""
ACCESS_DECISIONS_MAX = 20_000
"""Decisions about access that are remembered until the rules change, some hundred bytes each; above it, all are forgotten."""
QUOTAS_MAX = 10_000
"""Users, client ids and addresses with quotas of their own: all of them are in memory on every node."""
QUOTA_NAME_CHARS_MAX = 480
"""Of one name, percent-encoded: the key of a user with a client id must fit into METADATA_KEY_BYTES_MAX."""
QUOTA_ENTITIES_MAX = 20_000
"""Entities that are measured at a time, about a kilobyte each. Above it, new ones share one allowance."""
CLIENT_ID_CHARS_MAX = 249
"""Of a client id in quotas, metrics and the audit log: Kafka's clients may send 32 KiB."""
THROTTLE_MS_MAX = 10 * 60 * 1000
"""The longest time for which a connection is not read because of a quota. After it, the client is measured again."""
REQUEST_THROTTLE_MS_MAX = 1000
"""The same for request_percentage (as Kafka)."""
QUOTA_DEBT_MS_MAX = 30 * 1000
"""How far a client may be over a byte quota through an API that cannot report a throttle time: as long as clients wait by default."""

AUDIT_FIRST_MAX = 5
"""Of the same refusal in a minute; the others are counted in one summary."""
AUDIT_REPEATED_MAX = 10_000
"""Different refusals that are remembered for a minute, about a kilobyte each. Above it, all others count as one."""
AUDIT_PENDING_BYTES_MAX = 8 * MIB
"""Records that wait for one output: some 20,000. Above it they are lost, and counted."""
AUDIT_BATCH_RECORDS_MAX = 500
AUDIT_STOP_MS_MAX = 2000
"""How long a stop waits for each output."""
AUDIT_NAMES_MAX = 20
"""Resources that one record names; it has the number of the others."""
AUDIT_TEXT_CHARS_MAX = 249
"""Of one name of a client."""

HTTP_BODY_BYTES_MAX = 32 * MIB
HTTP_CONNECTIONS_MAX = 1_000
TCP_LINE_BYTES_MAX = 4 * MIB
TCP_KEPT_BYTES_MAX = 256 * MIB
"""Incomplete lines of all connections; above it long lines are refused."""
TCP_PENDING_LINES_MAX = 16_384
"""Applied but unanswered lines of one connection, some hundred bytes each."""
TCP_PENDING_OUTPUT_BYTES_MAX = 4 * MIB
"""Responses of one connection that its client has not received; lines wait above it."""
TCP_UNSENT_BYTES_MAX = 256 * MIB
"""The same for all connections; above it large fetch responses are refused."""
TCP_FETCH_RECORDS_MAX = 10_000
TCP_FETCH_BYTES_MAX = 2 * MIB
"""Keys and values in one response, before JSON makes them longer."""

MASTER_KEYS_MAX = 64
"""The current master key and older ones that may still be needed."""
KEYRING_KEYS_MAX = 10_000
"""One more with each rotation; some 60 bytes each."""
ENCRYPTED_FILES_REMEMBERED_MAX = 20_000
"""Segments whose keys are kept after they are closed, some kilobytes each. A segment that is forgotten is read from disk again."""

OPEN_SEGMENTS_MAX = 400
"""Open files of all logs: well below the usual process limit of 1024, which connections need too."""

assert RECEIVE_BUFFER_BYTES_INITIAL <= RECEIVE_BUFFER_BYTES_KEPT_MAX <= REQUEST_BYTES_MAX
assert MESSAGE_BYTES_DEFAULT < REQUEST_BYTES_MAX
assert SEGMENT_BYTES_DEFAULT <= SEGMENT_BYTES_MAX < 2**31
assert APPEND_GATHER_BYTES_MAX < MESSAGE_BYTES_DEFAULT
assert 2 * CONFIG_LIST_CHARS_MAX < METADATA_VALUE_BYTES_MAX
assert ROLE_MEMBERS_MAX * (4 * PRINCIPAL_CHARS_MAX + 3) < METADATA_VALUE_BYTES_MAX
assert FETCH_BYTES_MAX < REQUEST_BYTES_MAX
assert FETCH_SESSION_PARTITIONS_MAX <= FETCH_SESSIONS_PARTITIONS_MAX
assert GROUP_METADATA_BYTES_MAX <= GROUP_STATE_BYTES_MAX
assert 2 * GROUP_STATE_BYTES_MAX < REQUEST_BYTES_MAX
assert 2 * QUOTA_NAME_CHARS_MAX + 40 < METADATA_KEY_BYTES_MAX
assert GRPC_BATCH_BYTES_MAX < GRPC_MESSAGE_BYTES_MAX <= REQUEST_BYTES_MAX
assert TOPICS_MAX + PARTITIONS_MAX <= REQUEST_ELEMENTS_MAX <= RESPONSE_ELEMENTS_MAX
