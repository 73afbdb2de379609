"""The metrics of a node in a cluster: its leaders and replicas, lagging followers, and whether it is registered.

A scrape reads only the partitions with a replica on this node, however many the cluster has.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.core.broker import Broker
from penstock.core.partitions.partition import Partition
from penstock.observe.declared import CLUSTER_METRICS

Number = tuple[str, Iterable[tuple[tuple[str, ...], float]]]


@dataclass(slots=True)
class _Led:
    """Sums over the partitions that this node leads."""

    count: int = 0
    under_replicated: int = 0
    under_min_in_sync: int = 0
    lag_max: int = 0

    def look(self, partition: Partition, node_id: int) -> None:
        in_sync = partition.in_sync
        self.count += 1
        wanted = [node for node in in_sync.replicas if node not in in_sync.adding]
        self.under_replicated += any(node not in in_sync.agreed for node in wanted)
        self.under_min_in_sync += in_sync.count < in_sync.min_in_sync
        log = partition.log
        for node in wanted:
            if node != node_id:
                self.lag_max = max(self.lag_max, in_sync.lag_of(node, log.start_offset, log.next_offset))


def numbers_of(broker: Broker, step: int, *, is_reachable: bool) -> Iterator[Number | None]:
    """All metrics, with None after every ``step`` partitions, where the caller can let the event loop run."""
    cluster, meters = broker.cluster, broker.meters
    image, led, copies, headless = cluster.nodes, _Led(len(cluster.replicas.unopened())), 0, cluster.metering.leaderless
    for at, partition in enumerate(cluster.replicas.leading()):
        if at % step == 0:
            yield None
        led.look(partition, broker.node_id)
    for at, follower in enumerate(cluster.replicas.following()):
        if at % step == 0:
            yield None
        if not follower.is_observer:
            copies += 1
            # Its leader is down, and no other is elected yet.
            headless += follower.leader not in image.nodes
    controller, registered = image.controller, image.nodes.get(broker.node_id)
    found = {
        "penstock_cluster_nodes": len(image.nodes),
        # With its current epoch, as for readiness.
        "penstock_cluster_is_registered": registered is not None and registered.epoch == cluster.replicas.node_epoch,
        "penstock_cluster_is_controller": controller is not None and controller.node_id == broker.node_id,
        "penstock_cluster_node_epoch": cluster.replicas.node_epoch,
        "penstock_metadata_reachable": is_reachable,
        "penstock_replicas": led.count + copies + cluster.metering.leaderless,
        "penstock_partitions_led": led.count,
        "penstock_partitions_under_replicated": led.under_replicated,
        "penstock_partitions_under_min_in_sync": led.under_min_in_sync,
        "penstock_partitions_offline": headless,
        "penstock_replica_lag_records_max": led.lag_max,
        "penstock_leaderships_begun_total": meters.leaderships_begun,
        "penstock_leaderships_ended_total": meters.leaderships_ended,
        "penstock_in_sync_shrinks_total": meters.in_sync_shrinks,
        "penstock_in_sync_expands_total": meters.in_sync_expands,
        "penstock_replicated_in_bytes_total": meters.replicated_in_bytes,
        "penstock_replicated_out_bytes_total": meters.replicated_out_bytes,
    }
    for metric in CLUSTER_METRICS:
        yield metric.name, [((), float(found[metric.name]))]
