"""Every metric that there is, as it is documented: its name, kind, labels and meaning. ``metrics.py`` fills them in."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """Prometheus' kinds."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is documented."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_BY_QUEUE: Final = ("topic", "group")
_BY_FLOW: Final = ("topic", "gateway")

CLUSTER_METRICS: Final = (
    Metric("penstock_cluster_nodes", Kind.GAUGE, (), "Nodes of the cluster that are up, as this one knows."),
    Metric("penstock_cluster_is_registered", Kind.GAUGE, (), "1 while this node has its place in the cluster."),
    Metric("penstock_cluster_is_controller", Kind.GAUGE, (), "1 on the node that is the controller."),
    Metric("penstock_cluster_node_epoch", Kind.GAUGE, (), "The life of this node; it grows when it registers again."),
    Metric("penstock_metadata_reachable", Kind.GAUGE, (), "1 while etcd answers this node."),
    Metric("penstock_replicas", Kind.GAUGE, (), "Partitions that this node has, those that it leads among them."),
    Metric("penstock_partitions_led", Kind.GAUGE, (), "Partitions that this node leads."),
    Metric(
        "penstock_partitions_under_replicated",
        Kind.GAUGE,
        (),
        "Partitions led here of which a replica is not in sync.",
    ),
    Metric(
        "penstock_partitions_under_min_in_sync",
        Kind.GAUGE,
        (),
        "Partitions led here that refuse acks=all, because too few replicas are in sync.",
    ),
    Metric("penstock_partitions_offline", Kind.GAUGE, (), "Partitions that this node has and nobody who is up leads."),
    Metric(
        "penstock_replica_lag_records_max",
        Kind.GAUGE,
        (),
        "Records that the last of all followers of partitions led here does not have yet; of one that is down too.",
    ),
    Metric("penstock_leaderships_begun_total", Kind.COUNTER, (), "How often this node began to lead a partition."),
    Metric(
        "penstock_leaderships_ended_total",
        Kind.COUNTER,
        (),
        "How often it ceased to: another was named, it lost its place, or the topic was deleted.",
    ),
    Metric(
        "penstock_in_sync_shrinks_total", Kind.COUNTER, (), "In-sync sets of partitions led here that lost members."
    ),
    Metric("penstock_in_sync_expands_total", Kind.COUNTER, (), "In-sync sets of partitions led here that got members."),
    Metric("penstock_replicated_in_bytes_total", Kind.COUNTER, (), "Bytes copied from other nodes."),
    Metric("penstock_replicated_out_bytes_total", Kind.COUNTER, (), "Bytes sent to nodes that copy them."),
)
"""Those of a node of a cluster; of a broker that is alone they have no values."""

