"""ElectLeaders (API key 43): elect leaders of partitions now. Any node takes it, not the controller alone.

Version 1 adds the kind of election (0 the preferred leader, 1 an unclean one) and an error for the whole, 2 is flexible. Without a list
of partitions all are meant, and those that are led as they should be are left out of the answer.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.core.cluster.election import is_led, preferred
from penstock.core.cluster.reassignment import ElectionKind
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import Turns
from penstock.gateways.kafka.reassignments import change_each
from penstock.operations.operation import Action
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
    asked = list(dict.fromkeys(_asked(request)))
    try:
        context.require_cluster(Action.ALTER)
        kind = _kind(request.election_type)
    except PenstockError as error:
        if context.version >= _ERROR_FROM:
            return ElectLeadersResponse(error_code=context.code(error))
        return ElectLeadersResponse(
            replica_election_results=await _results([(place, error) for place in asked], context)
        )
    if request.topic_partitions is None:
        asked = list(_to_elect(kind, context))
    reassignments = context.broker.cluster.reassignments
    done = await change_each(asked, lambda place: reassignments.elect(*place, kind), request.timeout_ms)
    if request.topic_partitions is None:
        # Somebody else was faster.
        done = [
            (place, error) for place, error in done if error is None or error.reason is not Reason.ELECTION_NOT_NEEDED
        ]
    return ElectLeadersResponse(replica_election_results=await _results(done, context))


def _asked(request: ElectLeadersRequest) -> Iterator[tuple[str, int]]:
    for topic in request.topic_partitions or ():
        for index in topic.partitions:
            yield topic.topic, index


def _kind(number: int) -> ElectionKind:
    try:
        return ElectionKind(number)
    except ValueError:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"There is no election of type {number}. Use 0 for the preferred leader, 1 for an unclean one.",
        ) from None


def _to_elect(kind: ElectionKind, context: RequestContext) -> Iterator[tuple[str, int]]:
    """The partitions whose leader is not the one that this kind of election is for."""
    topics, live = context.broker.topics, context.broker.cluster.nodes.live()
    for topic in topics:
        for index, record in enumerate(topics.partitions(topic)):
            led = is_led(record, live)
            if not led or (kind is ElectionKind.PREFERRED and record.leader != preferred(record)):
                yield topic.name, index


async def _results(
    done: Iterable[tuple[tuple[str, int], PenstockError | None]], context: RequestContext
) -> list[ElectLeadersResponseReplicaElectionResult]:
    by_topic: dict[str, list[ElectLeadersResponsePartitionResult]] = {}
    turns = Turns()
    for (topic, index), error in done:
        await turns.pause_if_long()
        text = None if error is None else error.text
        by_topic.setdefault(topic, []).append(ElectLeadersResponsePartitionResult(index, context.code(error), text))
    return [ElectLeadersResponseReplicaElectionResult(topic, results) for topic, results in by_topic.items()]
