"""ElectLeaders (API key 43): elect leaders of partitions now. Every node accepts it, not only the controller.

Version 1 adds the type of election (0 the preferred leader, 1 an unclean one) and an error for the whole request, 2 is flexible. A request
without a list is for all partitions, and its answer leaves out those that need no election.
"""

from typing import Final

from penstock.core.cluster.reassignment import ElectionKind
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.reassignments import by_topics, change_each
from penstock.operations.cluster import ElectLeader, ListElections
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.elect_leaders_generated import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ElectLeadersResponseReplicaElectionResult,
)

_ERROR_FROM: Final = 1


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2))
async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Each partition by itself."""
    unclean = request.election_type == ElectionKind.UNCLEAN
    asked = dict.fromkeys(
        (topic.topic, index) for topic in request.topic_partitions or () for index in topic.partitions
    )
    elections = [ElectLeader(*place, unclean) for place in asked]
    try:
        context.check(ListElections())
        if request.election_type not in set(ElectionKind):
            raise PenstockError(
                Reason.INVALID_REQUEST,
                f"There is no election of type {request.election_type}. Use 0 for the preferred leader, 1 for an unclean one.",
            )
    except PenstockError as error:
        if context.version >= _ERROR_FROM:
            return ElectLeadersResponse(error_code=context.code(error))
        done: list[tuple[ElectLeader, PenstockError | None]] = [(election, error) for election in elections]
    else:
        if request.topic_partitions is None:
            elections = [ElectLeader(*place, unclean) for place in context.answer(ListElections(unclean))]
        done = await change_each(elections, context, request.timeout_ms)
    if request.topic_partitions is None:
        # Another election was made in between.
        done = [each for each in done if each[1] is None or each[1].reason is not Reason.ELECTION_NOT_NEEDED]
    by_topic = await by_topics(done, context, ElectLeadersResponsePartitionResult)
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponseReplicaElectionResult(topic, results) for topic, results in by_topic.items()
        ]
    )
