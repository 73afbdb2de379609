"""Every setting of the broker, a frozen struct per section. A part takes the sections that it uses, whole.

A field's description is what people read about it: ``penstock config show``, ``docs/configuration.md`` and
``docs/penstock.toml`` are made from it. The defaults are safe: loopback only, acknowledged means synced, every limit
bounded.
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
    """The layers, the stronger the later."""

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
    """How the broker's own log lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(Enum):
    """The least serious line that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The process."""

    data_dir: Annotated[str, Meta(min_length=1, description="where everything lies that must survive a restart")] = (
        "./data"
    )
    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1, description="this broker's number among its peers")] = 1
    log_format: Annotated[LogFormat, Meta(description="the log on stderr, for people or for programs")] = LogFormat.TEXT
    log_level: Annotated[LogLevel, Meta(description="the least serious line that is logged")] = LogLevel.INFO


class ListenerSettings(Struct, frozen=True, kw_only=True):
    """Where it listens: HOST:PORT, [IPv6]:PORT, or off. Port 0 picks a free one."""

    kafka: Annotated[Address | None, Meta(description="the Kafka protocol")] = Address("127.0.0.1", 9092)
    http: Annotated[Address | None, Meta(description="HTTP; when not set it is http.host and http.port")] = Address(
        "127.0.0.1", 8080
    )
    tcp: Annotated[Address | None, Meta(description="JSON lines over TCP")] = Address("127.0.0.1", 4040)
    grpc: Annotated[Address | None, Meta(description="gRPC")] = Address("127.0.0.1", 50051)
    peer: Annotated[Address | None, Meta(description="the other nodes of a cluster; used only in one")] = Address(
        "127.0.0.1", 9093
    )
    advertised_kafka: Annotated[
        Address | None, Meta(description="what Kafka clients are told to connect to; off: where they did connect to")
    ] = None


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """Several nodes on etcd. Without a name the broker is alone, and needs nothing but itself."""

    name: Annotated[
        str,
        Meta(
            pattern="^[a-zA-Z0-9._-]{0,100}$",
            description="the cluster that this node belongs to; empty: it is alone",
            extra={WANTED: "letters, digits, dots, underscores and dashes (a-z A-Z 0-9 . _ -), at most 100 of them"},
        ),
    ] = ""
    etcd: Annotated[str, Meta(description="where etcd is: HOST:PORT,HOST:PORT, or https://HOST:PORT,... for TLS")] = (
        "127.0.0.1:2379"
    )
    etcd_ca: Annotated[str, Meta(description="a file with the certificates that etcd's is signed by, for TLS")] = ""
    etcd_cert: Annotated[str, Meta(description="a file with this node's certificate for etcd, for mutual TLS")] = ""
    etcd_key: Annotated[str, Meta(description="a file with the key of that certificate")] = ""
    advertise: Annotated[
        str, Meta(description="the host that other nodes and clients are told; empty: the host of each listener")
    ] = ""
    rack: Annotated[str, Meta(description="where the node stands; replicas go to different ones; empty: unknown")] = ""
    lease_ms: Annotated[
        int, Meta(ge=2_000, le=60_000, description="a node that was silent for so long is taken for dead")
    ] = 4_000
    lag_ms_max: Annotated[
        int, Meta(ge=100, description="a follower that was behind for so long is not in sync any more")
    ] = 10_000
    balance_ms: Annotated[int, Meta(ge=100, description="how often leadership goes back to the preferred replicas")] = (
        300_000
    )
    handover_ms: Annotated[
        int, Meta(ge=0, description="how long a node that stops waits for others to lead what it led")
    ] = 10_000
    reassign_bytes_per_second: Annotated[
        int,
        Meta(
            ge=1024,
            description="how fast a node sends partitions that move to other nodes; those in sync are not slowed",
        ),
    ] = 50 * limits.MIB
    replication_factor: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="in a cluster: replicas of a topic made without a number, and of the internal ones",
        ),
    ] = 3
    min_in_sync: Annotated[
        int,
        Meta(
            ge=1, le=32, description="replicas in sync without which acks=all is refused, of a topic that does not say"
        ),
    ] = 2


class LogSettings(Struct, frozen=True, kw_only=True):
    """How records are kept."""

    flush: Annotated[
        Flush,
        Meta(
            description="sync: acks=all means it survives a loss of power; os: the kernel writes when it likes, as Kafka does"
        ),
    ] = Flush.SYNC
    sync_threads: Annotated[int, Meta(ge=1, le=64, description="how many syncs may run side by side")] = 4
    checkpoint_interval_ms: Annotated[
        int, Meta(ge=100, description="how often the recovery point is noted; less to check after a crash")
    ] = 60_000
    housekeeping_interval_ms: Annotated[
        int, Meta(ge=10, description="how often the broker looks for records to delete or compact and segments to roll")
    ] = 15_000


