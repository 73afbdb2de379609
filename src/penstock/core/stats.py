"""Numbers of topics and groups, for all gateways, the command line and the metrics.

The work is limited: a topic has at most ``PARTITIONS_PER_TOPIC_MAX`` partitions, only some logs are opened for one response, and only some
timestamps are read from disk. Unknown values are None. For partitions that another node leads, the numbers are those of this node's copy,
which may lag a little.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.groups.requests import CommittedOffset
from penstock.core.groups.subscription import assigned_partitions
from penstock.core.partitions.replica import Replica
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import GroupDescription, GroupPartitionStatus, GroupState, GroupStatus, MemberStatus
from penstock.operations.topics import FlowStats, PartitionStats, TopicStats
from penstock.types import NO_TIMESTAMP, Gateway, GroupId, PartitionKey, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

OPENED_MAX: Final = 64
"""Logs opened for one response; housekeeping opens the others later."""
TIMES_READ_MAX: Final = 256
"""Timestamps read from disk for one response."""
_UNKNOWN: Final = frozenset(
    {
        Reason.STORAGE_ERROR,
        Reason.UNKNOWN_TOPIC_OR_PARTITION,
        Reason.NOT_LEADER_OR_FOLLOWER,
        Reason.LEADER_NOT_AVAILABLE,
    }
)
"""Errors for which the numbers of a partition are unknown here."""
MEMBERS_MAX: Final = 1000
"""Members in one response."""


def topic_stats(broker: "Broker", name: str) -> TopicStats:
    """``UNKNOWN_TOPIC_OR_PARTITION`` if there is no such topic."""
    topic = broker.topics.require(name)
    meters = broker.meters
    opening = _Opening(broker)
    rates = meters.rates(topic.name, broker.clock.monotonic_ms())
    flows = []
    for gateway in Gateway:
        flow = meters.known_flow(topic.name, gateway)
        if flow is not None:
            flows.append(FlowStats(gateway.value, flow.records_in, flow.bytes_in, flow.records_out, flow.bytes_out))
    partitions = [_partition_stats(broker, topic, index, opening) for index in range(topic.partition_count)]
    return summed_stats(topic, partitions, flows, rates)


def summed_stats(
    topic: Topic, partitions: Sequence[PartitionStats], flows: Sequence[FlowStats], rates: Sequence[float]
) -> TopicStats:
    """The sums over a topic's partitions, and its flows."""
    return TopicStats(
        topic=topic.name,
        topic_id=topic.topic_id,
        records=sum(partition.records or 0 for partition in partitions),
        size_bytes=sum(partition.size_bytes or 0 for partition in partitions),
        segments=sum(partition.segments or 0 for partition in partitions),
        partitions_unknown=sum(partition.end_offset is None for partition in partitions),
        records_in_per_second=rates[0],
        bytes_in_per_second=rates[1],
        records_out_per_second=rates[2],
        bytes_out_per_second=rates[3],
        partitions=tuple(partitions),
        flows=tuple(flows),
    )


class _Opening:
    """Opens logs for one response, up to the limit."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._left = OPENED_MAX

    def partition(self, topic: TopicName, index: int) -> Replica | None:
        """The partition, or this node's copy of it; None if there is none, or no more logs may be opened."""
        broker = self._broker
        known = broker.topics.get(topic)
        if known is not None and broker.cluster.replicas.is_unopened(known, index):
            if not self._left:
                return None
            self._left -= 1
        try:
            return broker.replica(topic, index)
        except PenstockError as error:
            if error.reason in _UNKNOWN:
                return None
            raise


def _partition_stats(broker: "Broker", topic: Topic, index: int, opening: _Opening) -> PartitionStats:
    leader = broker.topics.partition(topic, index).leader
    partition: Replica | None = broker.opened(topic.name, index)
    if partition is None:
        if broker.cluster.replicas.is_unopened(topic, index) and not broker.logs.has_records(topic.topic_id, index):
            # Without files, it is empty and need not be opened.
            return PartitionStats(index, leader, 0, 0, 0, 0, 0)
        partition = opening.partition(topic.name, index)
    if partition is None:
        return PartitionStats(index, leader, None, None, None, None, None)
    log = partition.log
    return PartitionStats(
        partition=index,
        leader=leader,
        start_offset=log.start_offset,
        end_offset=partition.high_watermark,
        records=partition.high_watermark - log.start_offset,
        size_bytes=log.size_bytes,
        segments=len(log.segments),
        failed=log.failed is not None,
    )


