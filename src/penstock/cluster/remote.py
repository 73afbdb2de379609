"""Appending to partitions that other nodes lead, over links of its own: the real :class:`penstock.core.partitions.peers.Peers`.

Each partition has a line. What is handed in goes to the leader in that order, many on their way at once, once the leader has taken the first in
its epoch: from then on it refuses all that comes after one that it refused, so nothing overtakes. What was refused without being done goes back to its place in
the line, and is tried again for :data:`TRY_SECONDS` while the records name a new leader. What was sent and not answered is LINK_LOST, unless
it can be asked twice.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.cluster.links import Identity, Link
from penstock.core.broker import Broker
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.groups.requests import PartitionKey
from penstock.core.partitions.local_peers import LocalPeers
from penstock.core.partitions.peers import AppendedOnce, AppendedRecords, CommittedDone, Produced, StatusDone
from penstock.core.partitions.status import NO_PRODUCER, LeaderStatus, ProducerQuery
from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.core.topics.records import NO_LEADER
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.types import Acks, GroupId, NodeId
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
"""About what it takes to notice that a node is dead, and to name another."""
_AGAIN_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 30.0
"""A leader whose followers are slow may take its time; one that is dead is known by its lease."""
WAITING_BYTES_MAX: Final = 256 * MIB
"""Of batches that are not answered."""

_NOT_DONE: Final = frozenset(
    {
        Reason.NOT_LEADER_OR_FOLLOWER,
        Reason.LEADER_NOT_AVAILABLE,
        Reason.FENCED_LEADER_EPOCH,
        Reason.UNKNOWN_LEADER_EPOCH,
        # The other node has not heard of the topic yet; when it is gone, this node is told.
        Reason.UNKNOWN_TOPIC_ID,
        Reason.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

Answered = Callable[[list[int] | PenstockError], None]
_At = tuple[int, int]
"""A leader and its epoch."""


class _LeaderCall:
    """One thing to be done by a leader."""

    __slots__ = ("_head", "api", "batch", "can_repeat", "done", "here", "number", "until")

    def __init__(
        self,
        number: int,
        until: float,
        api: PeerApi,
        head: Callable[[int], Head],
        here: Callable[[Answered], None],
        done: Answered,
        batch: bytearray | None,
    ) -> None:
        self.number: Final = number
        self.until: Final = until
        self.api: Final = api
        self._head = head
        self.here: Final = here
        """Does it where this node leads."""
        self.done: Final = done
        self.batch: Final = batch
        self.can_repeat: Final = api is not PeerApi.APPEND

    def head(self, leader_epoch: int) -> Head:
        """What is said to a leader of this epoch."""
        return self._head(leader_epoch)

    def __lt__(self, other: "_LeaderCall") -> bool:
        return self.number < other.number


class _LeaderQueue:
    """What waits for one partition's leader, and what is with it."""

    __slots__ = ("is_moving", "place", "problem", "sent", "taken_by", "timer", "waiting")

    def __init__(self, place: TopicIdPartition) -> None:
        self.place: Final = place
        self.waiting: list[_LeaderCall] = []
        self.sent: set[_LeaderCall] = set()
        self.taken_by: _At | None = None
        """Who has taken something, and nobody has refused since."""
        self.timer: asyncio.TimerHandle | None = None
        self.problem: PenstockError | None = None
        self.is_moving = False


