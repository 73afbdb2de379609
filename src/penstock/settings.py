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

WANTED = "wanted"
"""In a field's ``extra``: what a value may be, in words, where its type and bounds would not tell people."""


class SourceKind(Enum):
    """The layers; later ones override earlier ones."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Source(NamedTuple):
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

    data_dir: Annotated[str, Meta(min_length=1, description="the folder for all persistent data")] = "./data"
    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1, description="the id of this node")] = 1
    log_format: Annotated[
        LogFormat, Meta(description="the format of the log on stderr, for people or for programs")
    ] = LogFormat.TEXT
    log_level: Annotated[LogLevel, Meta(description="the minimum level of log lines")] = LogLevel.INFO


class ListenerSettings(Struct, frozen=True, kw_only=True):
    """Listen addresses: HOST:PORT, [IPv6]:PORT, or off. Port 0 selects a free port."""

    kafka: Annotated[Address | None, Meta(description="the Kafka protocol")] = Address("127.0.0.1", 9092)
    http: Annotated[Address | None, Meta(description="HTTP; if not set, http.host and http.port apply")] = Address(
        "127.0.0.1", 8080
    )
    tcp: Annotated[Address | None, Meta(description="JSON lines over TCP")] = Address("127.0.0.1", 4040)
    grpc: Annotated[Address | None, Meta(description="gRPC")] = Address("127.0.0.1", 50051)
    peer: Annotated[Address | None, Meta(description="the other nodes of a cluster; used only in a cluster")] = Address(
        "127.0.0.1", 9093
    )
    advertised_kafka: Annotated[
        Address | None,
        Meta(description="the address that Kafka clients receive; off: the address that they connected to"),
    ] = None


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
    etcd: Annotated[
        str, Meta(description="the addresses of etcd: HOST:PORT,HOST:PORT, or https://HOST:PORT,... for TLS")
    ] = "127.0.0.1:2379"
    etcd_ca: Annotated[
        str, Meta(description="the file with the certificates of etcd's certificate authority, for TLS")
    ] = ""
    etcd_cert: Annotated[str, Meta(description="the file with this node's certificate for etcd, for mutual TLS")] = ""
    etcd_key: Annotated[str, Meta(description="the file with the key of that certificate")] = ""
    advertise: Annotated[
        str, Meta(description="the host name or address for other nodes and clients; empty: the host of each listener")
    ] = ""
    rack: Annotated[str, Meta(description="the rack of the node; replicas are spread over racks; empty: unknown")] = ""
    lease_ms: Annotated[
        int,
        Meta(
            ge=2_000, le=60_000, description="a node that has not renewed its lease for this long is considered failed"
        ),
    ] = 4_000
    lag_ms_max: Annotated[
        int, Meta(ge=100, description="a follower that has been behind for this long leaves the in-sync replicas")
    ] = 10_000
    balance_ms: Annotated[int, Meta(ge=100, description="how often leadership returns to the preferred replicas")] = (
        300_000
    )
    handover_ms: Annotated[
        int, Meta(ge=0, description="how long a stopping node waits for other nodes to take over its partitions")
    ] = 10_000
    reassign_bytes_per_second: Annotated[
        int,
        Meta(
            ge=1024,
            description="the maximum rate at which a node sends partitions that move to other nodes; in-sync replicas are not limited",
        ),
    ] = 50 * limits.MIB
    replication_factor: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="in a cluster: replicas of topics created without a replication factor, and of internal topics",
        ),
    ] = 3
    min_in_sync: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="the default min.insync.replicas: acks=all is refused if fewer replicas are in sync",
        ),
    ] = 2


class LogSettings(Struct, frozen=True, kw_only=True):
    """How records are stored."""

    flush: Annotated[
        Flush,
        Meta(description="sync: acks=all survives a power loss; os: the kernel decides when to write, as with Kafka"),
    ] = Flush.SYNC
    sync_threads: Annotated[int, Meta(ge=1, le=64, description="the number of syncs that can run in parallel")] = 4
    checkpoint_interval_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="how often the recovery point is stored; shorter intervals leave less to check after a crash",
        ),
    ] = 60_000
    housekeeping_interval_ms: Annotated[
        int,
        Meta(
            ge=10, description="how often the broker checks for records to delete or compact, and for segments to roll"
        ),
    ] = 15_000


class TopicSettings(Struct, frozen=True, kw_only=True):
    """Defaults for new topics."""

    auto_create: Annotated[bool, Meta(description="create a topic when a client first uses it")] = True
    partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.PARTITIONS_PER_TOPIC_MAX,
            description="partitions of topics created without a number of partitions",
        ),
    ] = 1
    replication_factor: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="ignored in a cluster, which uses cluster.replication_factor; a single broker supports only 1",
        ),
    ] = 1


class GroupSettings(Struct, frozen=True, kw_only=True):
    """Consumer groups."""

    session_timeout_ms_min: Annotated[
        int, Meta(ge=1, description="the shortest session timeout that a member may request")
    ] = 6_000
    session_timeout_ms_max: Annotated[
        int, Meta(ge=1, description="the longest session timeout that a member may request")
    ] = 1_800_000
    initial_rebalance_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="how long an empty group waits for more members before the first rebalance; tests can use 0",
        ),
    ] = 3_000
    offsets_retention_minutes: Annotated[
        int, Meta(ge=1, description="how long the offsets of an empty group are retained")
    ] = 10_080
    offsets_topic_partitions: Annotated[
        int,
        Meta(
            ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX, description="partitions of __consumer_offsets when it is created"
        ),
    ] = 16
    members_max: Annotated[
        int, Meta(ge=1, le=limits.GROUP_MEMBERS_MAX, description="the maximum number of members of a group")
    ] = limits.GROUP_MEMBERS_MAX

    @property
    def offsets_retention_ms(self) -> int:
        """The same in milliseconds, as commits carry it."""
        return self.offsets_retention_minutes * 60 * 1000


class LimitSettings(Struct, frozen=True, kw_only=True):
    """Limits that keep a single client from using all resources."""

    request_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**31 - 1, description="the largest request; a larger one closes the connection")
    ] = limits.REQUEST_BYTES_MAX
    connections_max: Annotated[int, Meta(ge=1, description="the maximum number of open connections")] = (
        limits.CONNECTIONS_MAX
    )
    connection_idle_ms_max: Annotated[
        int, Meta(ge=1000, description="an idle connection is closed after this time")
    ] = limits.CONNECTION_IDLE_MS_MAX
    connection_pending_requests_max: Annotated[
        int, Meta(ge=1, description="unanswered requests on a connection before the broker stops reading from it")
    ] = limits.CONNECTION_PENDING_REQUESTS_MAX
    connection_pending_output_bytes_max: Annotated[
        int, Meta(ge=1024, description="unread response bytes of a slow client before the broker stops reading from it")
    ] = limits.CONNECTION_PENDING_OUTPUT_BYTES_MAX
    fetch_bytes_max: Annotated[
        int, Meta(ge=1024, description="the largest fetch response, regardless of the request")
    ] = limits.FETCH_BYTES_MAX
    fetch_sessions_max: Annotated[int, Meta(ge=0, description="the maximum number of fetch sessions")] = (
        limits.FETCH_SESSIONS_MAX
    )
    topics_max: Annotated[int, Meta(ge=1, le=limits.TOPICS_MAX, description="the maximum number of topics")] = (
        limits.TOPICS_MAX
    )
    partitions_max: Annotated[
        int, Meta(ge=1, le=limits.PARTITIONS_MAX, description="the maximum number of partitions in all topics")
    ] = limits.PARTITIONS_MAX


class QueueSettings(Struct, frozen=True, kw_only=True):
    """Queues: topics consumed with leases. A record can override the settings of its retries."""

    lease_ms: Annotated[int, Meta(ge=1, description="default duration of a lease")] = 2_000
    lease_ms_max: Annotated[int, Meta(ge=1, description="the longest lease that a worker may request")] = 12 * 3_600_000
    in_flight_max: Annotated[
        int, Meta(ge=1, le=limits.QUEUE_IN_FLIGHT_MAX, description="maximum number of in-flight records per queue")
    ] = 10_000
    worker_in_flight: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.QUEUE_IN_FLIGHT_MAX,
            description="default maximum number of in-flight records per worker",
        ),
    ] = 16
    max_attempts: Annotated[
        int, Meta(ge=0, le=65_535, description="attempts before a record becomes a dead letter; 0: no limit")
    ] = 0
    backoff_ms: Annotated[
        int, Meta(ge=0, description="the backoff after the first nack; it doubles with each attempt")
    ] = 100
    max_backoff_ms: Annotated[int, Meta(ge=0, description="the longest backoff; 0: no limit")] = 60_000
    idempotency_ms: Annotated[
        int, Meta(ge=1_000, description="how long idempotency keys are remembered, for producers and for groups")
    ] = 600_000
    backlog_records_max: Annotated[
        int,
        Meta(
            ge=0, description="backlog of unconsumed records per partition above which /v1/produce returns 429; 0: off"
        ),
    ] = 0
    backlog_bytes_max: Annotated[int, Meta(ge=0, description="the same limit in bytes; 0: off")] = 0


class SinkSettings(Struct, frozen=True, kw_only=True):
    """Exactly-once sinks, which Spark uses for writes."""

    staging_idle_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            description="a staging topic that is not used for this long is deleted; the last batch of its sink is remembered",
        ),
    ] = 7 * 24 * 3_600_000
    remember_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            description="a sink that is not used for this long is forgotten with its last batch; a client can request a shorter time when it opens the sink",
        ),
    ] = 30 * 24 * 3_600_000
    sinks_max: Annotated[int, Meta(ge=1, le=limits.SINKS_MAX, description="the maximum number of sinks")] = (
        limits.SINKS_MAX
    )


class TcpSettings(Struct, frozen=True, kw_only=True):
    """JSON lines over TCP."""

    line_bytes_max: Annotated[
        int, Meta(ge=1024, le=limits.REQUEST_BYTES_MAX, description="the longest line; a longer one is skipped")
    ] = limits.TCP_LINE_BYTES_MAX
    session_timeout_ms: Annotated[
        int, Meta(ge=1, description="a consumer without a heartbeat for this long is removed from its group")
    ] = 10_000


class GrpcSettings(Struct, frozen=True, kw_only=True):
    """gRPC."""

    message_bytes_max: Annotated[
        int, Meta(ge=1024, le=limits.REQUEST_BYTES_MAX, description="the largest request message")
    ] = limits.GRPC_MESSAGE_BYTES_MAX
    streams_max: Annotated[int, Meta(ge=1, description="the maximum number of open calls, including subscriptions")] = (
        limits.GRPC_STREAMS_MAX
    )


class HttpSettings(Struct, frozen=True, kw_only=True):
    """The HTTP API for topics, messages and consumers."""

    host: Annotated[str, Meta(min_length=1, description="the host, if listeners.http is not set")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="the port, if listeners.http is not set")] = 8080
    default_partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.PARTITIONS_PER_TOPIC_MAX,
            description="default number of partitions of topics created over HTTP",
        ),
    ] = 4
    default_replication_factor: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="default replication factor of topics created over HTTP; in a cluster, 1 means cluster.replication_factor",
        ),
    ] = 1
    default_retention_seconds: Annotated[
        int, Meta(ge=-1, description="default retention time of topics created over HTTP; -1: forever")
    ] = 604_800
    default_retention_bytes: Annotated[
        int, Meta(ge=-1, description="default retention size per partition of topics created over HTTP; -1: no limit")
    ] = 1_073_741_824
    acks: Annotated[Acks, Meta(description="default acks for publishers that do not specify it")] = Acks.LEADER
    retries: Annotated[int, Meta(ge=0, le=100, description="the number of retries of a failed publish")] = 3
    retry_backoff_ms: Annotated[int, Meta(ge=0, description="the wait before each retry")] = 100
    max_poll_records: Annotated[
        int, Meta(ge=1, le=100_000, description="the maximum number of messages in a response")
    ] = 500
    session_timeout_ms: Annotated[
        int, Meta(ge=1, description="a consumer without a heartbeat for this long is removed")
    ] = 30_000
    request_timeout_ms: Annotated[int, Meta(ge=1, description="a request that waits longer than this is refused")] = (
        30_000
    )
    body_bytes_max: Annotated[
        int, Meta(ge=1024, le=limits.REQUEST_BYTES_MAX, description="the largest body; a larger one is refused")
    ] = limits.HTTP_BODY_BYTES_MAX
    connections_max: Annotated[int, Meta(ge=1, description="the maximum number of open connections")] = (
        limits.HTTP_CONNECTIONS_MAX
    )


class Settings(Struct, frozen=True, kw_only=True):
    """All settings. ``Settings()`` contains the defaults; :func:`penstock.config.load` reads the configuration."""

    server: ServerSettings = field(default_factory=ServerSettings)
    listeners: ListenerSettings = field(default_factory=ListenerSettings)
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
    sources: Mapping[str, Source] = field(default_factory=dict)
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

    def source_of(self, path: str) -> Source:
        """Where the value at ``path`` came from."""
        return self.sources.get(path, DEFAULT)


DEFAULT = Source()

SECTIONS: Mapping[str, type[Struct]] = {
    name: kind for name, kind in get_type_hints(Settings).items() if isinstance(kind, type) and issubclass(kind, Struct)
}
TOPIC_DEFAULTS = "topic_defaults"
"""The only section whose keys are not fields of a struct: they are Kafka's topic configs."""
