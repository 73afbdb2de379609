"""Every metric that there is, as it is documented: its name, kind, labels and meaning. ``metrics.py`` fills them in."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class MetricKind(Enum):
    """Prometheus' kinds."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is documented."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str


_BY_QUEUE: Final = ("topic", "group")
_BY_FLOW: Final = ("topic", "gateway")

CLUSTER_METRICS: Final = (
    Metric("penstock_cluster_nodes", MetricKind.GAUGE, (), "Nodes of the cluster that are up, as seen by this node."),
    Metric("penstock_cluster_is_registered", MetricKind.GAUGE, (), "1 while this node is registered in the cluster."),
    Metric("penstock_cluster_is_controller", MetricKind.GAUGE, (), "1 on the controller."),
    Metric(
        "penstock_cluster_node_epoch",
        MetricKind.GAUGE,
        (),
        "The epoch of this node; it increases each time the node registers.",
    ),
    Metric("penstock_metadata_reachable", MetricKind.GAUGE, (), "1 while this node can reach etcd."),
    Metric(
        "penstock_replicas",
        MetricKind.GAUGE,
        (),
        "Partitions with a replica on this node, including those that it leads.",
    ),
    Metric("penstock_partitions_led", MetricKind.GAUGE, (), "Partitions that this node leads."),
    Metric(
        "penstock_partitions_under_replicated",
        MetricKind.GAUGE,
        (),
        "Partitions led by this node that have a replica out of sync.",
    ),
    Metric(
        "penstock_partitions_under_min_in_sync",
        MetricKind.GAUGE,
        (),
        "Partitions led by this node that refuse acks=all because too few replicas are in sync.",
    ),
    Metric(
        "penstock_partitions_offline",
        MetricKind.GAUGE,
        (),
        "Partitions with a replica on this node that have no available leader.",
    ),
    Metric(
        "penstock_replica_lag_records_max",
        MetricKind.GAUGE,
        (),
        "Records that the slowest follower of any partition led by this node is behind; followers that are down included.",
    ),
    Metric(
        "penstock_leaderships_begun_total",
        MetricKind.COUNTER,
        (),
        "Number of times that this node became the leader of a partition.",
    ),
    Metric(
        "penstock_leaderships_ended_total",
        MetricKind.COUNTER,
        (),
        "Number of times that it stopped leading one: another leader was elected, it lost its registration, or the topic was deleted.",
    ),
    Metric(
        "penstock_in_sync_shrinks_total",
        MetricKind.COUNTER,
        (),
        "Times that a replica left the in-sync set of a partition led by this node.",
    ),
    Metric(
        "penstock_in_sync_expands_total",
        MetricKind.COUNTER,
        (),
        "Times that a replica joined the in-sync set of a partition led by this node.",
    ),
    Metric("penstock_replicated_in_bytes_total", MetricKind.COUNTER, (), "Bytes copied from other nodes."),
    Metric("penstock_replicated_out_bytes_total", MetricKind.COUNTER, (), "Bytes sent to other nodes for replication."),
)
"""Those of a node of a cluster; of a broker that is alone they have no values."""

