"""The cluster and the draining of nodes under ``/v1``, which Kafka's protocol does not cover. Any node answers."""

from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall
from penstock.gateways.http.v1.models import NoFields
from penstock.gateways.http.v1.requests import read
from penstock.operations.cluster import (
    ClusterDescription,
    DescribeCluster,
    DrainNode,
    NodeDrain,
    RotateClusterSecret,
    SecretRotation,
    UndrainNode,
)

CALLS: Final = ApiCalls("v1: cluster")


@CALLS.get(
    "/v1/cluster",
    CallDoc("Show the state of the cluster: nodes, controller, and problems", {200: ClusterDescription}, (400,)),
)
async def _cluster(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(await call.do(DescribeCluster()))


@CALLS.post(
    "/v1/cluster/drain/{node}",
    CallDoc(
        "Drain a node: move its leaderships and replicas to other nodes, as far as possible",
        {200: NodeDrain},
        errors=(400, 404),
    ),
)
async def _drain(call: HttpCall) -> Answer:
    return json_answer(await call.do(DrainNode(_node_id(call))))


@CALLS.delete(
    "/v1/cluster/drain/{node}",
    CallDoc(
        "Use a drained node again; a node that is down and empty is removed from the cluster",
        {200: NodeDrain},
        errors=(400,),
    ),
)
async def _undrain(call: HttpCall) -> Answer:
    return json_answer(await call.do(UndrainNode(_node_id(call))))


@CALLS.post(
    "/v1/cluster/secret/rotate",
    CallDoc(
        "Rotate the secret with which nodes authenticate to each other; the one before it remains valid until the next rotation",
        {200: SecretRotation},
        errors=(400,),
    ),
)
async def _rotate_secret(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(await call.do(RotateClusterSecret()))


def _node_id(call: HttpCall) -> int:
    read(NoFields, call.query, b"")
    text = call.params["node"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise PenstockError(Reason.INVALID_REQUEST, f"{text[:20]!a} is not a node: specify the node id.")
    return int(text)
