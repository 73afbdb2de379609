"""Calls to the leaders of partitions, on this node and others: the :class:`penstock.core.partitions.peers.Peers` of a cluster.

Each partition has a queue of calls, which are sent to the leader in order. Once the leader has accepted one in its epoch, many are sent
without waiting for responses: if it refuses one, it refuses all later ones too, so the order is kept. A call that was refused without
effect returns to its place in the queue, and is retried for :data:`TRY_SECONDS` while a new leader is elected. A call without a response
fails with LINK_LOST, unless it can be repeated.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.cluster.links import Identity, Link
from penstock.core.broker import Broker
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.partitions.local_peers import LocalPeers
from penstock.core.partitions.peers import AppendedOnce, AppendedRecords, CommittedDone, Produced, StatusDone
from penstock.core.partitions.status import NO_PRODUCER, LeaderStatus, ProducerQuery
from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.core.topics.records import NO_LEADER
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.types import Acks, GroupId, NodeId, PartitionKey
from penstock.wire.errors import ProtocolViolation
from penstock.wire.peers import (
    AppendHead,
    AppendOnceHead,
    CommittedHead,
    Head,
    PartitionStatusHead,
    PeerApi,
    decode_answer,
    encode_peer_request,
)

TRY_SECONDS: Final = 5.0
"""About what it takes to notice that a node is dead, and to elect another."""
_AGAIN_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 30.0
"""Long enough for a leader with slow followers. The death of a leader is noticed by its lease."""
WAITING_BYTES_MAX: Final = 256 * MIB
"""Limit for batches without a response."""

_NOT_DONE: Final = frozenset(
    {
        Reason.NOT_LEADER_OR_FOLLOWER,
        Reason.LEADER_NOT_AVAILABLE,
        Reason.FENCED_LEADER_EPOCH,
        Reason.UNKNOWN_LEADER_EPOCH,
        # The other node does not know the topic yet. If the topic is deleted, this node learns it too.
        Reason.UNKNOWN_TOPIC_ID,
        Reason.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

Answered = Callable[[list[int] | PenstockError], None]
_Leadership = tuple[int, int]
"""A leader and its epoch."""


@dataclass(eq=False, slots=True)
class _LeaderCall:
    """One call to a leader."""

    api: PeerApi
    head: Callable[[int], Head]
    """Makes the head of the request to a leader of this epoch."""
    here: Callable[[Answered], None]
    """Executes the call if this node is the leader."""
    done: Answered
    batch: bytearray | None = None
    number: int = 0
    """The calls are sent in this order."""
    until: float = 0.0

    @property
    def can_repeat(self) -> bool:
        """Whether the call may be repeated although it may have been carried out."""
        return self.api is not PeerApi.APPEND

    def __lt__(self, other: "_LeaderCall") -> bool:
        return self.number < other.number


class _LeaderQueue:
    """The calls that wait to be sent to one partition's leader, and those that were sent."""

    __slots__ = ("accepted_by", "is_sending", "place", "problem", "sent", "timer", "waiting")

    def __init__(self, place: TopicIdPartition) -> None:
        self.place: Final = place
        self.waiting: list[_LeaderCall] = []
        self.sent: set[_LeaderCall] = set()
        self.accepted_by: _Leadership | None = None
        """The leader that accepted the last call; None after a refusal."""
        self.timer: asyncio.TimerHandle | None = None
        self.problem: PenstockError | None = None
        self.is_sending = False