class TopicSettings(Struct, frozen=True, kw_only=True):
    """What a topic gets that is made without being told."""

    auto_create: Annotated[bool, Meta(description="make a topic when a client first names it")] = True
    partitions: Annotated[
        int, Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX, description="partitions of a topic made without a number")
    ] = 1
    replication_factor: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="not used in a cluster, where cluster.replication_factor counts; a broker that is alone can have 1 and no more",
        ),
    ] = 1


class GroupSettings(Struct, frozen=True, kw_only=True):
    """Consumer groups."""

    session_timeout_ms_min: Annotated[int, Meta(ge=1, description="the shortest session a member may ask for")] = 6_000
    session_timeout_ms_max: Annotated[int, Meta(ge=1, description="the longest session a member may ask for")] = (
        1_800_000
    )
    initial_rebalance_delay_ms: Annotated[
        int, Meta(ge=0, description="how long an empty group waits for more members; tests set 0")
    ] = 3_000
    offsets_retention_minutes: Annotated[
        int, Meta(ge=1, description="how long the offsets of an empty group are kept")
    ] = 10_080
    offsets_topic_partitions: Annotated[
        int,
        Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX, description="partitions of __consumer_offsets when it is made"),
    ] = 16
    members_max: Annotated[
        int, Meta(ge=1, le=limits.GROUP_MEMBERS_MAX, description="the most members of one group")
    ] = limits.GROUP_MEMBERS_MAX

    @property
    def offsets_retention_ms(self) -> int:
        """The same in milliseconds, as commits carry it."""
        return self.offsets_retention_minutes * 60 * 1000


class LimitSettings(Struct, frozen=True, kw_only=True):
    """Bounds that keep one client from taking everything."""

    request_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**31 - 1, description="the largest request; a larger one closes the connection")
    ] = limits.REQUEST_BYTES_MAX
    connections_max: Annotated[int, Meta(ge=1, description="connections at the same time")] = limits.CONNECTIONS_MAX
    connection_idle_ms_max: Annotated[int, Meta(ge=1000, description="a connection silent for longer is closed")] = (
        limits.CONNECTION_IDLE_MS_MAX
    )
    connection_pending_requests_max: Annotated[
        int, Meta(ge=1, description="requests read and not answered on one connection before reading pauses")
    ] = limits.CONNECTION_PENDING_REQUESTS_MAX
    connection_pending_output_bytes_max: Annotated[
        int, Meta(ge=1024, description="bytes that a slow client has not taken before reading pauses")
    ] = limits.CONNECTION_PENDING_OUTPUT_BYTES_MAX
    fetch_bytes_max: Annotated[
        int, Meta(ge=1024, description="the most one fetch answers with, whatever the client asks")
    ] = limits.FETCH_BYTES_MAX
    fetch_sessions_max: Annotated[int, Meta(ge=0, description="fetch sessions remembered")] = limits.FETCH_SESSIONS_MAX
    topics_max: Annotated[int, Meta(ge=1, le=limits.TOPICS_MAX, description="topics in all")] = limits.TOPICS_MAX
    partitions_max: Annotated[
        int, Meta(ge=1, le=limits.PARTITIONS_MAX, description="partitions of all topics together")
    ] = limits.PARTITIONS_MAX


class QueueSettings(Struct, frozen=True, kw_only=True):
    """Queues: topics worked by leases. A record may say otherwise of its own retries."""

    lease_ms: Annotated[int, Meta(ge=1, description="how long a worker has a record that does not say")] = 2_000
    lease_ms_max: Annotated[int, Meta(ge=1, description="the longest lease a worker may ask for")] = 12 * 3_600_000
    in_flight_max: Annotated[
        int, Meta(ge=1, le=limits.QUEUE_IN_FLIGHT_MAX, description="records of one queue that are leased at a time")
    ] = 10_000
    worker_in_flight: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.QUEUE_IN_FLIGHT_MAX,
            description="records that a connected worker holds at a time that does not say; its leases all run at once",
        ),
    ] = 16
    max_attempts: Annotated[
        int, Meta(ge=0, le=65_535, description="deliveries before a record is a dead letter; 0: no limit")
    ] = 0
    backoff_ms: Annotated[int, Meta(ge=0, description="the wait after a first nack; it doubles with each attempt")] = (
        100
    )
    max_backoff_ms: Annotated[int, Meta(ge=0, description="the longest such wait; 0: no limit")] = 60_000
    idempotency_ms: Annotated[
        int, Meta(ge=1_000, description="how long an idempotency key is remembered, by producers and by groups")
    ] = 600_000
    backlog_records_max: Annotated[
        int, Meta(ge=0, description="unconsumed records of a partition above which /v1/produce answers 429; 0: off")
    ] = 0
    backlog_bytes_max: Annotated[int, Meta(ge=0, description="the same, in bytes; 0: off")] = 0


