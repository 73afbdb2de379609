"""Elections and reassignments as Kafka's clients request them: of a cluster, or of a broker that is alone."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from penstock.core.cluster.reassignment import ElectionKind, Reassignments, ReplicaMove
from penstock.core.topics.topics import Topics
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.portions import at_a_time
from penstock.types import NodeId

AT_A_TIME_MAX: Final = 64
"""Changes of one request that wait for the metadata store at the same time."""

Item = TypeVar("Item")


class LoneReassignments:
    """A broker that is alone leads everything, and nothing ever moves."""

    def __init__(self, topics: Topics, node_id: NodeId) -> None:
        self._topics = topics
        self._node_id = node_id

    async def alter(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None,
        *,
        allow_replication_factor_change: bool = True,  # noqa: ARG002 - there is one replica, whatever is allowed
    ) -> None:
        """Accepted if the replica stays where it is."""
        self._topics.partition(self._topics.require_named(topic), partition)
        if replicas is None:
            raise PenstockError(
                Reason.NO_REASSIGNMENT_IN_PROGRESS, f"{topic}/{partition} is not being moved: this is a single broker."
            )
        self._topics.placer.assigned([replicas])

    async def elect(self, topic: str, partition: int, kind: ElectionKind) -> None:  # noqa: ARG002 - nobody else could lead
        """No other node could lead."""
        self._topics.partition(self._topics.require_named(topic), partition)
        raise PenstockError(
            Reason.ELECTION_NOT_NEEDED, f"{topic}/{partition} is led by node {self._node_id}: this is a single broker."
        )

    def list(self, partitions: Iterable[tuple[str, int]] | None = None) -> Iterator[ReplicaMove]:  # noqa: ARG002 - none of them moves
        """None."""
        return iter(())


def reassignments_of(context: RequestContext) -> Reassignments | LoneReassignments:
    """What makes and lists the changes."""
    cluster = context.broker.cluster
    return (
        LoneReassignments(context.broker.topics, context.broker.node_id) if cluster is None else cluster.reassignments
    )


async def change_each(
    items: Sequence[Item], change: Callable[[Item], Awaitable[None]], timeout_ms: int
) -> list[tuple[Item, PenstockError | None]]:
    """Change each item; the results are in the same order, and a timeout for what was not done within the client's time."""
    deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000

    async def one(item: Item) -> tuple[Item, PenstockError | None]:
        try:
            async with asyncio.timeout_at(deadline):
                await change(item)
        except PenstockError as error:
            # Many may be kept until the answer is whole: without all that was on the stack when they were raised.
            return item, error.with_traceback(None)
        except TimeoutError:
            return item, PenstockError(
                Reason.REQUEST_TIMED_OUT,
                "The metadata store did not answer in time. Check whether the request was processed, and try again.",
            )
        return item, None

    return await at_a_time(items, one, AT_A_TIME_MAX)
