"""The cluster: its description, and nodes that are drained."""

from typing import TYPE_CHECKING, Final

from penstock.core.access import Caller
from penstock.core.cluster.status import drained, status_steps
from penstock.core.operations.handling import next_turn, works
from penstock.errors import PenstockError
from penstock.operations import cluster

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_STORE_MS_MAX: Final = 2_000
"""The metadata store has this long to show that it is reachable."""


@works(cluster.DescribeCluster)
async def describe(broker: "Broker", _: cluster.DescribeCluster, __: Caller) -> cluster.ClusterDescription:
    """As this node knows it."""
    steps = status_steps(broker, await _metadata(broker))
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: cluster.ClusterDescription = done.value
            return found
        await next_turn(broker)


async def _metadata(broker: "Broker") -> cluster.Metadata:
    try:
        in_time = await broker.within(_STORE_MS_MAX, broker.cluster.nodes.check_store())
    except PenstockError as error:
        return cluster.Metadata(is_reachable=False, error=error.text)
    if not in_time:
        return cluster.Metadata(is_reachable=False, error=f"it did not answer within {_STORE_MS_MAX // 1000} s")
    return cluster.Metadata(is_reachable=True, error=None)


@works(cluster.DrainNode)
async def drain(broker: "Broker", asked: cluster.DrainNode, _: Caller) -> cluster.NodeDrain:
    """Returns when the wish is stored."""
    reassignments = broker.cluster.reassignments
    await reassignments.drain(asked.node)
    return drained(reassignments.progress(asked.node))


@works(cluster.UndrainNode)
async def undrain(broker: "Broker", asked: cluster.UndrainNode, _: Caller) -> cluster.NodeDrain:
    """Returns when the wish is stored."""
    reassignments = broker.cluster.reassignments
    await reassignments.undrain(asked.node)
    return drained(reassignments.progress(asked.node))
