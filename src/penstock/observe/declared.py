"""All metrics, with their names, kinds, labels and descriptions. ``metrics.py`` reads their values."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class MetricKind(Enum):
    """The kinds of metrics in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, MetricKind.COUNTER, labels, text)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, MetricKind.GAUGE, labels, text)


def _histogram(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, labels, text)


_BY_QUEUE: Final = ("topic", "group")
_BY_FLOW: Final = ("topic", "gateway")

CLUSTER_METRICS: Final = (
    _gauge("penstock_cluster_nodes", "Nodes of the cluster that are up, as seen by this node."),
    _gauge("penstock_cluster_is_registered", "1 while this node is registered in the cluster."),
    _gauge("penstock_cluster_is_controller", "1 on the controller."),
    _gauge("penstock_cluster_node_epoch", "The epoch of this node; it increases each time the node registers."),
    _gauge("penstock_metadata_reachable", "1 while this node can reach etcd."),
    _gauge("penstock_replicas", "Partitions with a replica on this node, including those that it leads."),
    _gauge("penstock_partitions_led", "Partitions that this node leads."),
    _gauge("penstock_partitions_under_replicated", "Partitions led by this node that have a replica out of sync."),
    _gauge(
        "penstock_partitions_under_min_in_sync",
        "Partitions led by this node that refuse acks=all because too few replicas are in sync.",
    ),
    _gauge("penstock_partitions_offline", "Partitions with a replica on this node that have no available leader."),
    _gauge(
        "penstock_replica_lag_records_max",
        "Records that the slowest follower of any partition led by this node is behind; followers that are down included.",
    ),
    _counter("penstock_leaderships_begun_total", "Number of times that this node became the leader of a partition."),
    _counter(
        "penstock_leaderships_ended_total",
        "Number of times that it stopped leading one: another leader was elected, it lost its registration, or the topic was deleted.",
    ),
    _counter(
        "penstock_in_sync_shrinks_total", "Times that a replica left the in-sync set of a partition led by this node."
    ),
    _counter(
        "penstock_in_sync_expands_total", "Times that a replica joined the in-sync set of a partition led by this node."
    ),
    _counter("penstock_replicated_in_bytes_total", "Bytes copied from other nodes."),
    _counter("penstock_replicated_out_bytes_total", "Bytes sent to other nodes for replication."),
)
"""The metrics of a node in a cluster. A broker that runs alone has no values for them."""

