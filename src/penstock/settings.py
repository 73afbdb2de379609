"""Every setting of the broker, in a frozen struct per section. Each part of the broker gets the sections that it uses.

The descriptions of the fields appear in ``penstock config show``, ``docs/configuration.md`` and ``docs/penstock.toml``.
The defaults are safe: loopback only, acknowledged means synced, and all resources are limited.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, NamedTuple, get_type_hints

from msgspec import Meta, Struct, field

from penstock import limits
from penstock.address import Address
from penstock.types import Acks, Flush


def about(description: str, *, ge: int | None = None, le: int | None = None) -> Meta:
    """The description of a setting, and the bounds of a number."""
    return Meta(description=description, ge=ge, le=le)


WANTED = "wanted"
"""In a field's ``extra``: what a value may be, in words, where its type and bounds would not tell people."""


class SourceKind(Enum):
    """The layers; later ones override earlier ones."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class SettingSource(NamedTuple):
    """One layer, and where in it: ``penstock.toml:12``, ``PENSTOCK__LOG__FLUSH``, ``--kafka``."""

    kind: SourceKind = SourceKind.DEFAULT
    place: str = ""

    def __str__(self) -> str:
        return self.place or self.kind.value


class LogFormat(Enum):
    """The format of the broker's log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(Enum):
    """The minimum level of log lines."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The broker process."""

    data_dir: Annotated[str, Meta(description="the folder for all persistent data", min_length=1)] = "./data"
    node_id: Annotated[int, about("the id of this node", ge=0, le=2**31 - 1)] = 1
    log_format: Annotated[LogFormat, about("the format of the log on stderr, for people or for programs")] = (
        LogFormat.TEXT
    )
    log_level: Annotated[LogLevel, about("the minimum level of log lines")] = LogLevel.INFO


class ListenerSettings(Struct, frozen=True, kw_only=True):
    """Listen addresses: HOST:PORT, [IPv6]:PORT, or off. Port 0 selects a free port."""

    kafka: Annotated[Address | None, about("the Kafka protocol")] = Address("127.0.0.1", 9092)
    http: Annotated[Address | None, about("HTTP; if not set, http.host and http.port apply")] = Address(
        "127.0.0.1", 8080
    )
    tcp: Annotated[Address | None, about("JSON lines over TCP")] = Address("127.0.0.1", 4040)
    grpc: Annotated[Address | None, about("gRPC")] = Address("127.0.0.1", 50051)
    peer: Annotated[Address | None, about("the other nodes of a cluster; used only in a cluster")] = Address(
        "127.0.0.1", 9093
    )
    advertised_kafka: Annotated[
        Address | None, about("the address that Kafka clients receive; off: the address that they connected to")
    ] = None


class KafkaListenerSettings(Struct, frozen=True, kw_only=True):
    """One more listener for the Kafka protocol, for example for clients outside the network of the cluster. Its name is part of the section."""

    address: Annotated[Address | None, about("the listen address; required")] = None
    advertised: Annotated[
        Address | None,
        about("the address that clients of this listener receive; off: the address that they connected to"),
    ] = None


class ClientAuth(Enum):
    """Whether TLS clients present a certificate."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class TlsVersion(Enum):
    """The oldest version of TLS that a listener accepts."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


class TlsSettings(Struct, frozen=True, kw_only=True):
    """TLS on every listener; [tls.NAME] has what differs for one. Files are PEM, and are read again when they change, and on SIGHUP."""

    enabled: Annotated[bool, about("use TLS if there is a certificate; a listener's own section can turn it off")] = (
        True
    )
    cert_file: Annotated[str, about("the file with the certificate chain of the listeners; empty: no TLS")] = ""
    key_file: Annotated[str, about("the file with the private key of that certificate")] = ""
    ca_file: Annotated[str, about("the file with the certificate authorities that client certificates need")] = ""
    client_auth: Annotated[ClientAuth, about("whether clients present a certificate")] = ClientAuth.NONE
    min_version: Annotated[TlsVersion, about("the oldest version of TLS that is accepted")] = TlsVersion.TLS_1_2
    principal_rules: Annotated[
        str,
        about("how the subject of a client certificate becomes a principal, as Kafka's ssl.principal.mapping.rules"),
    ] = "DEFAULT"

    @property
    def is_on(self) -> bool:
        """Whether connections are encrypted."""
        return self.enabled and bool(self.cert_file)


class Authentication(Enum):
    """Whether clients must prove who they are."""

    OFF = "off"
    REQUIRED = "required"


