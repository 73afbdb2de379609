"""Fetch (API key 1): batches as they are on disk, from many partitions, with a long poll.

Version 5 adds the log start offset, 7 sessions, 9 fencing by leader epoch, 11 the rack of the client, 12 detects diverging logs and names the current
leader, 13 names topics by id, 15 moves the replica id, 16 adds the address of that leader. The first batch is sent whole even above the limits, so
that a reader always makes progress; the total size is limited for all partitions together. While there are less than ``min_bytes``, the answer waits
for appends.

An answer that ends before records that were acknowledged with acks=1 before the request waits for their commit, whatever wait the client requested: for
at most ``SETTLE_MS_MAX`` if it has other records to return; without any, until the leader's own sync has ended.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final
from uuid import UUID

from penstock.core.broker import Broker
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.replica import Replica
from penstock.core.security.lanes import authorise_lane, authorise_lane_by_id
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.fetch_session import NO_SESSION, FetchedPartition, FetchSession, TopicKey
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import ListedNode, current_leader, reason_for_readers
from penstock.limits import FETCH_WAIT_MS_MAX, SETTLE_MS_MAX
from penstock.operations.operation import Action
from penstock.transport.listener import Listener
from penstock.types import Gateway, NodeId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.fetch_generated import (
    FetchRequest,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseDivergingEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseTopic,
)

BY_ID_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15
READ_COMMITTED: Final = 1


@handles(ApiKey.FETCH, versions=(4, 18))
def handle(request: FetchRequest, context: RequestContext) -> FetchResponse | Awaitable[FetchResponse]:
    """Answered at once if there is enough to send, or no time to wait."""
    try:
        if _replica_id(request, context.version) >= 0:
            raise PenstockError(Reason.CLUSTER_AUTHORIZATION_FAILED)
        by_id = context.version >= BY_ID_FROM
        session = context.gateway.fetch_sessions.open(
            request, context.caller.principal, by_id=by_id, now_ms=context.monotonic_ms
        )
    except PenstockError as error:
        return FetchResponse(error_code=context.code(error))
    fetch = _Fetch(request, session, context)
    if fetch.satisfied():
        return fetch.response()
    return fetch.wait()


def _replica_id(request: FetchRequest, version: int) -> int:
    if version < REPLICA_STATE_FROM:
        return request.replica_id
    return -1 if request.replica_state is None else request.replica_state.replica_id


class _Fetch:
    """A request in progress."""

    def __init__(self, request: FetchRequest, session: FetchSession, context: RequestContext) -> None:
        self._session = session
        self._wanted = list(session.wanted.values())
        self._gateway = context.gateway
        self._broker = context.broker
        self._context = context
        self._incremental = session.session_id != NO_SESSION and request.session_epoch > 0
        self._bytes_max = min(max(request.max_bytes, 0), context.gateway.limits.fetch_bytes_max)
        quota_bytes_max = context.consume_bytes_max()
        if quota_bytes_max is not None:
            self._bytes_max = min(self._bytes_max, quota_bytes_max)
        self._bytes_min = min(request.min_bytes, self._bytes_max)
        self._wait_ms = min(max(request.max_wait_ms, 0), FETCH_WAIT_MS_MAX)
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._rack = request.rack_id
        """The rack of the client, if it sent one."""
        self._leaders: dict[int, ListedNode] = {}
        """Leaders of refused partitions, which the answer lists."""
        self._found: list[tuple[FetchedPartition, FetchResponsePartition]] = []
        self._counted: list[tuple[str, int, int]] = []
        """Topic, and the number of records and bytes that were found."""
        self._settling: list[tuple[Partition, int]] = []
        """Partitions with acknowledged records that the answer lacks because they are not committed, and where those end."""
        self._has_settled = False
        """Whether it has waited for those long enough, so that any records are enough."""
        self._is_late = self._wait_ms == 0 or self._bytes_min <= 0
        """Whether the client's wait is over."""
        self._watched: list[Replica] = []
        self._future: asyncio.Future[FetchResponse] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._woken = False

    def satisfied(self) -> bool:
        """Read, unless there is certainly too little; returns whether the answer is complete."""
        enough = False
        if self._bytes_min > 1 and self._future is not None and not self._is_late:
            enough = self._available() >= self._bytes_min
            if not enough:
                return False
        found: list[tuple[FetchedPartition, FetchResponsePartition]] = []
        left = self._bytes_max
        total = 0
        self._counted.clear()
        self._leaders.clear()
        urgent = not self._wanted
        for wanted in self._wanted:
            answer = self._read(wanted, left, first=total == 0)
            if answer.error_code or answer.diverging_epoch is not None or answer.preferred_read_replica >= 0:
                urgent = True
            if answer.records:
                total += len(answer.records)
                left = max(left - len(answer.records), 0)
            found.append((wanted, answer))
        self._found = found
        if urgent:
            return True
        is_settling = any(partition.is_settling(end) for partition, end in self._settling)
        if is_settling and not (self._has_settled and total > 0):
            return False
        if enough or self._is_late or total >= max(self._bytes_min, 1):
            return True
        # What was read ends with a whole batch, and with the segment: there may be enough although this is less.
        return total > 0 and self._available() >= self._bytes_min

    def _read(self, wanted: FetchedPartition, left: int, *, first: bool) -> FetchResponsePartition:
        try:
            partition = self._allowed(wanted)
            partition.check_epoch(wanted.leader_epoch)
            if self._rack and isinstance(partition, Partition):
                closer = _closer_replica(self._broker, self._context.listener, partition, self._rack, wanted.offset)
                if closer is not None:
                    return self._sent_on(partition, closer)
            diverging = _diverging(partition, wanted)
            records: bytes | bytearray | memoryview = b""
            if diverging is None:
                if not partition.log.start_offset <= wanted.offset <= partition.log.next_offset:
                    raise PenstockError(Reason.OFFSET_OUT_OF_RANGE)
                end = partition.stable_offset if self._committed_only else partition.high_watermark
                next_offset = wanted.offset
                if wanted.offset < end and (left > 0 or first):
                    records, next_offset = partition.read(
                        wanted.offset, min(wanted.bytes_max, left), at_least_one=first
                    )
                    if records:
                        self._counted.append((partition.topic.name, next_offset - wanted.offset, len(records)))
                if self._future is None and isinstance(partition, Partition):
                    acknowledged = partition.acknowledged_offset
                    if end <= next_offset < acknowledged:
                        self._settling.append((partition, acknowledged))
        except (PenstockError, OSError) as error:
            return self._refused(wanted, reason_for_readers(error))
        return FetchResponsePartition(
            partition_index=wanted.index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.stable_offset,
            log_start_offset=partition.log.start_offset,
            diverging_epoch=diverging,
            aborted_transactions=[] if self._committed_only else None,
            records=records,
        )

    def _refused(self, wanted: FetchedPartition, reason: Reason) -> FetchResponsePartition:
        answer = FetchResponsePartition(
            partition_index=wanted.index,
            error_code=self._context.code(reason),
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )
        leader = current_leader(self._broker, self._context.listener, reason, wanted.topic, wanted.index)
        if leader is not None:
            answer.current_leader = FetchResponseCurrentLeader(leader.node.node_id, leader.leader_epoch)
            self._leaders[leader.node.node_id] = leader.node
        return answer

    @staticmethod
    def _sent_on(partition: Partition, node_id: int) -> FetchResponsePartition:
        """No records: the client should read from a follower that is closer."""
        return FetchResponsePartition(
            partition_index=partition.index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.stable_offset,
            log_start_offset=partition.log.start_offset,
            aborted_transactions=None,
            preferred_read_replica=node_id,
            records=b"",
        )

    def _allowed(self, wanted: FetchedPartition) -> Replica:
        """The partition, if the caller may read it."""
        if isinstance(wanted.topic, str):
            authorise_lane(self._broker, self._context.caller, Action.READ, wanted.topic)
            return self._replica(wanted)
        partition = self._replica(wanted)
        authorise_lane_by_id(self._broker, self._context.caller, Action.READ, partition.topic.name)
        return partition

    def _replica(self, wanted: FetchedPartition) -> Replica:
        """The partition if it is led here; for a client that sent its rack, also a copy of it."""
        topic, broker = wanted.topic, self._broker
        try:
            if isinstance(topic, str):
                return broker.partition(topic, wanted.index)
            return broker.partition_by_id(topic, wanted.index)
        except PenstockError as error:
            if not self._rack or error.reason is not Reason.NOT_LEADER_OR_FOLLOWER:
                raise
            return _local_copy(broker, topic, wanted.index)

    def _available(self) -> int:
        """About how many bytes there are to send, without reading them."""
        total = 0
        for wanted in self._wanted:
            try:
                partition = self._replica(wanted)
                if wanted.offset < partition.log.start_offset:
                    return self._bytes_min
                there = partition.log.bytes_between(wanted.offset, partition.high_watermark)
            except (PenstockError, OSError):
                # The read reports what is wrong.
                return self._bytes_min
            total += min(there, wanted.bytes_max)
        return total

    def wait(self) -> Awaitable[FetchResponse]:
        """Wait for appends, at most as long as the client requested, and for the commit of records that were acknowledged before."""
        loop = self._gateway.loop
        future: asyncio.Future[FetchResponse] = loop.create_future()
        self._future = future
        for wanted in self._wanted:
            partition = self._replica(wanted)
            partition.watch(self._wake)
            self._watched.append(partition)
        self._timers.append(loop.call_later(self._wait_ms / 1000, self._time_up))
        if self._settling:
            self._timers.append(loop.call_later(SETTLE_MS_MAX / 1000, self._settle_time_up))
        self._gateway.answer_on_stop[self._answer_now] = None
        future.add_done_callback(self._release)
        return future

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._gateway.turn.look(self._look)

    def _look(self) -> None:
        self._woken = False
        future = self._future
        if future is not None and not future.done() and self.satisfied():
            future.set_result(self.response())

    def _time_up(self) -> None:
        """The client's wait is over: wait only for records that were acknowledged before the request."""
        self._is_late = True
        self._look()

    def _settle_time_up(self) -> None:
        """The time for followers, and for records of other partitions, is over; a sync of this node always ends."""
        self._has_settled = True
        self._look()
        future = self._future
        if future is None or future.done():
            return
        if all(partition.is_held_here(end) for partition, end in self._settling):
            self._settling.clear()
            self._look()
        else:
            self._timers.append(self._gateway.loop.call_later(SETTLE_MS_MAX / 1000, self._settle_time_up))

    def _answer_now(self) -> None:
        future = self._future
        if future is not None and not future.done():
            self._is_late = True
            self.satisfied()
            future.set_result(self.response())

    def _release(self, _: "asyncio.Future[FetchResponse]") -> None:
        self._gateway.answer_on_stop.pop(self._answer_now, None)
        for partition in self._watched:
            partition.unwatch(self._wake)
        for timer in self._timers:
            timer.cancel()

    def response(self) -> FetchResponse:
        """What was found last, without what the session has sent already; nothing if that would be over the client's quota."""
        if not self._context.may_consume(sum(size for _, _, size in self._counted)):
            return self._nothing()
        for name, count, size in self._counted:
            self._broker.meters.gave_out(name, Gateway.KAFKA, count, size)
        session = self._session
        in_session = session.session_id != NO_SESSION
        topics: list[FetchResponseTopic] = []
        served: list[FetchedPartition] = []
        current: FetchResponseTopic | None = None
        by_id = session.by_id
        for wanted, answer in self._found:
            if in_session:
                changed = wanted.has_changed(answer)
                if answer.records:
                    served.append(wanted)
                if self._incremental and not changed:
                    continue
            key = wanted.topic
            if current is None or key != (current.topic_id if by_id else current.topic):
                if isinstance(key, bytes):
                    current = FetchResponseTopic(topic_id=key, partitions=[])
                else:
                    current = FetchResponseTopic(topic=key, partitions=[])
                topics.append(current)
            current.partitions.append(answer)
        if in_session and len(session.wanted) > 1:
            session.move_back(served)
        response = FetchResponse(session_id=session.session_id, responses=topics)
        if self._leaders:
            response.node_endpoints = [
                FetchResponseNodeEndpoint(node.node_id, node.address.host, node.address.port, node.rack)
                for node in self._leaders.values()
            ]
        return response

    def _nothing(self) -> FetchResponse:
        """The answer to a client that is over its quota (KIP-219). A session that has just begun ends: the client has not seen its partitions."""
        session_id = self._session.session_id
        if not self._incremental:
            self._gateway.fetch_sessions.close(session_id)
            session_id = NO_SESSION
        return FetchResponse(session_id=session_id, responses=[])


