"""Fetches of followers: translation between Kafka's Fetch and the rules of copying (``core/replication/copying.py``).

The first request of a connection names all partitions, later ones only what changed. An answer has only partitions with news, and
waits for the first of them at most as long as the follower said.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.core.replication.copying import Asked, Copied, CopySession
from penstock.gateways.kafka.errors import CODES
from penstock.limits import FETCH_WAIT_MS_MAX
from penstock.types import NodeId
from penstock.wire.kafka.fetch_generated import (
    FetchRequest,
    FetchResponse,
    FetchResponseDivergingEpoch,
    FetchResponsePartition,
    FetchResponseTopic,
)
from penstock.wire.peers import decode_known_epoch

if TYPE_CHECKING:
    from penstock.gateways.peers.gateway import PeerGateway

_SESSION: Final = 1
"""A connection has one."""
_PARTITIONS_A_TURN: Final = 500
"""The first question of a connection names all partitions: others are served in between."""


class ReplicaFetches:
    """The fetches of one connection."""

    def __init__(self, gateway: "PeerGateway", node_id: NodeId, node_epoch: int) -> None:
        self._gateway = gateway
        self._node_id = node_id
        self._node_epoch = node_epoch
        self._session = self._new_session()
        self._news: asyncio.Future[None] | None = None
        self._looking = False

    def _new_session(self) -> CopySession:
        gateway = self._gateway
        return CopySession(
            self._node_id,
            self._node_epoch,
            gateway.cluster.replicas,
            gateway.broker.topics,
            gateway.broker.clock,
            gateway.on_fetched,
            self._woken,
        )

    def close(self) -> None:
        """The follower is gone."""
        self._session.close()

    async def fetch(self, request: FetchRequest, coming: "asyncio.Future[Any]") -> FetchResponse:
        """Note what the follower has, and answer with what is new, or with nothing when its time is over or ``coming`` is there."""
        if not request.session_id:
            self._session.close()
            self._session = self._new_session()
        session = self._session
        named = 0
        for topic in request.topics:
            topic_id = UUID(bytes=bytes(topic.topic_id))
            for each in topic.partitions:
                named += 1
                if named % _PARTITIONS_A_TURN == 0:
                    await asyncio.sleep(0)
                asked = Asked(
                    each.fetch_offset,
                    each.current_leader_epoch,
                    each.last_fetched_epoch,
                    each.high_watermark,
                    max(each.partition_max_bytes, 0),
                    each.log_start_offset,
                    decode_known_epoch(each.replica_directory_id),
                )
                session.ask(topic_id, each.partition, asked)
        for forgotten in request.forgotten_topics_data:
            topic_id = UUID(bytes=bytes(forgotten.topic_id))
            for index in forgotten.partitions:
                session.forget(topic_id, index)
        found = session.collect(request.max_bytes)
        if not found:
            await self._wait(min(max(request.max_wait_ms, 0), FETCH_WAIT_MS_MAX) / 1000, coming)
            found = session.collect(request.max_bytes)
        self._gateway.broker.meters.replicated_out_bytes += sum(len(copied.records) for copied in found)
        return _response(found)

    async def _wait(self, seconds: float, coming: "asyncio.Future[Any]") -> None:
        if self._session.has_news or coming.done():
            return
        self._news = asyncio.get_running_loop().create_future()
        coming.add_done_callback(self._end_wait)
        try:
            async with asyncio.timeout(seconds):
                await self._news
        except TimeoutError:
            return
        finally:
            coming.remove_done_callback(self._end_wait)
            self._news = None

    def _end_wait(self, _: object) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _woken(self) -> None:
        # At the end of the turn: what else comes in it goes with the same answer.
        if self._news is not None and not self._looking:
            self._looking = True
            self._gateway.turn.look(self._look)

    def _look(self) -> None:
        self._looking = False
        self._end_wait(None)


def _response(found: list[Copied]) -> FetchResponse:
    topics: dict[UUID, FetchResponseTopic] = {}
    for copied in found:
        topic = topics.get(copied.place.topic_id)
        if topic is None:
            topic = topics[copied.place.topic_id] = FetchResponseTopic(
                topic_id=copied.place.topic_id.bytes, partitions=[]
            )
        topic.partitions.append(_partition(copied))
    return FetchResponse(session_id=_SESSION, responses=list(topics.values()))


def _partition(copied: Copied) -> FetchResponsePartition:
    diverging = None
    if copied.diverging is not None:
        diverging = FetchResponseDivergingEpoch(epoch=copied.diverging[0], end_offset=copied.diverging[1])
    return FetchResponsePartition(
        partition_index=copied.place.partition,
        error_code=0 if copied.reason is None else CODES[copied.reason],
        high_watermark=copied.high_watermark,
        last_stable_offset=copied.high_watermark,
        log_start_offset=copied.start_offset,
        diverging_epoch=diverging,
        aborted_transactions=None,
        records=copied.records,
    )
