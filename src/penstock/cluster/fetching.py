"""Copies what other nodes lead: for each leader one loop that asks, takes what comes, makes it durable, and asks again.

A partition is asked for again when everything that came of it is there for good, so the question is the acknowledgement of it. One question is
always on its way, and the leader answers it as soon as it has something new for any of the partitions. A partition that is refused waits a moment by
itself: its new leader is learnt from the records, not from the old one.

No task is woken on the way of a record: an answer is taken from the buffer into which it was read, what it brought is written at the end of that turn of the loop, and
the next question follows right behind.

Only what changed since the last question is said again, so many quiet partitions cost nothing. A replica that is not in sync asks again now and then: the record
that made it a replica may have reached it before it reached the leader, which did not count its question then.
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
"""How long a leader without news lets a follower wait: also how often each hears of the other."""
BYTES_MAX: Final = 8 * MIB
_ANSWER_SECONDS: Final = 3.0
"""Beyond the wait: a leader that is silent for longer is asked anew."""
_RETRY_SECONDS_MIN: Final = 0.05
_RETRY_SECONDS_MAX: Final = 1.0
_REFUSED_SECONDS: Final = 0.2
_OUTSIDE_SECONDS: Final = 0.5
"""How often a replica that is not in sync says how far it is, though nothing has changed."""
_QUESTIONS_MAX: Final = 3
"""On their way at once: two that wait for news, so that one is left when the other is answered, and one that brings a wait to an end."""
_OFFSET_OUT_OF_RANGE: Final = 1
_HEADER_VERSION: Final = 1
_encode = ENCODE_REQUEST[VERSION]
_decode = DECODE_RESPONSE[VERSION]


class Fetcher:
    """What this node copies from one other."""

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
        """Those that wait for their share of a limited rate."""
        self._since: dict[TopicIdPartition, int] = {}
        """The number of the question in which each was first asked for as it is here now: what answers an earlier one is of another copy, or of what was cut off."""
        self._woken = asyncio.Event()
        self._asked = 0
        self._identified: Identity | None = None
        """As whom it asks; None while it does not."""
        self._pending: deque[tuple[int, float]] = deque()
        """Questions that are not answered, by their numbers, and when each has to be."""
        self._pumping = False
        self._ended: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run())
        self.problem: str | None = None
        """Why nothing comes; None when it does."""

    def add(self, follower: Follower) -> None:
        """Copy this partition too."""
        place = TopicIdPartition(follower.topic.topic_id, follower.index)
        self._followed[place] = follower
        self._since.pop(place, None)
        self._to_forget.pop(place, None)
        follower.on_settled = self._settled
        if follower.is_settled:
            self._ask(place)
        else:
            # What it took as a leader, or from another one, must be there for good before it can be compared with this leader's.
            self._unsettled.add(follower)

    def remove(self, follower: Follower) -> None:
        """Copy it no more."""
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
        """Copy nothing more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._link.aclose()

    def ask_again(self, follower: Follower) -> None:
        """Say once more how far it is, if all that it has is there for good."""
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
        """Ask and take, until something goes wrong."""
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
                # Whoever stops this does not ask why it ended.
                ended.exception()

    async def _watch(self, ended: "asyncio.Future[None]") -> None:
        """Until something went wrong, or a question was to be answered; LINK_LOST when it was not."""
        now = self._loop.time()
        until = self._pending[0][1] if self._pending else now + _ANSWER_SECONDS
        if until <= now:
            raise PenstockError(Reason.LINK_LOST, f"node {self._node_id} does not answer")
        await asyncio.wait([ended], timeout=until - now)

    def _pump(self) -> None:
        """Ask for what is to be asked, or for whatever comes."""
        self._pumping = False
        identity = self._identified
        if identity is None:
            return
        if identity != self._identity():
            self._end(PenstockError(Reason.LEADER_NOT_AVAILABLE, "this node has registered again"))
            return
        pending = self._pending
        if pending and (len(pending) >= _QUESTIONS_MAX or not (self._to_ask or self._to_forget)):
            return
        ended = self._ended
        try:
            parts = _encode(self._question(identity))
            self._link.ask(int(ApiKey.FETCH), VERSION, parts, partial(self._came, ended), partial(self._lost, ended))
        except PenstockError as error:
            self._end(error)
            return
        pending.append((self._asked, self._loop.time() + WAIT_MS / 1000 + _ANSWER_SECONDS))

    def _came(self, ended: "asyncio.Future[None] | None", body: memoryview) -> None:
        """An answer, good until this returns."""
        if ended is None or ended is not self._ended:
            return
        number, _ = self._pending.popleft()
        try:
            _, position = decode_response_header(body, 0, _HEADER_VERSION)
            self._answered(number, _decode(body, position))
        except ProtocolViolation as error:
            self._end(PenstockError(Reason.LINK_LOST, f"node {self._node_id} sent an invalid response: {error}"))
            return
        except Exception as error:  # noqa: BLE001 - whoever watches over the copying deals with it
            self._end(error)
            return
        # Behind the end of this turn, at which what came is written: the question then says that it is here.
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
                Reason.LEADER_NOT_AVAILABLE, f"node {self._node_id} returned error {response.error_code}"
            )
        if self.problem is not None:
            logger.info("copying from node %d continues", self._node_id)
            self.problem = None
        for topic in response.responses:
            for answer in topic.partitions:
                self._take(number, topic.topic_id, answer)

    def _question(self, identity: Identity) -> FetchRequest:
        asked, self._to_ask = self._to_ask, {}
        forgotten, self._to_forget = self._to_forget, {}
        request = self._request(identity, [place for place in asked if self._may_ask(place)], list(forgotten))
        self._asked += 1
        return request

    def _may_ask(self, place: TopicIdPartition) -> bool:
        """Whether it is here, and all that it has is for good: its question says so. Since it was to be asked for, more may have come."""
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
                    # So that it hears at once, though there may be nothing to tell.
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
        """So that the leader does not take an observer for a replica, nor a copy that is gone for the one that came after it."""
        return OBSERVES if follower.is_observer else self._partition_epoch(follower.topic, follower.index)

    # Answers.

    def _take(self, number: int, topic_id: bytes, answer: FetchResponsePartition) -> None:
        place = TopicIdPartition(_uuid(topic_id), answer.partition_index)
        follower = self._followed.get(place)
        if follower is None or follower.gone:
            return
        since = self._since.get(place)
        if since is None or number < since:
            if since is not None:
                # Its leader takes it for told.
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
                    self._ask_anew(place)
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
            # Whoever had records deleted waits for this one to say so.
            if follower.is_settled:
                self._ask(place)
            else:
                self._unsettled.add(follower)

    def _out_of_range(self, place: TopicIdPartition, follower: Follower, leader_start: int) -> None:
        if leader_start > follower.log.next_offset:
            follower.start_over(leader_start)
            self._ask_anew(place)
        elif follower.is_observer:
            # It was to begin behind the leader's end, which is then not what it was.
            follower.start_over(leader_start)
            self._ask_anew(place)
        else:
            self._later(place)

    def _ask_anew(self, place: TopicIdPartition) -> None:
        """Its log ends earlier, or elsewhere, than it said: what answers that does not fit any more."""
        self._since.pop(place, None)
        self._ask(place)

    def _later(self, place: TopicIdPartition) -> None:
        """Ask again in a moment; by then the records may say that somebody else leads."""
        asyncio.get_running_loop().call_later(_REFUSED_SECONDS, self._ask_again, place)

    def _unthrottle(self, place: TopicIdPartition) -> None:
        self._throttled.discard(place)
        self._ask_again(place)

    def _ask_again(self, place: TopicIdPartition) -> None:
        if place in self._followed:
            self._ask(place)


def _uuid(topic_id: bytes) -> UUID:
    return UUID(bytes=bytes(topic_id))


class Fetching:
    """All that this node copies."""

    def __init__(self, broker: Broker, identity: Callable[[], Identity]) -> None:
        self._broker = broker
        self._cluster: Final = broker.cluster
        self._identity = identity
        self._buffers = BufferPool()
        self._receiving = Receiving(broker.node_id, broker.cluster.replicas, broker.topics, broker.clock)
        self._fetchers: dict[NodeId, Fetcher] = {}
        self._outside: dict[Follower, None] = {}
        """Replicas here that are not in sync."""
        self._has_outside = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Copy what is followed now, and what will be."""
        self._broker.topics.on_partition.append(self._record_changed)
        self._task = asyncio.create_task(self._remind())
        replicas = self._cluster.replicas
        replicas.on_follow.append(self._follow)
        replicas.on_unfollow.append(self._unfollow)
        for follower in replicas.following():
            self._follow(follower)

    async def stop(self) -> None:
        """Copy nothing more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        for fetcher in fetchers:
            await fetcher.stop()

    def problems(self) -> dict[NodeId, str]:
        """From which nodes nothing comes, and why."""
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

    # Who is not in sync.

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
