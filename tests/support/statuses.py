"""The description of a cluster, without an event loop's turns in between."""

from penstock.core.broker import Broker
from penstock.core.cluster.status import status_steps
from penstock.operations.cluster import ClusterDescription, Metadata

REACHABLE = Metadata(is_reachable=True, error=None)


def cluster_status(broker: Broker) -> ClusterDescription:
    """As this node knows it."""
    steps = status_steps(broker, REACHABLE)
    try:
        while True:
            next(steps)
    except StopIteration as done:
        found: ClusterDescription = done.value
        return found