class SinkSettings(Struct, frozen=True, kw_only=True):
    """Exactly-once sinks (Spark writes through them)."""

    staging_idle_ms: Annotated[
        int,
        Meta(ge=1_000, description="a staging topic goes that nobody used for so long; its sink's last batch is kept"),
    ] = 7 * 24 * 3_600_000
    remember_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            description="a sink that nobody used for so long is forgotten with its last batch; whoever opens it may ask for less",
        ),
    ] = 30 * 24 * 3_600_000
    sinks_max: Annotated[int, Meta(ge=1, le=limits.SINKS_MAX, description="sinks that are remembered")] = (
        limits.SINKS_MAX
    )


class TcpSettings(Struct, frozen=True, kw_only=True):
    """JSON lines over TCP."""

    line_bytes_max: Annotated[
        int, Meta(ge=1024, le=limits.REQUEST_BYTES_MAX, description="the longest line; a longer one is skipped")
    ] = limits.TCP_LINE_BYTES_MAX
    session_timeout_ms: Annotated[int, Meta(ge=1, description="a silent consumer of a group is dropped after this")] = (
        10_000
    )


class GrpcSettings(Struct, frozen=True, kw_only=True):
    """gRPC."""

    message_bytes_max: Annotated[
        int, Meta(ge=1024, le=limits.REQUEST_BYTES_MAX, description="the largest request of one call")
    ] = limits.GRPC_MESSAGE_BYTES_MAX
    streams_max: Annotated[int, Meta(ge=1, description="calls under way at a time, subscriptions too")] = (
        limits.GRPC_STREAMS_MAX
    )


class HttpSettings(Struct, frozen=True, kw_only=True):
    """The HTTP API for topics, messages and consumers."""

    host: Annotated[str, Meta(min_length=1, description="host, when listeners.http is not set")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="port, when listeners.http is not set")] = 8080
    default_partitions: Annotated[
        int, Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX, description="partitions of a topic made over HTTP")
    ] = 4
    default_replication_factor: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="replicas of a topic made over HTTP without a number; 1 in a cluster: as cluster.replication_factor says",
        ),
    ] = 1
    default_retention_seconds: Annotated[
        int, Meta(ge=-1, description="how long a topic made over HTTP keeps records; -1: for ever")
    ] = 604_800
    default_retention_bytes: Annotated[
        int, Meta(ge=-1, description="how much a partition of a topic made over HTTP keeps; -1: no bound")
    ] = 1_073_741_824
    acks: Annotated[Acks, Meta(description="what a publisher waits for that does not say")] = Acks.LEADER
    retries: Annotated[int, Meta(ge=0, le=100, description="how often a failed publish is tried again")] = 3
    retry_backoff_ms: Annotated[int, Meta(ge=0, description="the wait before such a try")] = 100
    max_poll_records: Annotated[int, Meta(ge=1, le=100_000, description="the most messages of one answer")] = 500
    session_timeout_ms: Annotated[int, Meta(ge=1, description="a silent consumer is dropped after this")] = 30_000
    request_timeout_ms: Annotated[int, Meta(ge=1, description="a request that waits longer is refused")] = 30_000
    body_bytes_max: Annotated[
        int, Meta(ge=1024, le=limits.REQUEST_BYTES_MAX, description="the largest body; a larger one is refused")
    ] = limits.HTTP_BODY_BYTES_MAX
    connections_max: Annotated[int, Meta(ge=1, description="connections at the same time")] = (
        limits.HTTP_CONNECTIONS_MAX
    )


class Settings(Struct, frozen=True, kw_only=True):
    """All of it. ``Settings()`` is the defaults; :func:`penstock.config.load` reads the rest."""

    server: ServerSettings = field(default_factory=ServerSettings)
    listeners: ListenerSettings = field(default_factory=ListenerSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    log: LogSettings = field(default_factory=LogSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Topic configs by Kafka's names, as text; what a topic has that does not say otherwise."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    queues: QueueSettings = field(default_factory=QueueSettings)
    sinks: SinkSettings = field(default_factory=SinkSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    tcp: TcpSettings = field(default_factory=TcpSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where each value that is not a default came from, by its path ("log.flush")."""

    @property
    def replication_factor(self) -> int:
        """Replicas of a topic that is created without a number."""
        return self.cluster.replication_factor if self.cluster.name else self.topics.replication_factor

    @property
    def topic_configs(self) -> dict[str, str]:
        """The topic configs of topics that do not set them: ``topic_defaults``, and what the cluster's settings say."""
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
"""The one section whose keys are not a struct's: they are Kafka's topic configs."""