METRICS: Final = (
    # DriftQ's names, which its users have in their dashboards.
    Metric(
        "inflight_messages", MetricKind.GAUGE, ("topic", "group", "partition"), "Records currently leased to a worker."
    ),
    Metric(
        "consumer_lag",
        MetricKind.GAUGE,
        ("topic", "group", "partition"),
        "Records that a group has not read; for a queue, records that it has not finished.",
    ),
    Metric(
        "dlq_messages_total", MetricKind.COUNTER, ("topic", "reason"), "Records that became dead letters of the topic."
    ),
    Metric(
        "produce_rejected_total",
        MetricKind.COUNTER,
        ("reason",),
        "Produce requests refused because the backlog is too large.",
    ),
    Metric("message_acks_total", MetricKind.COUNTER, _BY_QUEUE, "Records acked by a worker."),
    Metric(
        "message_nacks_total",
        MetricKind.COUNTER,
        ("topic", "group", "reason"),
        "Records nacked by a worker; after the first 20 reasons of a queue, further ones count as other.",
    ),
    Metric("message_lease_timeouts_total", MetricKind.COUNTER, _BY_QUEUE, "Leases that expired without an ack."),
    Metric("message_redeliveries_total", MetricKind.COUNTER, _BY_QUEUE, "Deliveries of a record after the first one."),
    # Topics.
    Metric("penstock_records_in_total", MetricKind.COUNTER, _BY_FLOW, "Records appended."),
    Metric("penstock_bytes_in_total", MetricKind.COUNTER, _BY_FLOW, "Bytes appended, as stored in the log."),
    Metric("penstock_records_out_total", MetricKind.COUNTER, _BY_FLOW, "Records delivered to readers and workers."),
    Metric("penstock_bytes_out_total", MetricKind.COUNTER, _BY_FLOW, "Bytes delivered to readers and workers."),
    Metric("penstock_log_bytes", MetricKind.GAUGE, ("topic",), "Size of the logs of the topic's open partitions."),
    Metric("penstock_topics", MetricKind.GAUGE, (), "Topics, including internal ones."),
    Metric("penstock_partitions", MetricKind.GAUGE, (), "Partitions of all topics."),
    Metric("penstock_partitions_opened", MetricKind.GAUGE, (), "Partitions whose log is open."),
    Metric(
        "penstock_partitions_failed", MetricKind.GAUGE, (), "Partitions that refuse writes because of a disk failure."
    ),
    # Groups and queues.
    Metric("penstock_groups", MetricKind.GAUGE, ("state",), "Groups by state."),
    Metric(
        "penstock_group_lag_records",
        MetricKind.GAUGE,
        _BY_QUEUE,
        "Records that a group has not read, over all partitions.",
    ),
    Metric(
        "penstock_group_lag_seconds",
        MetricKind.GAUGE,
        _BY_QUEUE,
        "Age of the oldest record that a group has not read; 0 if it has read all.",
    ),
    Metric(
        "penstock_queue_records",
        MetricKind.GAUGE,
        ("topic", "group", "state"),
        "Records of a queue that are leased, waiting (for a backoff or delay), ready (for redelivery), moving (to the dead letters).",
    ),
    Metric("penstock_leases_total", MetricKind.COUNTER, _BY_QUEUE, "Deliveries to workers, including redeliveries."),
    Metric(
        "penstock_deadline_exceeded_total",
        MetricKind.COUNTER,
        _BY_QUEUE,
        "Records finished because their deadline passed.",
    ),
    Metric(
        "penstock_duplicates_skipped_total",
        MetricKind.COUNTER,
        _BY_QUEUE,
        "Records not delivered because the group had already finished one with the same idempotency key.",
    ),
    Metric(
        "penstock_produce_duplicates_total",
        MetricKind.COUNTER,
        ("topic",),
        "Produce requests answered with the position of an earlier record.",
    ),
    Metric(
        "penstock_dead_letters_redriven_total", MetricKind.COUNTER, ("topic",), "Dead letters sent back to their topic."
    ),
    # Exactly-once sinks.
    Metric(
        "penstock_sink_commits_total",
        MetricKind.COUNTER,
        ("result",),
        "Commits of exactly-once sinks: committed, already (the batch was committed before), refused.",
    ),
    Metric("penstock_sink_records_total", MetricKind.COUNTER, (), "Records appended by commits of sinks."),
    # Requests and connections.
    Metric(
        "penstock_request_seconds",
        MetricKind.HISTOGRAM,
        ("gateway", "api"),
        "Time from the arrival of a request to its response, including the wait of a long poll.",
    ),
    Metric(
        "penstock_operations_total", MetricKind.COUNTER, ("operation", "gateway"), "Operations that callers asked for."
    ),
    Metric("penstock_request_errors_total", MetricKind.COUNTER, ("gateway", "reason"), "Requests refused."),
    Metric("penstock_connections", MetricKind.GAUGE, ("gateway",), "Open connections."),
    Metric("penstock_connections_refused_total", MetricKind.COUNTER, ("gateway",), "Connections refused by a limit."),
    *CLUSTER_METRICS,
    # The disk and the node.
    Metric("penstock_sync_seconds", MetricKind.HISTOGRAM, (), "Time to sync a log to the disk."),
    Metric("penstock_sync_errors_total", MetricKind.COUNTER, (), "Syncs that failed."),
    Metric("penstock_disk_free_bytes", MetricKind.GAUGE, (), "Free space on the disk with the data directory."),
    Metric("penstock_build_info", MetricKind.GAUGE, ("version", "python", "node_id"), "Always 1."),
    Metric(
        "penstock_series_left_out",
        MetricKind.GAUGE,
        ("metric",),
        "Number of series omitted because a metric exceeded its limit (a lower bound).",
    ),
    Metric("penstock_scrape_seconds", MetricKind.GAUGE, (), "Time to collect these metrics."),
)
"""All of them; ``process_*`` come from the client library."""
