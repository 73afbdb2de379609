"""The APIs that are served only to be refused: where they are not listed, clients wait forever, or guess."""

from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import ConsumerGroupHeartbeat
from penstock.operations.operation import Action
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.consumer_group_heartbeat_generated import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.kafka.describe_acls_generated import DescribeAclsRequest, DescribeAclsResponse
from penstock.wire.kafka.describe_quorum_generated import DescribeQuorumRequest, DescribeQuorumResponse

_NO_ACLS: Final = (
    "This broker has no ACLs: every client that reaches a listener may do everything. "
    "Restrict access with the listener addresses and the network"
)
_NO_QUORUM_ALONE: Final = "This broker is not part of a cluster: its metadata is in its own data directory, and there is no quorum to describe"
_NO_QUORUM: Final = (
    "This cluster keeps its metadata in etcd and has no KRaft quorum. "
    "'penstock cluster status' shows the nodes and the controller, 'etcdctl endpoint status --cluster' the members of etcd"
)


@handles(ApiKey.DESCRIBE_ACLS, versions=(1, 3))
def describe_acls(_request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """Refused as a Kafka broker without an authorizer does: an empty list would look as if there could be something.

    Version 2 is flexible.
    """
    refusal = PenstockError(Reason.SECURITY_DISABLED, _NO_ACLS)
    try:
        context.require_cluster(Action.DESCRIBE)
    except PenstockError as error:
        refusal = error
    return DescribeAclsResponse(error_code=context.code(refusal), error_message=refusal.text)


@handles(ApiKey.DESCRIBE_QUORUM, versions=(0, 2))
def describe_quorum(_request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
    """A cluster agrees through etcd, whose members are not nodes, and a broker that is alone agrees with nobody: any list of voters would be invented.

    The code is the one that clients got from a Kafka cluster on ZooKeeper, so tools that look for the quorum do without it.
    Version 2 adds the text.
    """
    refusal = PenstockError(Reason.UNSUPPORTED_VERSION, _NO_QUORUM_ALONE if context.broker.is_alone else _NO_QUORUM)
    try:
        context.require_cluster(Action.DESCRIBE)
    except PenstockError as error:
        refusal = error
    return DescribeQuorumResponse(error_code=context.code(refusal), error_message=refusal.text)


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1))
def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """The newer consumer protocol (KIP-848) does not exist here: refused as by a Kafka broker whose feature group.version is 0.

    If this API were not listed, librdkafka would wait forever; with this answer it fails at once. Java's consumer
    fails at once either way.
    """
    try:
        context.answer(ConsumerGroupHeartbeat(request.group_id))
    except PenstockError as error:
        return ConsumerGroupHeartbeatResponse(error_code=context.code(error), error_message=error.text)
    return ConsumerGroupHeartbeatResponse()
