"""Copies partitions that other nodes lead: for each leader, one loop fetches, appends the records, makes them durable, and fetches again.

A partition is fetched again once all received records are durable, so the fetch acknowledges them. One request is always under way, and
the leader responds as soon as it has news of any partition. A partition with an error waits a moment: its new leader is learned from the
agreed records, not from the old leader.

No task is woken on the path of a record: a response is decoded in the buffer into which it was read, its records are written at the end
of that turn of the event loop, and the next request follows.

A request has only the partitions that changed since the last one, so many quiet partitions cost nothing. A replica that is not in sync is
fetched again from time to time: its leader may have learned later than this node that it is a replica, and not have counted its fetch.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

from penstock.cluster.links import Identity, Link
from penstock.core.broker import Broker
from penstock.core.cluster.follower import Follower
from penstock.core.cluster.in_sync import OBSERVES
from penstock.core.cluster.receiving import Receiving
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.meters import Meters
from penstock.transport.receive import BufferPool
from penstock.types import NO_OFFSET, NodeId
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.fetch_generated import (
    DECODE_RESPONSE,
    ENCODE_REQUEST,
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from penstock.wire.kafka.headers import decode_response_header
from penstock.wire.peers import encode_known_epoch

logger = logging.getLogger("penstock.cluster")

VERSION: Final = 18
WAIT_MS: Final = 500
"""How long a leader without news delays a response, and so how often two nodes exchange messages."""
BYTES_MAX: Final = 8 * MIB
_ANSWER_SECONDS: Final = 3.0
"""In addition to the delay: after this time without a response, the connection is given up."""
_RETRY_SECONDS_MIN: Final = 0.05
_RETRY_SECONDS_MAX: Final = 1.0
_REFUSED_SECONDS: Final = 0.2
_OUTSIDE_SECONDS: Final = 0.5
"""How often a replica that is not in sync is fetched although nothing has changed."""
_REQUESTS_MAX: Final = 3
"""Requests under way at once: two that wait for news, so that one is left when the other is answered, and one that ends a wait."""
_OFFSET_OUT_OF_RANGE: Final = 1
_HEADER_VERSION: Final = 1
_encode = ENCODE_REQUEST[VERSION]
_decode = DECODE_RESPONSE[VERSION]


class Fetcher:
    """Copies all partitions that one other node leads."""

    def __init__(
        self,
        node_id: NodeId,
        link: Link,
        identity: Callable[[], Identity],
        partition_epoch: Callable[[Topic, int], int],
        meters: Meters,
        receiving: Receiving,
    ) -> None:
        self._meters = meters
        self._receiving = receiving
        self._node_id = node_id
        self._link = link
        self._identity = identity
        self._partition_epoch = partition_epoch
        self._followed: dict[TopicIdPartition, Follower] = {}
        self._to_ask: dict[TopicIdPartition, None] = {}
        self._to_forget: dict[TopicIdPartition, None] = {}
        self._unsettled: set[Follower] = set()
        self._throttled: set[TopicIdPartition] = set()
        """Partitions that wait for their share of a limited rate."""
        self._since: dict[TopicIdPartition, int] = {}
        """The number of the request that first fetched the present copy of each. Responses to earlier ones are for another copy, or for truncated records."""
        self._woken = asyncio.Event()
        self._asked = 0
        self._identified: Identity | None = None
        """This node's identity in the requests; None while nothing is fetched."""
        self._pending: deque[tuple[int, float]] = deque()
        """The numbers of requests without a response, and the deadline of each."""
        self._pumping = False
        self._ended: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run())
        self.problem: str | None = None
        """Why nothing can be copied; None if it can."""

    def add(self, follower: Follower) -> None:
        """Begin to copy a partition."""
        place = TopicIdPartition(follower.topic.topic_id, follower.index)
        self._followed[place] = follower
        self._since.pop(place, None)
        self._to_forget.pop(place, None)
        follower.on_settled = self._settled
        if follower.is_settled:
            self._ask(place)
        else:
            # Records from an earlier role must be durable before they are compared with this leader's.
            self._unsettled.add(follower)

    def remove(self, follower: Follower) -> None:
        """Stop copying a partition."""
        place = TopicIdPartition(follower.topic.topic_id, follower.index)
        if self._followed.get(place) is follower:
            del self._followed[place]
            self._since.pop(place, None)
            self._to_ask.pop(place, None)
            self._to_forget[place] = None
        self._unsettled.discard(follower)
        self._wake()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to copy."""
        return not self._followed

    async def stop(self) -> None:
        """Stop copying."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._link.aclose()

    def ask_again(self, follower: Follower) -> None:
        """Fetch once more, if all records are durable."""
        if follower not in self._unsettled:
            self._ask_again(TopicIdPartition(follower.topic.topic_id, follower.index))

    def _settled(self, follower: Follower) -> None:
        if follower in self._unsettled and follower.is_settled:
            self._unsettled.discard(follower)
            self._ask(TopicIdPartition(follower.topic.topic_id, follower.index))

    def _ask(self, place: TopicIdPartition) -> None:
        self._to_ask[place] = None
        self._wake()

    def _wake(self) -> None:
        if self._identified is None:
            self._woken.set()
        elif not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    # The loop.

    async def _run(self) -> None:
        seconds = _RETRY_SECONDS_MIN
        while True:
            try:
                await self._copy()
            except PenstockError as error:
                if self.problem is None:
                    seconds = _RETRY_SECONDS_MIN
                    logger.warning("cannot copy from node %d: %s", self._node_id, error.text)
                self.problem = error.text
            except Exception:
                logger.exception("copying from node %d failed; retrying", self._node_id)
                seconds = _RETRY_SECONDS_MAX
            self._link.close()
            await asyncio.sleep(seconds)
            seconds = min(seconds * 2, _RETRY_SECONDS_MAX)

    async def _copy(self) -> None:
        """Fetch until an error occurs."""
        while self.is_idle:
            self._woken.clear()
            await self._woken.wait()
        identity = self._identity()
        await self._link.connect(identity)
        self._to_forget.clear()
        self._to_ask = dict.fromkeys(
            place for place, follower in self._followed.items() if follower not in self._unsettled
        )
        self._asked = 0
        self._since.clear()
        self._pending = deque()
        ended = self._ended = self._loop.create_future()
        self._identified = identity
        try:
            self._wake()
            while not ended.done():
                await self._watch(ended)
            await ended
        finally:
            self._identified = self._ended = None
            if ended.done():
                # Mark the exception as retrieved.
                ended.exception()

    async def _watch(self, ended: "asyncio.Future[None]") -> None:
        """Wait for an error, or the deadline of the oldest request; LINK_LOST if it has no response by then."""
        now = self._loop.time()
        until = self._pending[0][1] if self._pending else now + _ANSWER_SECONDS
        if until <= now:
            raise PenstockError(Reason.LINK_LOST, f"Node {self._node_id} does not answer")
        await asyncio.wait([ended], timeout=until - now)

    def _pump(self) -> None:
        """Send a request, for new positions or to wait for news."""
        self._pumping = False
        identity = self._identified
        if identity is None:
            return
        if identity != self._identity():
            self._end(PenstockError(Reason.LEADER_NOT_AVAILABLE, "This node has registered again"))
            return
        pending = self._pending
        if pending and (len(pending) >= _REQUESTS_MAX or not (self._to_ask or self._to_forget)):
            return
        ended = self._ended
        try:
            parts = _encode(self._next_request(identity))
            self._link.ask(int(ApiKey.FETCH), VERSION, parts, partial(self._came, ended), partial(self._lost, ended))
        except PenstockError as error:
            self._end(error)
            return
        pending.append((self._asked, self._loop.time() + WAIT_MS / 1000 + _ANSWER_SECONDS))

    def _came(self, ended: "asyncio.Future[None] | None", body: memoryview) -> None:
        """A response; its buffer is valid until this returns."""
        if ended is None or ended is not self._ended:
            return
        number, _ = self._pending.popleft()
        try:
            _, position = decode_response_header(body, 0, _HEADER_VERSION)
            self._answered(number, _decode(body, position))
        except ProtocolViolation as error:
            self._end(PenstockError(Reason.LINK_LOST, f"Node {self._node_id} sent an invalid response: {error}"))
            return
        except Exception as error:  # noqa: BLE001 - the loop handles it
            self._end(error)
            return
        # After the end of this turn, when the records are written, so that the request acknowledges them.
        self._wake()

    def _lost(self, ended: "asyncio.Future[None] | None", error: PenstockError) -> None:
        if ended is not None and ended is self._ended:
            self._end(error)

    def _end(self, error: Exception) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _answered(self, number: int, response: FetchResponse) -> None:
        if response.error_code:
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE, f"Node {self._node_id} returned error {response.error_code}"
            )
        if self.problem is not None:
            logger.info("copying from node %d continues", self._node_id)
            self.problem = None
        for topic in response.responses:
            for answer in topic.partitions:
                self._take(number, topic.topic_id, answer)

    def _next_request(self, identity: Identity) -> FetchRequest:
        asked, self._to_ask = self._to_ask, {}
        forgotten, self._to_forget = self._to_forget, {}
        request = self._request(identity, [place for place in asked if self._may_ask(place)], list(forgotten))
        self._asked += 1
        return request

    def _may_ask(self, place: TopicIdPartition) -> bool:
        """Whether the partition is still copied, all its records are durable, and its rate allows it."""
        follower = self._followed.get(place)
        if follower is None:
            return False
        if not follower.is_settled:
            self._unsettled.add(follower)
            return False
        wait_ms = self._receiving.wait_ms(follower)
        if wait_ms > 0:
            if place not in self._throttled:
                self._throttled.add(place)
                self._loop.call_later(wait_ms / 1000, self._unthrottle, place)
            return False
        self._since.setdefault(place, self._asked + 1)
        return True

    def _request(
        self, identity: Identity, asked: list[TopicIdPartition], forgotten: list[TopicIdPartition]
    ) -> FetchRequest:
        topics: dict[bytes, FetchRequestTopic] = {}
        for place in asked:
            follower = self._followed[place]
            topic_id = place.topic_id.bytes
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchRequestTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(
                FetchRequestPartition(
                    partition=place.partition,
                    current_leader_epoch=follower.leader_epoch,
                    fetch_offset=follower.log.next_offset,
                    last_fetched_epoch=follower.last_epoch,
                    log_start_offset=follower.log.start_offset,
                    partition_max_bytes=self._receiving.bytes_max(follower),
                    replica_directory_id=encode_known_epoch(self._known_epoch(follower)),
                    # Without one, the leader responds at once.
                    high_watermark=follower.high_watermark if follower.has_heard else NO_OFFSET,
                )
            )
        gone: dict[bytes, list[int]] = {}
        for place in forgotten:
            gone.setdefault(place.topic_id.bytes, []).append(place.partition)
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=BYTES_MAX,
            session_id=min(self._asked, 1),
            session_epoch=self._asked,
            topics=list(topics.values()),
            forgotten_topics_data=[
                FetchRequestForgottenTopic(topic_id=key, partitions=each) for key, each in gone.items()
            ],
            replica_state=FetchRequestReplicaState(identity.node_id, identity.epoch),
        )

    def _known_epoch(self, follower: Follower) -> int:
        """With this, the leader can distinguish observers from replicas, and earlier copies from later ones."""
        return OBSERVES if follower.is_observer else self._partition_epoch(follower.topic, follower.index)

    # Responses.

    def _take(self, number: int, topic_id: bytes, answer: FetchResponsePartition) -> None:
        place = TopicIdPartition(UUID(bytes=bytes(topic_id)), answer.partition_index)
        follower = self._followed.get(place)
        if follower is None or follower.gone:
            return
        since = self._since.get(place)
        if since is None or number < since:
            if since is not None:
                # The leader assumes that these records were received.
                self._ask(place)
            return
        try:
            if answer.error_code == _OFFSET_OUT_OF_RANGE:
                self._out_of_range(place, follower, answer.log_start_offset)
                return
            if answer.error_code:
                self._later(place)
                return
            if answer.diverging_epoch is not None and answer.diverging_epoch.end_offset >= 0:
                if follower.diverged(answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset):
                    self._fetch_from_changed_end(place)
                return
            start_before = follower.log.start_offset
            follower.take(answer.records or b"", answer.high_watermark, answer.log_start_offset)
            self._meters.replicated_in_bytes += len(answer.records or b"")
            self._receiving.received(follower, len(answer.records or b""))
        except PenstockError as error:
            logger.warning("%s/%d: %s", follower.topic.name, follower.index, error.text)
            self._later(place)
            return
        if answer.records or follower.log.start_offset > start_before:
            # After a deletion too: a client may wait for its acknowledgement.
            if follower.is_settled:
                self._ask(place)
            else:
                self._unsettled.add(follower)

    def _out_of_range(self, place: TopicIdPartition, follower: Follower, leader_start: int) -> None:
        # An observer may have been asked to begin after the end of the leader's log.
        if leader_start > follower.log.next_offset or follower.is_observer:
            follower.start_over(leader_start)
            self._fetch_from_changed_end(place)
        else:
            self._later(place)

    def _fetch_from_changed_end(self, place: TopicIdPartition) -> None:
        """The end of the log has changed, so responses to earlier requests must be ignored."""
        self._since.pop(place, None)
        self._ask(place)

    def _later(self, place: TopicIdPartition) -> None:
        """Fetch again in a moment; by then, another leader may be known."""
        asyncio.get_running_loop().call_later(_REFUSED_SECONDS, self._ask_again, place)

    def _unthrottle(self, place: TopicIdPartition) -> None:
        self._throttled.discard(place)
        self._ask_again(place)

    def _ask_again(self, place: TopicIdPartition) -> None:
        if place in self._followed:
            self._ask(place)