class RemotePeers:
    """The queues of all partitions."""

    def __init__(self, broker: Broker, identity: Callable[[], Identity]) -> None:
        self._broker = broker
        self._cluster: Final = broker.cluster
        self._here: Final = LocalPeers(broker)
        self._identity = identity
        self._queues: dict[TopicIdPartition, _LeaderQueue] = {}
        self.is_waiting: Final = self._queues
        self._links: dict[NodeId, Link] = {}
        self._connecting: dict[NodeId, asyncio.Task[None]] = {}
        self._number = 0
        self._bytes = 0
        self._stopped = False

    def start(self) -> None:
        """Become the broker's ``peers``."""
        self._broker.peers = self
        self._cluster.nodes.on_changed.append(self._nodes_changed)

    async def stop(self) -> None:
        """Stop, and answer all waiting calls."""
        self._stopped = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        for queue in list(self._queues.values()):
            if queue.timer is not None:
                queue.timer.cancel()
            waiting, queue.waiting = queue.waiting, []
            for call in waiting:
                self._end(call, PenstockError(Reason.SHUTTING_DOWN))
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.aclose()

    # Calls.

    def holds(self, topic: Topic, index: int) -> bool:
        """Whether calls wait for this partition's leader, so that later ones must wait too."""
        return TopicIdPartition(topic.topic_id, index) in self._queues

    def produce(self, topic: Topic, index: int, batch: bytearray, acks: Acks, done: Produced) -> None:
        """Append a batch."""
        call = _LeaderCall(
            PeerApi.APPEND,
            lambda epoch: AppendHead(topic.topic_id.bytes, index, epoch, acks),
            lambda answered: self._here.produce(topic, index, batch, acks, partial(_several, answered)),
            partial(_single, done),
            batch,
        )
        self._add(topic, index, call)

    def append_once(
        self,
        topic: Topic,
        index: int,
        batch: bytearray,
        header: str,
        search_from: int | Sequence[int],
        done: AppendedOnce,
    ) -> None:
        """Append the missing records of a batch."""
        noted = [search_from] if isinstance(search_from, int) else list(search_from)

        def received(numbers: list[int] | PenstockError) -> None:
            done(numbers if isinstance(numbers, PenstockError) else AppendedRecords(numbers[:-1], numbers[-1]))

        call = _LeaderCall(
            PeerApi.APPEND_ONCE,
            lambda epoch: AppendOnceHead(topic.topic_id.bytes, index, epoch, header, noted),
            # A copy, since a retry must begin with the unchanged batch.
            lambda answered: self._here.append_once(
                topic, index, bytearray(batch), header, noted, partial(_appended_once, answered)
            ),
            received,
            batch,
        )
        self._add(topic, index, call)

    def partition_status(
        self, topic: Topic, index: int, done: StatusDone, producer: ProducerQuery = NO_PRODUCER
    ) -> None:
        """Ask for the status of a partition."""

        def here(answered: Answered) -> None:
            self._here.partition_status(
                topic,
                index,
                lambda found: answered(found if isinstance(found, PenstockError) else list(found)),
                producer,
            )

        def received(numbers: list[int] | PenstockError) -> None:
            done(numbers if isinstance(numbers, PenstockError) else LeaderStatus(*numbers))

        def head(epoch: int) -> Head:
            return PartitionStatusHead(topic.topic_id.bytes, index, epoch, *producer)

        self._add(topic, index, _LeaderCall(PeerApi.PARTITION_STATUS, head, here, received))

    def committed(self, offsets_partition: int, group: GroupId, key: PartitionKey, done: CommittedDone) -> None:
        """Ask for the offset that a group has committed."""
        topic = self._broker.topics.get(OFFSETS_TOPIC)
        if topic is None or offsets_partition >= topic.partition_count:
            done(PenstockError(Reason.COORDINATOR_NOT_AVAILABLE))
            return

        def here(answered: Answered) -> None:
            self._here.committed(offsets_partition, group, key, partial(_several, answered))

        def received(numbers: list[int] | PenstockError) -> None:
            done(numbers if isinstance(numbers, PenstockError) else next(iter(numbers), None))

        def head(epoch: int) -> Head:
            return CommittedHead(topic.topic_id.bytes, offsets_partition, epoch, group, *key)

        self._add(topic, offsets_partition, _LeaderCall(PeerApi.COMMITTED, head, here, received))

    def _add(self, topic: Topic, index: int, call: _LeaderCall) -> None:
        size = 0 if call.batch is None else len(call.batch)
        if self._stopped:
            call.done(PenstockError(Reason.SHUTTING_DOWN))
            return
        if self._bytes + size > WAITING_BYTES_MAX:
            call.done(
                PenstockError(
                    Reason.LEADER_NOT_AVAILABLE,
                    f"{WAITING_BYTES_MAX} bytes are waiting to be sent to other nodes, which is the limit; try again in a moment",
                )
            )
            return
        self._bytes += size
        self._number += 1
        place = TopicIdPartition(topic.topic_id, index)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = _LeaderQueue(place)
        call.number, call.until = self._number, asyncio.get_running_loop().time() + TRY_SECONDS
        queue.waiting.append(call)
        self._advance(queue)

    # Queues.

    def _advance(self, queue: _LeaderQueue) -> None:
        """Send all calls that can be sent now."""
        if queue.is_sending:
            return
        queue.is_sending = True
        try:
            while queue.waiting and queue.timer is None and self._send_next(queue):
                pass
        finally:
            queue.is_sending = False
        if not queue.waiting and not queue.sent:
            self._queues.pop(queue.place, None)

    def _send_next(self, queue: _LeaderQueue) -> bool:
        """Send the first waiting call; whether the next one may be sent too."""
        topic = self._broker.topics.get_by_id(queue.place.topic_id)
        if topic is None or queue.place.partition >= topic.partition_count:
            self._refuse_all(queue, PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted"))
            return False
        record = self._broker.topics.partition(topic, queue.place.partition)
        leadership = record.leader, record.leader_epoch
        if queue.sent and leadership != queue.accepted_by:
            # The leader has not accepted a call yet, or has changed: wait for the responses to the calls that were sent.
            return False
        if record.leader == NO_LEADER:
            self._later(queue, None)
            return False
        if record.leader == self._broker.node_id:
            call = queue.waiting.pop(0)
            queue.sent.add(call)
            try:
                call.here(partial(self._answered, queue, call, leadership))
            except PenstockError as error:
                self._answered(queue, call, leadership, error)
            return True
        link = self._link(NodeId(record.leader))
        if not link.is_ready(self._identity()):
            self._connect(link, queue)
            return False
        call = queue.waiting.pop(0)
        queue.sent.add(call)
        self._send(link, queue, call, leadership)
        return True

    def _send(self, link: Link, queue: _LeaderQueue, call: _LeaderCall, leadership: _Leadership) -> None:
        parts = encode_peer_request(call.head(leadership[1]), call.batch or b"")
        future = link.post_peer(call.api, parts)
        seconds = TRY_SECONDS if call.can_repeat else _ANSWER_SECONDS
        timer = asyncio.get_running_loop().call_later(seconds, _give_up, future)

        def came(answer: "asyncio.Future[memoryview]") -> None:
            timer.cancel()
            self._answered(queue, call, leadership, _read(answer))

        future.add_done_callback(came)

    def _answered(
        self, queue: _LeaderQueue, call: _LeaderCall, leadership: _Leadership, answer: list[int] | PenstockError
    ) -> None:
        queue.sent.discard(call)
        if isinstance(answer, PenstockError):
            is_safe = answer.reason in _NOT_DONE or (call.can_repeat and answer.reason is Reason.LINK_LOST)
            if answer.reason in _NOT_DONE or answer.reason is Reason.LINK_LOST:
                queue.accepted_by = None
            if is_safe and not self._stopped:
                insort(queue.waiting, call)
                self._later(queue, answer)
                return
        else:
            queue.accepted_by = leadership
        self._end(call, answer)
        self._advance(queue)

    def _end(self, call: _LeaderCall, answer: list[int] | PenstockError) -> None:
        if call.batch is not None:
            self._bytes -= len(call.batch)
        call.done(answer)

    def _refuse_all(self, queue: _LeaderQueue, error: PenstockError) -> None:
        waiting, queue.waiting = queue.waiting, []
        for call in waiting:
            self._end(call, error)

    def _later(self, queue: _LeaderQueue, problem: PenstockError | None) -> None:
        """Try again in a moment. Calls that have waited for too long are then refused."""
        queue.problem = problem
        if queue.timer is None and not self._stopped:
            queue.timer = asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._again, queue)

    def _again(self, queue: _LeaderQueue) -> None:
        queue.timer = None
        now = asyncio.get_running_loop().time()
        late = [call for call in queue.waiting if call.until <= now]
        queue.waiting = [call for call in queue.waiting if call.until > now]
        for call in late:
            self._end(call, queue.problem or self._nobody_leads(queue))
        self._advance(queue)

    def _nobody_leads(self, queue: _LeaderQueue) -> PenstockError:
        topic = self._broker.topics.get_by_id(queue.place.topic_id)
        name = "the partition" if topic is None else f"{topic.name}/{queue.place.partition}"
        return PenstockError(
            Reason.LEADER_NOT_AVAILABLE,
            f"{name} has no leader at the moment; it gets one when an in-sync replica is up. Try again in a moment.",
        )

    # Links.

    def _link(self, node_id: NodeId) -> Link:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(node_id, self._cluster.nodes, self._broker.entropy)
        return link

    def _connect(self, link: Link, queue: _LeaderQueue) -> None:
        """Connect, then continue with the queue."""
        node_id = link.node_id
        if node_id not in self._connecting:
            self._connecting[node_id] = asyncio.get_running_loop().create_task(self._try_to_connect(link))
        self._connecting[node_id].add_done_callback(partial(self._connected, node_id, queue))

    async def _try_to_connect(self, link: Link) -> None:
        try:
            async with asyncio.timeout(TRY_SECONDS):
                await link.connect(self._identity())
        except TimeoutError:
            raise PenstockError(Reason.LEADER_NOT_AVAILABLE, f"Node {link.node_id} does not answer") from None

    def _connected(self, node_id: NodeId, queue: _LeaderQueue, task: "asyncio.Task[None]") -> None:
        if self._connecting.get(node_id) is task:
            del self._connecting[node_id]
        if self._stopped or task.cancelled():
            return
        problem = task.exception()
        if problem is None:
            self._advance(queue)
        elif isinstance(problem, PenstockError):
            self._later(queue, PenstockError(Reason.LEADER_NOT_AVAILABLE, problem.text))
        else:
            self._later(
                queue, PenstockError(Reason.LEADER_NOT_AVAILABLE, f"cannot send a request to node {node_id}: {problem}")
            )

    def _nodes_changed(self) -> None:
        """Close the links to nodes that are gone."""
        nodes = self._cluster.nodes.nodes
        for node_id, link in self._links.items():
            if node_id not in nodes:
                link.close()


def _read(answer: "asyncio.Future[memoryview]") -> list[int] | PenstockError:
    if answer.cancelled():
        return PenstockError(Reason.LINK_LOST)
    problem = answer.exception()
    if isinstance(problem, PenstockError):
        return problem
    if problem is not None:
        return PenstockError(Reason.LINK_LOST, str(problem))
    try:
        return decode_answer(answer.result())
    except ProtocolViolation as error:
        return PenstockError(Reason.LINK_LOST, str(error))


def _give_up(answer: "asyncio.Future[memoryview]") -> None:
    if not answer.done():
        answer.set_exception(PenstockError(Reason.LINK_LOST, "another node did not answer in time"))


def _appended_once(answered: Answered, found: AppendedRecords | PenstockError) -> None:
    answered(found if isinstance(found, PenstockError) else [*found.offsets, found.appended_from])


def _several(answered: Answered, offset: int | PenstockError | None) -> None:
    if isinstance(offset, PenstockError):
        answered(offset)
    else:
        answered([] if offset is None else [offset])


def _single(done: Produced, numbers: list[int] | PenstockError) -> None:
    done(numbers if isinstance(numbers, PenstockError) else numbers[0])
