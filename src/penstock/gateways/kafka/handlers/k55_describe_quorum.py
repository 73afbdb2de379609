"""DescribeQuorum (API key 55): refused, with a sentence that says where the agreed state is and what to ask instead.

There is no KRaft quorum here: a cluster agrees through etcd, whose members are not nodes, and a broker that is alone agrees with nobody. Any list of voters would be
invented, and their lag too. The code is the one that clients got from a Kafka cluster on ZooKeeper, so tools that look for the quorum do without it.
Version 2 adds the sentence.
"""

from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.operations.operation import Action
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_quorum_generated import DescribeQuorumRequest, DescribeQuorumResponse

KEY: Final = ApiKey.DESCRIBE_QUORUM
_ALONE: Final = "This broker is not part of a cluster: its metadata is in its own data directory, and there is no quorum to describe"
_CLUSTER: Final = (
    "This cluster keeps its metadata in etcd and has no KRaft quorum. "
    "'penstock cluster status' shows the nodes and the controller, 'etcdctl endpoint status --cluster' the members of etcd"
)


def handle(_request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
    """The same for every question."""
    try:
        context.require_cluster(Action.DESCRIBE)
    except PenstockError as error:
        return DescribeQuorumResponse(error_code=context.code(error), error_message=error.text)
    text = _ALONE if context.broker.cluster is None else _CLUSTER
    return DescribeQuorumResponse(error_code=context.code(Reason.UNSUPPORTED_VERSION), error_message=text)