METRICS: Final = (
    # DriftQ's names, which its users have in their dashboards.
    _gauge("inflight_messages", "Records currently leased to a worker.", ("topic", "group", "partition")),
    _gauge(
        "consumer_lag",
        "Records that a group has not read; for a queue, records that it has not finished.",
        ("topic", "group", "partition"),
    ),
    _counter("dlq_messages_total", "Records that became dead letters of the topic.", ("topic", "reason")),
    _counter(
        "penstock_quota_throttled_ms_total",
        "Milliseconds for which clients were slowed down because they exceeded a quota.",
        ("quota", "user", "client_id"),
    ),
    _counter(
        "penstock_quota_refused_total",
        "Requests refused because their client exceeded a quota.",
        ("quota",),
    ),
    _counter("penstock_audit_lost_total", "Records of the audit log that could not be written.", ("output",)),
    _counter("produce_rejected_total", "Produce requests refused because the backlog is too large.", ("reason",)),
    _counter("message_acks_total", "Records acked by a worker.", _BY_QUEUE),
    _counter(
        "message_nacks_total",
        "Records nacked by a worker; after the first 20 reasons of a queue, further ones count as other.",
        ("topic", "group", "reason"),
    ),
    _counter("message_lease_timeouts_total", "Leases that expired without an ack.", _BY_QUEUE),
    _counter("message_redeliveries_total", "Deliveries of a record after the first one.", _BY_QUEUE),
    # Topics.
    _counter("penstock_records_in_total", "Records appended.", _BY_FLOW),
    _counter("penstock_bytes_in_total", "Bytes appended, as stored in the log.", _BY_FLOW),
    _counter("penstock_records_out_total", "Records delivered to readers and workers.", _BY_FLOW),
    _counter("penstock_bytes_out_total", "Bytes delivered to readers and workers.", _BY_FLOW),
    _gauge("penstock_log_bytes", "Size of the logs of the topic's open partitions.", ("topic",)),
    _gauge("penstock_topics", "Topics, including internal ones."),
    _gauge("penstock_partitions", "Partitions of all topics."),
    _gauge("penstock_partitions_opened", "Partitions whose log is open."),
    _gauge("penstock_partitions_failed", "Partitions that refuse writes because of a disk failure."),
    # Groups and queues.
    _gauge("penstock_groups", "Groups by state.", ("state",)),
    _gauge("penstock_group_lag_records", "Records that a group has not read, over all partitions.", _BY_QUEUE),
    _gauge(
        "penstock_group_lag_seconds",
        "Age of the oldest record that a group has not read; 0 if it has read all.",
        _BY_QUEUE,
    ),
    _gauge(
        "penstock_queue_records",
        "Records of a queue that are leased, waiting (for a backoff or delay), ready (for redelivery), moving (to the dead letters).",
        ("topic", "group", "state"),
    ),
    _counter("penstock_leases_total", "Deliveries to workers, including redeliveries.", _BY_QUEUE),
    _counter("penstock_deadline_exceeded_total", "Records finished because their deadline passed.", _BY_QUEUE),
    _counter(
        "penstock_duplicates_skipped_total",
        "Records not delivered because the group had already finished one with the same idempotency key.",
        _BY_QUEUE,
    ),
    _counter(
        "penstock_produce_duplicates_total",
        "Produce requests answered with the position of an earlier record.",
        ("topic",),
    ),
    _counter("penstock_dead_letters_redriven_total", "Dead letters sent back to their topic.", ("topic",)),
    # Exactly-once sinks.
    _counter(
        "penstock_sink_commits_total",
        "Commits of exactly-once sinks: committed, already (the batch was committed before), refused.",
        ("result",),
    ),
    _counter("penstock_sink_records_total", "Records appended by commits of sinks."),
    # Requests and connections.
    _histogram(
        "penstock_request_seconds",
        "Time from the arrival of a request to its response, including the wait of a long poll.",
        ("gateway", "api"),
    ),
    _counter("penstock_operations_total", "Operations that callers asked for.", ("operation", "gateway")),
    _counter("penstock_request_errors_total", "Requests refused.", ("gateway", "reason")),
    _counter("penstock_authentication_failures_total", "Failed logins, by how and why.", ("method", "reason")),
    _gauge("penstock_connections", "Open connections.", ("gateway",)),
    _counter("penstock_connections_refused_total", "Connections refused by a limit.", ("gateway",)),
    _counter(
        "penstock_connections_failed_total",
        "Connections that failed before the first request, such as TLS handshakes.",
        ("listener", "reason"),
    ),
    _gauge(
        "penstock_insecure", "1 if clients on other machines need not authenticate, because security.insecure is set."
    ),
    *CLUSTER_METRICS,
    # The disk and the node.
    _histogram("penstock_sync_seconds", "Time to sync a log to the disk."),
    _counter("penstock_sync_errors_total", "Syncs that failed."),
    _gauge("penstock_disk_free_bytes", "Free space on the disk with the data directory."),
    _gauge("penstock_build_info", "Always 1.", ("version", "python", "node_id")),
    _gauge(
        "penstock_series_left_out",
        "Number of series omitted because a metric exceeded its limit (a lower bound).",
        ("metric",),
    ),
    _gauge("penstock_scrape_seconds", "Time to collect these metrics."),
)
"""All metrics except ``process_*``, which are those of the client library."""
