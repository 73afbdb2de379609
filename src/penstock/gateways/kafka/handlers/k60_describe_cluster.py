"""DescribeCluster (API key 60): the brokers. Version 1 can request controllers instead, 2 fenced brokers as well.

Every client may ask; the operations on the cluster are only shown to those that may describe it.

It lists the brokers that are up: those registered with the cluster, and this one. No fenced brokers are known, so none are listed.
"""

from typing import Final

from penstock.gateways.kafka.context import OPERATIONS_NOT_REQUESTED, RequestContext
from penstock.gateways.kafka.errors import MISMATCHED_ENDPOINT_TYPE
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import controller_of, nodes_of
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_cluster_generated import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
)

_BROKERS: Final = 1


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    """Controllers have no listeners, so there are none to list."""
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=MISMATCHED_ENDPOINT_TYPE,
            error_message="This is the address of a broker, not of a controller. Use endpoint type 1.",
            endpoint_type=_BROKERS,
        )
    return DescribeClusterResponse(
        cluster_id=context.broker.cluster_id,
        controller_id=controller_of(context),
        brokers=[
            DescribeClusterResponseBroker(node.node_id, node.address.host, node.address.port, node.rack)
            for node in nodes_of(context)
        ],
        cluster_authorized_operations=context.cluster_operations()
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_REQUESTED,
    )