def _diverging(partition: Replica, wanted: FetchedPartition) -> FetchResponseDivergingEpoch | None:
    """Where the reader's log and this one diverge, if they do."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.end_offset_for(wanted.last_fetched_epoch)
    if epoch < 0 or wanted.offset < partition.log.start_offset:
        # The epoch is not known here, or its records are deleted: there is no offset to which the reader can return.
        raise PenstockError(Reason.OFFSET_OUT_OF_RANGE)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.offset:
        return FetchResponseDivergingEpoch(epoch=epoch, end_offset=end_offset)
    return None


def _closer_replica(broker: Broker, listener: Listener, partition: Partition, rack: str, offset: int) -> int | None:
    """The follower from which a client in ``rack`` should read; None for this node.

    It is in sync, up, to stay, and has what is asked for. The leader chooses again for each request (KIP-392).
    """
    cluster, in_sync = broker.cluster, partition.in_sync
    if offset < partition.log.start_offset:
        return None
    nodes = cluster.nodes.nodes
    here = nodes.get(broker.node_id)
    if here is not None and here.rack == rack:
        return None
    avoided = cluster.nodes.avoided()
    able = sorted(
        node_id
        for node_id, epoch in in_sync.agreed.items()
        if node_id not in avoided
        and (node := nodes.get(NodeId(node_id))) is not None
        and (node.epoch, node.rack) == (epoch, rack)
        and listener.name in node.listeners
        and (in_sync.end_of(node_id) or 0) >= offset
    )
    # The readers of a rack with several of them are spread over these.
    return able[partition.index % len(able)] if able else None


def _local_copy(broker: Broker, topic: TopicKey, index: int) -> Replica:
    """The copy of a partition that is led elsewhere; NOT_LEADER_OR_FOLLOWER unless it is in sync, which sends the client back to the leader."""
    topics = broker.topics
    found = topics.require(topic) if isinstance(topic, str) else topics.require_id(UUID(bytes=topic))
    replica = broker.replica(found.name, index)
    if broker.node_id not in topics.partition(found, index).in_sync:
        raise PenstockError(
            Reason.NOT_LEADER_OR_FOLLOWER,
            f"{found.name}/{index} is not in sync on node {broker.node_id}; fetch from its leader",
        )
    return replica