class SecuritySettings(Struct, frozen=True, kw_only=True):
    """Who may connect, and what they may do."""

    authentication: Annotated[
        Authentication, about("required: every client must authenticate, and may do only what access rules allow")
    ] = Authentication.OFF
    insecure: Annotated[
        bool, about("allow listeners off loopback without authentication or TLS; the ready line and a metric show it")
    ] = False
    super_users: Annotated[
        str, about("principals that may do everything, separated by commas: User:anna,User:bert")
    ] = ""
    mechanisms: Annotated[str, about("the SASL mechanisms that Kafka clients may use, separated by commas")] = (
        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
    )
    admin_password_file: Annotated[
        str, about("the file with the password of the user admin, which the first start creates from it")
    ] = ""
    session_ms_max: Annotated[
        int, about("clients must authenticate again after this time; 0: only when their token expires", ge=0)
    ] = 0


class OauthSettings(Struct, frozen=True, kw_only=True):
    """Tokens (JWT) of an identity provider. Without an issuer, tokens are refused."""

    issuer: Annotated[str, about("the issuer that tokens must have; empty: no tokens")] = ""
    audience: Annotated[str, about("the audience that tokens must have")] = ""
    jwks_url: Annotated[str, about("the https address of the provider's keys")] = ""
    jwks_file: Annotated[str, about("a file with the provider's keys, instead of an address")] = ""
    algorithms: Annotated[str, about("the signature algorithms that are accepted, separated by commas")] = (
        "RS256,ES256,EdDSA"
    )
    principal_claim: Annotated[str, about("the claim with the name of the user")] = "sub"
    groups_claim: Annotated[str, about("the claim with the groups of the user, which access rules can name")] = "groups"
    clock_skew_seconds: Annotated[int, about("how far clocks may differ", ge=0, le=300)] = 30


class EncryptionSettings(Struct, frozen=True, kw_only=True):
    """Encryption at rest."""

    key_file: Annotated[
        str,
        about(
            "the file with the master keys, each 32 random bytes in base64, the current one first; empty: data is not encrypted, unless PENSTOCK_ENCRYPTION_KEY has a key"
        ),
    ] = ""


class PeerTlsMode(Enum):
    """Whether the nodes of a cluster use TLS between each other."""

    OFF = "off"
    ACCEPT = "accept"
    REQUIRE = "require"