# Groups.


def group_status(broker: "Broker", group: str) -> GroupStatus:
    """``GROUP_ID_NOT_FOUND`` if there is no such group; other errors if this node does not coordinate it."""
    group_id = GroupId(group)
    described = broker.groups.describe(group_id)
    if described.reason is not None:
        raise PenstockError(described.reason)
    if described.state is GroupState.DEAD:
        raise PenstockError(
            Reason.GROUP_ID_NOT_FOUND,
            f"There is no group {group[:64]!a}. A group exists once it has a commit or a member.",
        )
    members = tuple(
        MemberStatus(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            assigned_partitions(member.assignment),
        )
        for member in described.members[:MEMBERS_MAX]
    )
    partitions = _group_partitions(broker, group_id, _readers(broker, described))
    return GroupStatus(
        group=group_id,
        state=described.state.value,
        protocol_type=described.protocol_type,
        protocol=described.protocol,
        lag=sum(partition.lag or 0 for partition in partitions),
        lag_ms=max((partition.lag_ms for partition in partitions if partition.lag_ms is not None), default=None),
        members=members,
        members_left_out=len(described.members) - len(members),
        partitions=partitions,
        queues=tuple(broker.queues.of_group(group_id)),
    )


def _readers(broker: "Broker", described: GroupDescription) -> dict[PartitionKey, str]:
    """The member that reads each partition. Clients may send any assignment, so partitions that do not exist are skipped."""
    readers: dict[PartitionKey, str] = {}
    for member in described.members:
        for topic, indexes in assigned_partitions(member.assignment):
            name = TopicName(topic)
            readers.update({PartitionKey(name, at): member.member_id for at in indexes if broker.exists(name, at)})
    return readers


def _group_partitions(
    broker: "Broker", group_id: GroupId, readers: dict[PartitionKey, str]
) -> tuple[GroupPartitionStatus, ...]:
    committed = broker.groups.fetch_offsets(group_id, None)
    opening = _Opening(broker)
    now_ms = broker.clock.now_ms()
    times_left = TIMES_READ_MAX
    found = []
    for key in sorted(committed.keys() | readers.keys()):
        topic, index = key
        position = committed.get(key)
        partition = opening.partition(topic, index)
        lag = None if partition is None else lag_of(partition, position)
        lag_ms = None
        if partition is not None and (times_left > 0 or lag == 0):
            times_left -= lag != 0
            lag_ms = lag_ms_of(partition, position, now_ms)
        found.append(
            GroupPartitionStatus(
                topic=topic,
                partition=index,
                committed=None if position is None else position.offset,
                committed_ms=None if position is None or position.commit_ms == NO_TIMESTAMP else position.commit_ms,
                start_offset=None if partition is None else partition.log.start_offset,
                end_offset=None if partition is None else partition.high_watermark,
                lag=lag,
                lag_ms=lag_ms,
                member_id=readers.get(key),
            )
        )
    return tuple(found)


def next_unread(partition: Replica, committed: CommittedOffset | None) -> int:
    """The offset that a group reads next: the committed one, but not before the start of the log."""
    start = partition.log.start_offset
    return start if committed is None else max(committed.offset, start)


def lag_of(partition: Replica, committed: CommittedOffset | None) -> int:
    """How many records a group has not read yet."""
    return max(partition.high_watermark - next_unread(partition, committed), 0)


def lag_ms_of(partition: Replica, committed: CommittedOffset | None, now_ms: int) -> int | None:
    """The age of the next record that a group has not read; 0 if there is none, None if it is unknown."""
    offset = next_unread(partition, committed)
    if offset >= partition.high_watermark:
        return 0
    try:
        time_ms = partition.log.time_at(offset, partition.high_watermark)
    except (PenstockError, OSError):
        return None
    return None if time_ms is None or time_ms == NO_TIMESTAMP else max(now_ms - time_ms, 0)
