"""Elections and moves as Kafka's clients ask for them: the cluster's door, or what a broker that is alone says to such wishes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from penstock.core.replication.reassignment import ElectionKind, Move
from penstock.core.topics import Topics
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.portions import at_a_time
from penstock.types import NodeId

AT_A_TIME_MAX: Final = 64
"""Wishes of one request that are on their way to the metadata store at the same time."""

Asked = TypeVar("Asked")


class Door(Protocol):
    """What :class:`~penstock.core.replication.reassignment.Reassignments` does, as far as Kafka has words for it."""

    async def alter(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None,
        *,
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Let these nodes have a partition; None takes a move back."""

    async def elect(self, topic: str, partition: int, kind: ElectionKind) -> None:
        """Elect a leader now."""

    def list(self, partitions: Iterable[tuple[str, int]] | None = None) -> Iterator[Move]:
        """The moves under way."""
        ...


class Alone:
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
        """Fine if it stays where it is."""
        self._topics.partition(self._topics.require_named(topic), partition)
        if replicas is None:
            raise PenstockError(
                Reason.NO_REASSIGNMENT_IN_PROGRESS, f"{topic}/{partition} is not being moved: this is a single broker."
            )
        self._topics.placer.assigned([replicas])

    async def elect(self, topic: str, partition: int, kind: ElectionKind) -> None:  # noqa: ARG002 - nobody else could lead
        """There is nobody else."""
        self._topics.partition(self._topics.require_named(topic), partition)
        raise PenstockError(
            Reason.ELECTION_NOT_NEEDED, f"{topic}/{partition} is led by node {self._node_id}: this is a single broker."
        )

    def list(self, partitions: Iterable[tuple[str, int]] | None = None) -> Iterator[Move]:  # noqa: ARG002 - none of them moves
        """None."""
        return iter(())


def door_of(context: RequestContext) -> Door:
    """Where this broker's wishes are told."""
    cluster = context.broker.cluster
    return Alone(context.broker.topics, context.broker.node_id) if cluster is None else cluster.reassignments


async def each(
    wishes: Sequence[Asked], wish: Callable[[Asked], Awaitable[None]], timeout_ms: int
) -> list[tuple[Asked, PenstockError | None]]:
    """What became of every wish, in their order; those that the client's time was too short for have timed out."""
    deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000

    async def one(asked: Asked) -> tuple[Asked, PenstockError | None]:
        try:
            async with asyncio.timeout_at(deadline):
                await wish(asked)
        except PenstockError as error:
            # Many may be kept until the answer is whole: without all that was on the stack when they were raised.
            return asked, error.with_traceback(None)
        except TimeoutError:
            return asked, PenstockError(
                Reason.REQUEST_TIMED_OUT,
                "The metadata store did not answer in time. Check whether the request was processed, and try again.",
            )
        return asked, None

    return await at_a_time(wishes, one, AT_A_TIME_MAX)