class Fetching:
    """Copies all partitions that this node follows."""

    def __init__(self, broker: Broker, identity: Callable[[], Identity]) -> None:
        self._broker = broker
        self._cluster: Final = broker.cluster
        self._identity = identity
        self._buffers = BufferPool()
        self._receiving = Receiving(broker.node_id, broker.cluster.replicas, broker.topics, broker.clock)
        self._fetchers: dict[NodeId, Fetcher] = {}
        self._outside: dict[Follower, None] = {}
        """Replicas on this node that are not in sync."""
        self._has_outside = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to copy all partitions that are followed, now and later."""
        self._broker.topics.on_partition.append(self._record_changed)
        self._task = asyncio.create_task(self._remind())
        replicas = self._cluster.replicas
        replicas.on_follow.append(self._follow)
        replicas.on_unfollow.append(self._unfollow)
        for follower in replicas.following():
            self._follow(follower)

    async def stop(self) -> None:
        """Stop copying."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        for fetcher in fetchers:
            await fetcher.stop()

    def problems(self) -> dict[NodeId, str]:
        """The nodes from which nothing can be copied, and why."""
        return {node: fetcher.problem for node, fetcher in self._fetchers.items() if fetcher.problem is not None}

    def _follow(self, follower: Follower) -> None:
        node_id = NodeId(follower.leader)
        fetcher = self._fetchers.get(node_id)
        if fetcher is None:
            link = Link(node_id, self._cluster.nodes, self._broker.entropy, self._buffers)
            epoch = self._broker.topics.partition_epoch
            fetcher = self._fetchers[node_id] = Fetcher(
                node_id, link, self._identity, epoch, self._broker.meters, self._receiving
            )
        fetcher.add(follower)
        self._look_at(follower)

    def _unfollow(self, follower: Follower) -> None:
        self._outside.pop(follower, None)
        fetcher = self._fetchers.get(NodeId(follower.leader))
        if fetcher is not None:
            fetcher.remove(follower)

    # Replicas that are not in sync.

    def _record_changed(self, topic: Topic, index: int) -> None:
        follower = self._cluster.replicas.follower(TopicIdPartition(topic.topic_id, index))
        if follower is not None:
            self._look_at(follower)

    def _look_at(self, follower: Follower) -> None:
        record = self._broker.topics.partition(follower.topic, follower.index)
        node_id = self._broker.node_id
        if node_id in record.replicas and (node_id, self._cluster.replicas.node_epoch) not in record.isr:
            self._outside[follower] = None
            self._has_outside.set()
        else:
            self._outside.pop(follower, None)

    async def _remind(self) -> None:
        while True:
            await self._has_outside.wait()
            await asyncio.sleep(_OUTSIDE_SECONDS)
            for follower in list(self._outside):
                fetcher = self._fetchers.get(NodeId(follower.leader))
                if fetcher is not None:
                    fetcher.ask_again(follower)
            if not self._outside:
                self._has_outside.clear()