class AuditMode(Enum):
    """Whether there is an audit log."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class AuditSettings(Struct, frozen=True, kw_only=True):
    """The audit log: logins, refusals and changes, as JSON."""

    mode: Annotated[AuditMode, about("auto: on if security.authentication is required")] = AuditMode.AUTO
    topic: Annotated[bool, about("write to the topic __audit")] = True
    retention_days: Annotated[
        int, about("how long the topic keeps records; used when the topic is created", ge=1, le=36_500)
    ] = 90
    file: Annotated[str, about("a file to write to, one JSON object per line; -: stdout; empty: none")] = ""
    file_bytes_max: Annotated[int, about("a file that is larger than this is rotated", ge=4096)] = 100 * limits.MIB
    files_max: Annotated[int, about("the number of files, rotated ones included", ge=1, le=1000)] = 10
    data: Annotated[bool, about("also record who reads and writes records, once a minute for each topic")] = False
    required: Annotated[bool, about("refuse changes that cannot be recorded first")] = False


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """A cluster of several nodes on etcd. Without a name, the broker is a single broker and needs no etcd."""

    name: Annotated[
        str,
        Meta(
            pattern="^[a-zA-Z0-9._-]{0,100}$",
            description="the name of the cluster; empty: a single broker",
            extra={WANTED: "letters, digits, dots, underscores and dashes (a-z A-Z 0-9 . _ -), at most 100 of them"},
        ),
    ] = ""
    etcd: Annotated[str, about("the addresses of etcd: HOST:PORT,HOST:PORT, or https://HOST:PORT,... for TLS")] = (
        "127.0.0.1:2379"
    )
    etcd_ca: Annotated[str, about("the file with the certificates of etcd's certificate authority, for TLS")] = ""
    etcd_cert: Annotated[str, about("the file with this node's certificate for etcd, for mutual TLS")] = ""
    etcd_key: Annotated[str, about("the file with the key of that certificate")] = ""
    peer_tls: Annotated[
        PeerTlsMode,
        about(
            "TLS between nodes, with the certificate of [tls.peer]: require; accept: also nodes that do not use it, while a cluster changes; off"
        ),
    ] = PeerTlsMode.OFF
    advertise: Annotated[
        str, about("the host name or address for other nodes and clients; empty: the host of each listener")
    ] = ""
    rack: Annotated[str, about("the rack of the node; replicas are spread over racks; empty: unknown")] = ""
    lease_ms: Annotated[
        int, about("a node that has not renewed its lease for this long is considered failed", ge=2_000, le=60_000)
    ] = 4_000
    lag_ms_max: Annotated[
        int, about("a follower that has been behind for this long leaves the in-sync replicas", ge=100)
    ] = 10_000
    balance_ms: Annotated[int, about("how often leadership returns to the preferred replicas", ge=100)] = 300_000
    handover_ms: Annotated[
        int, about("how long a stopping node waits for other nodes to take over its partitions", ge=0)
    ] = 10_000
    reassign_bytes_per_second: Annotated[
        int,
        about(
            "the maximum rate at which a node sends partitions that move to other nodes; in-sync replicas are not limited",
            ge=1024,
        ),
    ] = 50 * limits.MIB
    replication_factor: Annotated[
        int,
        about(
            "in a cluster: replicas of topics created without a replication factor, and of internal topics", ge=1, le=32
        ),
    ] = 3
    min_in_sync: Annotated[
        int, about("the default min.insync.replicas: acks=all is refused if fewer replicas are in sync", ge=1, le=32)
    ] = 2


class LogSettings(Struct, frozen=True, kw_only=True):
    """How records are stored."""

    flush: Annotated[
        Flush, about("sync: acks=all survives a power loss; os: the kernel decides when to write, as with Kafka")
    ] = Flush.SYNC
    sync_threads: Annotated[int, about("the number of syncs that can run in parallel", ge=1, le=64)] = 4
    checkpoint_interval_ms: Annotated[
        int,
        about("how often the recovery point is stored; shorter intervals leave less to check after a crash", ge=100),
    ] = 60_000
    housekeeping_interval_ms: Annotated[
        int, about("how often the broker checks for records to delete or compact, and for segments to roll", ge=10)
    ] = 15_000


class TopicSettings(Struct, frozen=True, kw_only=True):
    """Defaults for new topics."""

    auto_create: Annotated[bool, about("create a topic when a client first uses it")] = True
    partitions: Annotated[
        int,
        about("partitions of topics created without a number of partitions", ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX),
    ] = 1
    replication_factor: Annotated[
        int,
        about(
            "ignored in a cluster, which uses cluster.replication_factor; a single broker supports only 1", ge=1, le=32
        ),
    ] = 1


class GroupSettings(Struct, frozen=True, kw_only=True):
    """Consumer groups."""

    session_timeout_ms_min: Annotated[int, about("the shortest session timeout that a member may request", ge=1)] = (
        6_000
    )
    session_timeout_ms_max: Annotated[int, about("the longest session timeout that a member may request", ge=1)] = (
        1_800_000
    )
    initial_rebalance_delay_ms: Annotated[
        int, about("how long an empty group waits for more members before the first rebalance; tests can use 0", ge=0)
    ] = 3_000
    offsets_retention_minutes: Annotated[int, about("how long the offsets of an empty group are retained", ge=1)] = (
        10_080
    )
    offsets_topic_partitions: Annotated[
        int, about("partitions of __consumer_offsets when it is created", ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX)
    ] = 16
    members_max: Annotated[
        int, about("the maximum number of members of a group", ge=1, le=limits.GROUP_MEMBERS_MAX)
    ] = limits.GROUP_MEMBERS_MAX

    @property
    def offsets_retention_ms(self) -> int:
        """The same in milliseconds, as commits carry it."""
        return self.offsets_retention_minutes * 60 * 1000


class LimitSettings(Struct, frozen=True, kw_only=True):
    """Limits that keep a single client from using all resources."""

    request_bytes_max: Annotated[
        int, about("the largest request; a larger one closes the connection", ge=1024, le=2**31 - 1)
    ] = limits.REQUEST_BYTES_MAX
    connections_max: Annotated[int, about("the maximum number of open connections", ge=1)] = limits.CONNECTIONS_MAX
    handshake_rate_max: Annotated[
        int, about("TLS handshakes per second, of all listeners; more connections wait; 0: no limit", ge=0)
    ] = limits.HANDSHAKE_RATE_MAX
    strangers_max: Annotated[
        int,
        about(
            "connections in the TLS handshake or before the login; above it, the oldest is closed for the next", ge=1
        ),
    ] = limits.STRANGERS_MAX
    strangers_per_address_max: Annotated[int, about("the same for one client address", ge=1)] = (
        limits.STRANGERS_PER_ADDRESS_MAX
    )
    connection_idle_ms_max: Annotated[int, about("an idle connection is closed after this time", ge=1000)] = (
        limits.CONNECTION_IDLE_MS_MAX
    )
    connection_pending_requests_max: Annotated[
        int, about("unanswered requests on a connection before the broker stops reading from it", ge=1)
    ] = limits.CONNECTION_PENDING_REQUESTS_MAX
    connection_pending_output_bytes_max: Annotated[
        int, about("unread response bytes of a slow client before the broker stops reading from it", ge=1024)
    ] = limits.CONNECTION_PENDING_OUTPUT_BYTES_MAX
    fetch_bytes_max: Annotated[int, about("the largest fetch response, regardless of the request", ge=1024)] = (
        limits.FETCH_BYTES_MAX
    )
    fetch_sessions_max: Annotated[int, about("the maximum number of fetch sessions", ge=0)] = limits.FETCH_SESSIONS_MAX
    topics_max: Annotated[int, about("the maximum number of topics", ge=1, le=limits.TOPICS_MAX)] = limits.TOPICS_MAX
    partitions_max: Annotated[
        int, about("the maximum number of partitions in all topics", ge=1, le=limits.PARTITIONS_MAX)
    ] = limits.PARTITIONS_MAX


class QueueSettings(Struct, frozen=True, kw_only=True):
    """Queues: topics consumed with leases. A record can override the settings of its retries."""

    lease_ms: Annotated[int, about("default duration of a lease", ge=1)] = 2_000
    lease_ms_max: Annotated[int, about("the longest lease that a worker may request", ge=1)] = 12 * 3_600_000
    in_flight_max: Annotated[
        int, about("maximum number of in-flight records per queue", ge=1, le=limits.QUEUE_IN_FLIGHT_MAX)
    ] = 10_000
    worker_in_flight: Annotated[
        int, about("default maximum number of in-flight records per worker", ge=1, le=limits.QUEUE_IN_FLIGHT_MAX)
    ] = 16
    max_attempts: Annotated[
        int, about("attempts before a record becomes a dead letter; 0: no limit", ge=0, le=65_535)
    ] = 0
    backoff_ms: Annotated[int, about("the backoff after the first nack; it doubles with each attempt", ge=0)] = 100
    max_backoff_ms: Annotated[int, about("the longest backoff; 0: no limit", ge=0)] = 60_000
    idempotency_ms: Annotated[
        int, about("how long idempotency keys are remembered, for producers and for groups", ge=1_000)
    ] = 600_000
    backlog_records_max: Annotated[
        int, about("backlog of unconsumed records per partition above which /v1/produce returns 429; 0: off", ge=0)
    ] = 0
    backlog_bytes_max: Annotated[int, about("the same limit in bytes; 0: off", ge=0)] = 0


class SinkSettings(Struct, frozen=True, kw_only=True):
    """Exactly-once sinks, which Spark uses for writes."""

    staging_idle_ms: Annotated[
        int,
        about(
            "a staging topic that is not used for this long is deleted; the last batch of its sink is remembered",
            ge=1_000,
        ),
    ] = 7 * 24 * 3_600_000
    remember_ms: Annotated[
        int,
        about(
            "a sink that is not used for this long is forgotten with its last batch; a client can request a shorter time when it opens the sink",
            ge=1_000,
        ),
    ] = 30 * 24 * 3_600_000
    sinks_max: Annotated[int, about("the maximum number of sinks", ge=1, le=limits.SINKS_MAX)] = limits.SINKS_MAX


class TcpSettings(Struct, frozen=True, kw_only=True):
    """JSON lines over TCP."""

    line_bytes_max: Annotated[
        int, about("the longest line; a longer one is skipped", ge=1024, le=limits.REQUEST_BYTES_MAX)
    ] = limits.TCP_LINE_BYTES_MAX
    session_timeout_ms: Annotated[
        int, about("a consumer without a heartbeat for this long is removed from its group", ge=1)
    ] = 10_000


class GrpcSettings(Struct, frozen=True, kw_only=True):
    """gRPC."""

    message_bytes_max: Annotated[int, about("the largest request message", ge=1024, le=limits.REQUEST_BYTES_MAX)] = (
        limits.GRPC_MESSAGE_BYTES_MAX
    )
    streams_max: Annotated[int, about("the maximum number of open calls, including subscriptions", ge=1)] = (
        limits.GRPC_STREAMS_MAX
    )


class HttpSettings(Struct, frozen=True, kw_only=True):
    """The HTTP API for topics, messages and consumers."""

    host: Annotated[str, Meta(description="the host, if listeners.http is not set", min_length=1)] = "127.0.0.1"
    port: Annotated[int, about("the port, if listeners.http is not set", ge=0, le=65_535)] = 8080
    default_partitions: Annotated[
        int, about("default number of partitions of topics created over HTTP", ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX)
    ] = 4
    default_replication_factor: Annotated[
        int,
        about(
            "default replication factor of topics created over HTTP; in a cluster, 1 means cluster.replication_factor",
            ge=1,
            le=32,
        ),
    ] = 1
    default_retention_seconds: Annotated[
        int, about("default retention time of topics created over HTTP; -1: forever", ge=-1)
    ] = 604_800
    default_retention_bytes: Annotated[
        int, about("default retention size per partition of topics created over HTTP; -1: no limit", ge=-1)
    ] = 1_073_741_824
    acks: Annotated[Acks, about("default acks for publishers that do not specify it")] = Acks.LEADER
    retries: Annotated[int, about("the number of retries of a failed publish", ge=0, le=100)] = 3
    retry_backoff_ms: Annotated[int, about("the wait before each retry", ge=0)] = 100
    max_poll_records: Annotated[int, about("the maximum number of messages in a response", ge=1, le=100_000)] = 500
    session_timeout_ms: Annotated[int, about("a consumer without a heartbeat for this long is removed", ge=1)] = 30_000
    request_timeout_ms: Annotated[int, about("a request that waits longer than this is refused", ge=1)] = 30_000
    body_bytes_max: Annotated[
        int, about("the largest body; a larger one is refused", ge=1024, le=limits.REQUEST_BYTES_MAX)
    ] = limits.HTTP_BODY_BYTES_MAX
    connections_max: Annotated[int, about("the maximum number of open connections", ge=1)] = limits.HTTP_CONNECTIONS_MAX
    allowed_hosts: Annotated[
        str,
        about(
            "further host names by which clients reach this API, separated by commas; .example.com allows all names under it"
        ),
    ] = ""


class Settings(Struct, frozen=True, kw_only=True):
    """All settings. ``Settings()`` contains the defaults; :func:`penstock.config.load` reads the configuration."""

    server: ServerSettings = field(default_factory=ServerSettings)
    listeners: ListenerSettings = field(default_factory=ListenerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    oauth: OauthSettings = field(default_factory=OauthSettings)
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    log: LogSettings = field(default_factory=LogSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults for topic configs, as text, with Kafka's names."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    queues: QueueSettings = field(default_factory=QueueSettings)
    sinks: SinkSettings = field(default_factory=SinkSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    tcp: TcpSettings = field(default_factory=TcpSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    kafka_listeners: Mapping[str, KafkaListenerSettings] = field(default_factory=dict)
    """More listeners for the Kafka protocol, by their names: ``[listeners.NAME]``."""
    listener_tls: Mapping[str, TlsSettings] = field(default_factory=dict)
    """The TLS of listeners that differs from ``tls``, by their names: ``[tls.NAME]``, with the rest from ``tls``."""
    sources: Mapping[str, SettingSource] = field(default_factory=dict)
    """The source of each value that is not a default, by its path ("log.flush")."""

    @property
    def replication_factor(self) -> int:
        """Replicas of a topic that is created without a number."""
        return self.cluster.replication_factor if self.cluster.name else self.topics.replication_factor

    @property
    def topic_configs(self) -> dict[str, str]:
        """Defaults for topic configs: ``topic_defaults``, and those that follow from the settings of the cluster."""
        of_cluster = {"min.insync.replicas": str(self.cluster.min_in_sync)} if self.cluster.name else {}
        return {**of_cluster, **self.topic_defaults}

    def tls_of(self, listener: str) -> TlsSettings:
        """The TLS of a listener."""
        return self.listener_tls.get(listener, self.tls)

    def source_of(self, path: str) -> SettingSource:
        """Where the value at ``path`` came from."""
        return self.sources.get(path, DEFAULT)


DEFAULT = SettingSource()

SECTIONS: Mapping[str, type[Struct]] = {
    name: kind for name, kind in get_type_hints(Settings).items() if isinstance(kind, type) and issubclass(kind, Struct)
}
NAMED_SECTIONS: Mapping[str, tuple[type[Struct], str]] = {
    "listeners": (KafkaListenerSettings, "kafka_listeners"),
    "tls": (TlsSettings, "listener_tls"),
}
"""Sections with a subsection per listener (``[listeners.outside]``): its struct, and the field of :class:`Settings`."""
LISTENERS = ("kafka", "http", "tcp", "grpc", "peer")
"""The names of the listeners in :class:`ListenerSettings`."""
TOPIC_DEFAULTS = "topic_defaults"
"""The only section whose keys are not fields of a struct: they are Kafka's topic configs."""