class RemotePeers:
    """All lines of this node."""

    def __init__(self, broker: Broker, identity: Callable[[], Identity]) -> None:
        self._broker = broker
        self._cluster: Final = broker.cluster
        self._here: Final = LocalPeers(broker)
        self._identity = identity
        self._lines: dict[TopicIdPartition, _LeaderQueue] = {}
        self._links: dict[NodeId, Link] = {}
        self._connecting: dict[NodeId, asyncio.Task[None]] = {}
        self._number = 0
        self._bytes = 0
        self._stopped = False

    def start(self) -> None:
        """Be the broker's way to other nodes."""
        self._broker.peers = self
        self._cluster.nodes.on_changed.append(self._nodes_changed)

    async def stop(self) -> None:
        """Whoever waits is told."""
        self._stopped = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        for line in list(self._lines.values()):
            if line.timer is not None:
                line.timer.cancel()
            waiting, line.waiting = line.waiting, []
            for job in waiting:
                self._end(job, PenstockError(Reason.SHUTTING_DOWN))
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.aclose()

    # What is asked for.

    def holds(self, topic: Topic, index: int) -> bool:
        """Whether something waits for this partition's leader, so that what comes must wait behind it."""
        return TopicIdPartition(topic.topic_id, index) in self._lines

    def produce(self, topic: Topic, index: int, batch: bytearray, acks: Acks, done: Produced) -> None:
        """Have a batch appended."""
        self._add(
            topic,
            index,
            PeerApi.APPEND,
            lambda epoch: AppendHead(topic.topic_id.bytes, index, epoch, acks),
            lambda answered: self._here.produce(topic, index, batch, acks, partial(_several, answered)),
            partial(_single, done),
            batch,
        )

    def append_once(
        self,
        topic: Topic,
        index: int,
        batch: bytearray,
        header: str,
        search_from: int | Sequence[int],
        done: AppendedOnce,
    ) -> None:
        """Have those records appended that are not there."""
        noted = [search_from] if isinstance(search_from, int) else list(search_from)

        def received(numbers: list[int] | PenstockError) -> None:
            done(numbers if isinstance(numbers, PenstockError) else AppendedRecords(numbers[:-1], numbers[-1]))

        self._add(
            topic,
            index,
            PeerApi.APPEND_ONCE,
            lambda epoch: AppendOnceHead(topic.topic_id.bytes, index, epoch, header, noted),
            # A second try, perhaps on another node, begins with the batch as it came.
            lambda answered: self._here.append_once(
                topic, index, bytearray(batch), header, noted, partial(_appended_once, answered)
            ),
            received,
            batch,
        )

    def partition_status(
        self, topic: Topic, index: int, done: StatusDone, producer: ProducerQuery = NO_PRODUCER
    ) -> None:
        """Ask how a partition stands."""

        def here(answered: Answered) -> None:
            self._here.partition_status(
                topic,
                index,
                lambda found: answered(found if isinstance(found, PenstockError) else list(found)),
                producer,
            )

        def received(numbers: list[int] | PenstockError) -> None:
            done(numbers if isinstance(numbers, PenstockError) else LeaderStatus(*numbers))

        self._add(
            topic,
            index,
            PeerApi.PARTITION_STATUS,
            lambda epoch: PartitionStatusHead(topic.topic_id.bytes, index, epoch, *producer),
            here,
            received,
            None,
        )

    def committed(self, offsets_partition: int, group: GroupId, key: PartitionKey, done: CommittedDone) -> None:
        """Ask how far a group is."""
        topic = self._broker.topics.get(OFFSETS_TOPIC)
        if topic is None or offsets_partition >= topic.partition_count:
            done(PenstockError(Reason.COORDINATOR_NOT_AVAILABLE))
            return

        def here(answered: Answered) -> None:
            self._here.committed(offsets_partition, group, key, partial(_several, answered))

        def received(numbers: list[int] | PenstockError) -> None:
            done(numbers if isinstance(numbers, PenstockError) else next(iter(numbers), None))

        self._add(
            topic,
            offsets_partition,
            PeerApi.COMMITTED,
            lambda epoch: CommittedHead(topic.topic_id.bytes, offsets_partition, epoch, group, *key),
            here,
            received,
            None,
        )

    def _add(
        self,
        topic: Topic,
        index: int,
        api: PeerApi,
        head: Callable[[int], Head],
        here: Callable[[Answered], None],
        done: Answered,
        batch: bytearray | None,
    ) -> None:
        size = 0 if batch is None else len(batch)
        if self._stopped:
            done(PenstockError(Reason.SHUTTING_DOWN))
            return
        if self._bytes + size > WAITING_BYTES_MAX:
            done(
                PenstockError(
                    Reason.LEADER_NOT_AVAILABLE,
                    f"{WAITING_BYTES_MAX} bytes are waiting to be sent to other nodes, which is the limit; try again in a moment",
                )
            )
            return
        self._bytes += size
        self._number += 1
        place = TopicIdPartition(topic.topic_id, index)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _LeaderQueue(place)
        until = asyncio.get_running_loop().time() + TRY_SECONDS
        line.waiting.append(_LeaderCall(self._number, until, api, head, here, done, batch))
        self._move(line)

    # Lines.

    def _move(self, line: _LeaderQueue) -> None:
        """Hand on what can be handed on."""
        if line.is_moving:
            return
        line.is_moving = True
        try:
            while line.waiting and line.timer is None and self._hand_on(line):
                pass
        finally:
            line.is_moving = False
        if not line.waiting and not line.sent:
            self._lines.pop(line.place, None)

    def _hand_on(self, line: _LeaderQueue) -> bool:
        """The first that waits; whether the next may go too."""
        topic = self._broker.topics.get_by_id(line.place.topic_id)
        if topic is None or line.place.partition >= topic.partition_count:
            self._refuse_all(line, PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted"))
            return False
        record = self._broker.topics.partition(topic, line.place.partition)
        at = record.leader, record.leader_epoch
        if line.sent and at != line.taken_by:
            # Another leader, or one that has taken nothing yet: what is with it, or with the last one, is answered first.
            return False
        if record.leader == NO_LEADER:
            self._later(line, None)
            return False
        if record.leader == self._broker.node_id:
            job = line.waiting.pop(0)
            line.sent.add(job)
            try:
                job.here(partial(self._answered, line, job, at))
            except PenstockError as error:
                self._answered(line, job, at, error)
            return True
        link = self._link(NodeId(record.leader))
        if not link.is_ready(self._identity()):
            self._connect(link, line)
            return False
        job = line.waiting.pop(0)
        line.sent.add(job)
        self._send(link, line, job, at)
        return True

    def _send(self, link: Link, line: _LeaderQueue, job: _LeaderCall, at: _At) -> None:
        parts = encode_peer_request(job.head(at[1]), job.batch or b"")
        future = link.post_peer(job.api, parts)
        seconds = TRY_SECONDS if job.can_repeat else _ANSWER_SECONDS
        timer = asyncio.get_running_loop().call_later(seconds, _give_up, future)

        def came(answer: "asyncio.Future[memoryview]") -> None:
            timer.cancel()
            self._answered(line, job, at, _read(answer))

        future.add_done_callback(came)

    def _answered(self, line: _LeaderQueue, job: _LeaderCall, at: _At, answer: list[int] | PenstockError) -> None:
        line.sent.discard(job)
        if isinstance(answer, PenstockError):
            is_safe = answer.reason in _NOT_DONE or (job.can_repeat and answer.reason is Reason.LINK_LOST)
            if answer.reason in _NOT_DONE or answer.reason is Reason.LINK_LOST:
                line.taken_by = None
            if is_safe and not self._stopped:
                insort(line.waiting, job)
                self._later(line, answer)
                return
        else:
            line.taken_by = at
        self._end(job, answer)
        self._move(line)

    def _end(self, job: _LeaderCall, answer: list[int] | PenstockError) -> None:
        if job.batch is not None:
            self._bytes -= len(job.batch)
        job.done(answer)

    def _refuse_all(self, line: _LeaderQueue, error: PenstockError) -> None:
        waiting, line.waiting = line.waiting, []
        for job in waiting:
            self._end(job, error)

    def _later(self, line: _LeaderQueue, problem: PenstockError | None) -> None:
        """Look again in a moment; what has waited for too long is refused."""
        line.problem = problem
        if line.timer is None and not self._stopped:
            line.timer = asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._again, line)

    def _again(self, line: _LeaderQueue) -> None:
        line.timer = None
        now = asyncio.get_running_loop().time()
        late = [job for job in line.waiting if job.until <= now]
        line.waiting = [job for job in line.waiting if job.until > now]
        for job in late:
            self._end(job, line.problem or self._nobody_leads(line))
        self._move(line)

    def _nobody_leads(self, line: _LeaderQueue) -> PenstockError:
        topic = self._broker.topics.get_by_id(line.place.topic_id)
        name = "the partition" if topic is None else f"{topic.name}/{line.place.partition}"
        return PenstockError(
            Reason.LEADER_NOT_AVAILABLE,
            f"{name} has no leader at the moment; it gets one when an in-sync replica is up. Try again.",
        )

    # Links.

    def _link(self, node_id: NodeId) -> Link:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(node_id, self._cluster.nodes, self._broker.entropy)
        return link

    def _connect(self, link: Link, line: _LeaderQueue) -> None:
        """Then the line moves on: it looks again anyway."""
        node_id = link.node_id
        if node_id not in self._connecting:
            self._connecting[node_id] = asyncio.get_running_loop().create_task(self._try_to_connect(link))
        self._connecting[node_id].add_done_callback(partial(self._connected, node_id, line))

    async def _try_to_connect(self, link: Link) -> None:
        try:
            async with asyncio.timeout(TRY_SECONDS):
                await link.connect(self._identity())
        except TimeoutError:
            raise PenstockError(Reason.LEADER_NOT_AVAILABLE, f"node {link.node_id} does not answer") from None

    def _connected(self, node_id: NodeId, line: _LeaderQueue, task: "asyncio.Task[None]") -> None:
        if self._connecting.get(node_id) is task:
            del self._connecting[node_id]
        if self._stopped or task.cancelled():
            return
        problem = task.exception()
        if problem is None:
            self._move(line)
        elif isinstance(problem, PenstockError):
            self._later(line, PenstockError(Reason.LEADER_NOT_AVAILABLE, problem.text))
        else:
            self._later(
                line, PenstockError(Reason.LEADER_NOT_AVAILABLE, f"cannot send a request to node {node_id}: {problem}")
            )

    def _nodes_changed(self) -> None:
        """A node that is dead, or has another incarnation, does not answer what it was asked."""
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
