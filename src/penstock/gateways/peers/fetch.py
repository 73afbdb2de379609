"""Fetches of followers: translation between Kafka's Fetch and the rules of copying (``core/cluster/copying.py``).

The first request of a connection names all partitions, later ones only what has changed. A response has only partitions with news, and
waits for the first of them at most as long as the follower asked for. Two fetches may wait at a time; a third ends the wait of the
first. They are answered in the order in which they arrived.

News is sent at the end of the turn in which it came about, directly after the write. A higher high watermark alone is news, too: workers
and readers on the other node look for what was acknowledged a moment ago.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from penstock.core.cluster.copying import Copied, CopySession, PartitionFetch
from penstock.gateways.kafka.errors import CODES
from penstock.limits import FETCH_WAIT_MS_MAX
from penstock.types import Buffer, NodeId
from penstock.wire.kafka.fetch_generated import (
    DECODE_REQUEST,
    ENCODE_RESPONSE,
    FetchRequest,
    FetchResponse,
    FetchResponseDivergingEpoch,
    FetchResponsePartition,
    FetchResponseTopic,
)
from penstock.wire.kafka.headers import frame
from penstock.wire.peers import decode_known_epoch

if TYPE_CHECKING:
    from penstock.gateways.peers.gateway import PeerGateway

logger = logging.getLogger("penstock.peers")

FETCH_VERSION: Final = 18
WAITING_MAX: Final = 2
_SESSION: Final = 1
"""A connection has one."""
_HEADER_VERSION: Final = 1
_PARTITIONS_A_TURN: Final = 500
"""The first fetch of a connection names all partitions: other connections are served in between."""
_KEPT_BYTES_MIN: Final = 16 * 1024
"""A request of this size may take more than one turn; a partition takes about 40 bytes."""
_decode = DECODE_REQUEST[FETCH_VERSION]
_encode = ENCODE_RESPONSE[FETCH_VERSION]


class _WaitingFetch(NamedTuple):
    number: int
    correlation_id: int
    bytes_max: int
    until: float


class ReplicaFetches:
    """The fetches of one connection."""

    def __init__(
        self,
        gateway: "PeerGateway",
        node_id: NodeId,
        node_epoch: int,
        write: Callable[[list[Buffer]], None],
        on_read: Callable[[], None],
        on_failed: Callable[[], None],
    ) -> None:
        """``on_read`` is called when a large request has been read to its end, ``on_failed`` when a response cannot be made: its news is lost."""
        self._gateway = gateway
        self._node_id = node_id
        self._node_epoch = node_epoch
        self._write = write
        self._on_read = on_read
        self._on_failed = on_failed
        self.is_busy = False
        """Whether a request is being read, so that the next must wait."""
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._session = self._new_session()
        self._waiting: deque[_WaitingFetch] = deque()
        self._looking = False
        self._timer: asyncio.TimerHandle | None = None

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
        """The connection is closed."""
        self._closed = True
        self._session.close()
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def fetch(self, correlation_id: int, body: memoryview, position: int) -> None:
        """Note what the follower has, and answer with news, or with nothing when its wait is over."""
        if len(body) >= _KEPT_BYTES_MIN:
            body = memoryview(bytes(body))
        request = _decode(body, position)
        if not request.session_id:
            self._session.close()
            self._session = self._new_session()
        self._session.question += 1
        self._read(self._note(request), correlation_id, request)

    def _read(self, noting: Iterator[None], correlation_id: int, request: FetchRequest) -> None:
        if self._closed:
            return
        for _ in noting:
            self.is_busy = True
            self._loop.call_soon(self._safely, self._read, noting, correlation_id, request)
            return
        self._wait(correlation_id, request)
        if self.is_busy:
            self.is_busy = False
            self._on_read()

    def _note(self, request: FetchRequest) -> Iterator[None]:
        """Note what the follower has; yields after many partitions."""
        session, named = self._session, 0
        for topic in request.topics:
            topic_id = UUID(bytes=bytes(topic.topic_id))
            for each in topic.partitions:
                named += 1
                if named % _PARTITIONS_A_TURN == 0:
                    yield
                asked = PartitionFetch(
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

    def _wait(self, correlation_id: int, request: FetchRequest) -> None:
        session = self._session
        wait_ms = min(max(request.max_wait_ms, 0), FETCH_WAIT_MS_MAX)
        until = self._loop.time() + wait_ms / 1000
        self._waiting.append(_WaitingFetch(session.question, correlation_id, request.max_bytes, until))
        if session.has_news or session.holds_back:
            self._look_soon()
        if len(self._waiting) > WAITING_MAX:
            self._answer(self._collected())
        if self._timer is None:
            self._timer = self._loop.call_later(wait_ms / 1000, self._safely, self._time_over)

    def _time_over(self) -> None:
        """Answer the fetches whose wait is over, with the news there is."""
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0].until <= now:
            self._answer(self._collected())
        if self._waiting:
            self._timer = self._loop.call_later(self._waiting[0].until - now, self._safely, self._time_over)

    def _woken(self) -> None:
        if self._waiting:
            self._look_soon()

    def _look_soon(self) -> None:
        # At the end of the turn, so that all news of the turn goes into the same response.
        if not self._looking:
            self._looking = True
            self._gateway.turn.look(self._look_now)

    def _look_now(self) -> None:
        self._safely(self._look)

    def _safely(self, work: Callable[..., None], *what: object) -> None:
        """Run work whose errors have no caller: the follower reconnects, and starts from the beginning."""
        try:
            work(*what)
        except Exception:
            logger.exception("cannot send a response to node %d", self._node_id)
            self._on_failed()

    def _look(self) -> None:
        self._looking = False
        while self._waiting:
            found = self._collected()
            if not found and not self._session.has_passed_over:
                return
            self._answer(found)
            if not self._session.has_news:
                return

    def _collected(self) -> list[Copied]:
        """The news for the fetch that has waited longest."""
        fetch = self._waiting[0]
        return self._session.collect(fetch.bytes_max, fetch.number)

    def _answer(self, found: list[Copied]) -> None:
        fetch = self._waiting.popleft()
        self._gateway.broker.meters.replicated_out_bytes += sum(len(copied.records) for copied in found)
        self._write(frame(fetch.correlation_id, _HEADER_VERSION, _encode(_response(found))))


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