METRICS: Final = (
    # DriftQ's names, which its users have in their dashboards.
    Metric("inflight_messages", Kind.GAUGE, ("topic", "group", "partition"), "Records leased to a worker now."),
    Metric(
        "consumer_lag",
        Kind.GAUGE,
        ("topic", "group", "partition"),
        "Records that a group has not read; of a queue, those it has not finished.",
    ),
    Metric("dlq_messages_total", Kind.COUNTER, ("topic", "reason"), "Records moved to the topic's dead letters."),
    Metric(
        "produce_rejected_total", Kind.COUNTER, ("reason",), "Produces refused because too much waits to be consumed."
    ),
    Metric("message_acks_total", Kind.COUNTER, _BY_QUEUE, "Records acknowledged by a worker."),
    Metric(
        "message_nacks_total",
        Kind.COUNTER,
        ("topic", "group", "reason"),
        "Records given back by a worker; reasons past the first 20 of a queue count as other.",
    ),
    Metric("message_lease_timeouts_total", Kind.COUNTER, _BY_QUEUE, "Leases that ran out without an acknowledgement."),
    Metric("message_redeliveries_total", Kind.COUNTER, _BY_QUEUE, "Deliveries of a record after its first."),
    # Topics.
    Metric("penstock_records_in_total", Kind.COUNTER, _BY_FLOW, "Records appended."),
    Metric("penstock_bytes_in_total", Kind.COUNTER, _BY_FLOW, "Bytes appended, as they are stored in the log."),
    Metric("penstock_records_out_total", Kind.COUNTER, _BY_FLOW, "Records delivered to readers and workers."),
    Metric("penstock_bytes_out_total", Kind.COUNTER, _BY_FLOW, "Bytes delivered to readers and workers."),
    Metric("penstock_log_bytes", Kind.GAUGE, ("topic",), "Size of the logs of the topic's opened partitions."),
    Metric("penstock_topics", Kind.GAUGE, (), "Topics, the broker's own among them."),
    Metric("penstock_partitions", Kind.GAUGE, (), "Partitions of all topics."),
    Metric("penstock_partitions_opened", Kind.GAUGE, (), "Partitions whose log is open."),
    Metric("penstock_partitions_failed", Kind.GAUGE, (), "Partitions that refuse writes because their disk failed."),
    # Groups and queues.
    Metric("penstock_groups", Kind.GAUGE, ("state",), "Groups, by their state."),
    Metric(
        "penstock_group_lag_records", Kind.GAUGE, _BY_QUEUE, "Records that a group has not read, over all partitions."
    ),
    Metric(
        "penstock_group_lag_seconds",
        Kind.GAUGE,
        _BY_QUEUE,
        "Age of the oldest record that a group has not read; 0 when it has read all.",
    ),
    Metric(
        "penstock_queue_records",
        Kind.GAUGE,
        ("topic", "group", "state"),
        "Records of a queue that are leased, waiting (backoff, not before), ready (for redelivery), moving (to dead letters).",
    ),
    Metric("penstock_leases_total", Kind.COUNTER, _BY_QUEUE, "Deliveries to workers, first and later ones."),
    Metric(
        "penstock_deadline_exceeded_total", Kind.COUNTER, _BY_QUEUE, "Records finished because their deadline passed."
    ),
    Metric(
        "penstock_duplicates_skipped_total",
        Kind.COUNTER,
        _BY_QUEUE,
        "Records not delivered because the group had finished one of the same idempotency key.",
    ),
    Metric(
        "penstock_produce_duplicates_total",
        Kind.COUNTER,
        ("topic",),
        "Produces answered with an earlier record's place.",
    ),
    Metric("penstock_dead_letters_redriven_total", Kind.COUNTER, ("topic",), "Dead letters sent back to their topic."),
    # Exactly-once sinks.
    Metric(
        "penstock_sink_commits_total",
        Kind.COUNTER,
        ("result",),
        "Commits of exactly-once sinks: committed, already (the batch was there before), refused.",
    ),
    Metric("penstock_sink_records_total", Kind.COUNTER, (), "Records that commits of sinks appended."),
    # Requests and connections.
    Metric(
        "penstock_request_seconds",
        Kind.HISTOGRAM,
        ("gateway", "api"),
        "From the arrival of a request to its answer; a long poll's wait is part of it.",
    ),
    Metric("penstock_operations_total", Kind.COUNTER, ("operation", "gateway"), "Operations that callers asked for."),
    Metric("penstock_request_errors_total", Kind.COUNTER, ("gateway", "reason"), "Refusals in answers to requests."),
    Metric("penstock_connections", Kind.GAUGE, ("gateway",), "Open connections."),
    Metric("penstock_connections_refused_total", Kind.COUNTER, ("gateway",), "Connections refused by a limit."),
    *CLUSTER_METRICS,
    # The disk and the node.
    Metric("penstock_sync_seconds", Kind.HISTOGRAM, (), "How long a sync of a log to the disk takes."),
    Metric("penstock_sync_errors_total", Kind.COUNTER, (), "Syncs that the disk refused."),
    Metric("penstock_disk_free_bytes", Kind.GAUGE, (), "Room left on the disk that holds the data."),
    Metric("penstock_build_info", Kind.GAUGE, ("version", "python", "node_id"), "Always 1."),
    Metric("penstock_series_left_out", Kind.GAUGE, ("metric",), "Series over the limit of a metric, at least."),
    Metric("penstock_scrape_seconds", Kind.GAUGE, (), "How long it took to collect these numbers."),
)
"""All of them; ``process_*`` come from the client library."""
