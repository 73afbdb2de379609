"""Reads topics as a member of a consumer group: the classic protocol, with the range assignor.

Everything happens inside :meth:`GroupConsumer.poll`: joining, heartbeats, committing. There is no thread, so poll must be
called more often than the session timeout. The records that a poll returned count as processed at the next poll, and can
then be committed (at least once: after a crash in between, they are delivered again).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final, Self

from penstock.client.cluster import Cluster, TopicPartition
from penstock.client.consumer import Consumer, ConsumerRecord, OutOfRange
from penstock.client.errors import (
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    BrokerRefused,
    ClientError,
    check,
)
from penstock.client.group_admin import GroupAdmin, assigned, by_topic
from penstock.client.offsets import At, list_offsets
from penstock.wire.kafka.consumer_protocol import (
    Assignment,
    Subscription,
    TopicPartitions,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.wire.kafka.heartbeat_generated import HeartbeatRequest, HeartbeatResponse
from penstock.wire.kafka.join_group_generated import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.kafka.leave_group_generated import LeaveGroupRequest, LeaveGroupRequestMember, LeaveGroupResponse
from penstock.wire.kafka.sync_group_generated import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

ASSIGNOR: Final = "range"
PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 1
SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 60_000
HEARTBEAT_INTERVAL_MS: Final = 3_000
COMMIT_INTERVAL_MS: Final = 5_000
PARTITIONS_CHECK_MS: Final = 30_000
IDLE_MS: Final = 100

_REJOIN_CODES: Final = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class _Membership:
    """The state of this member in one generation of the group."""

    generation: int
    is_leader: bool
    partition_counts: Mapping[str, int]


class GroupConsumer:
    """A member of ``group`` that reads ``topics``. Leave the group with :meth:`close`, or use a ``with`` statement."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        *,
        start: At = At.LATEST,
        auto_commit: bool = True,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        instance_id: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._admin = GroupAdmin(cluster)
        self._consumer = Consumer(
            cluster, out_of_range=OutOfRange.EARLIEST if start is At.EARLIEST else OutOfRange.LATEST
        )
        self._group = group
        self._topics = list(topics)
        self._start = start
        self._auto_commit = auto_commit
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._instance_id = instance_id
        self._member_id = ""
        self._membership: _Membership | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._heartbeat_due = self._commit_due = self._check_due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, the last records may not have been processed.
        self.close(commit=kind is None)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are currently assigned to this member."""
        return sorted(self._consumer.positions)

    @property
    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        """The end of each partition in the last response."""
        return self._consumer.high_watermarks

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition of this member."""
        return self._consumer.positions

    def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """Return some records as soon as there are any; empty after the timeout. Joins the group if necessary."""
        deadline = monotonic() + timeout_ms / 1000
        while True:
            self._keep_membership()
            now = monotonic()
            left_ms = int((min(deadline, self._heartbeat_due) - now) * 1000)
            if self._consumer.positions:
                records = self._consumer.poll(max(0, left_ms))
            else:
                # A member without partitions only waits for its next heartbeat.
                records = []
                sleep(max(0, min(left_ms, IDLE_MS)) / 1000)
            if records or monotonic() >= deadline:
                return records

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Continue at another offset of an assigned partition; this offset will be committed."""
        self._consumer.seek(place, offset)

    def commit(self) -> None:
        """Commit the records that were returned so far."""
        if self._membership is None:
            return
        changed = {place: at for place, at in self._consumer.positions.items() if self._committed.get(place) != at}
        if changed:
            self._admin.commit(
                self._group,
                changed,
                generation=self._membership.generation,
                member_id=self._member_id,
                instance_id=self._instance_id,
            )
            self._committed.update(changed)

    def close(self, *, commit: bool = True) -> None:
        """Commit, if that is automatic and wanted, and leave the group, so that other members get the partitions at once."""
        if self._membership is None:
            return
        try:
            if commit and self._auto_commit:
                self.commit()
            if self._instance_id is None:
                self._leave()
        except ClientError:
            # The group removes the member anyway when its session expires.
            pass
        finally:
            self._membership = None

    # Membership

    def _keep_membership(self) -> None:
        now = monotonic()
        try:
            if self._membership is not None and self._auto_commit and now >= self._commit_due:
                self.commit()
                self._commit_due = now + COMMIT_INTERVAL_MS / 1000
            if self._membership is not None and now >= self._heartbeat_due:
                self._heartbeat()
            if self._membership is not None and self._membership.is_leader and now >= self._check_due:
                self._check_partitions(self._membership)
        except BrokerRefused as error:
            if error.code not in _REJOIN_CODES:
                raise
            self._lose_membership(error.code)
        while self._membership is None:
            self._join()

    def _heartbeat(self) -> None:
        assert self._membership is not None
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=self._membership.generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
        )

        def attempt() -> None:
            answer = self._cluster.coordinator(self._group).call(request, HeartbeatResponse)
            check(answer.error_code, f"group {self._group!r}")

        self._cluster.retry(attempt, timeout_ms=self._session_timeout_ms)
        self._heartbeat_due = monotonic() + HEARTBEAT_INTERVAL_MS / 1000

    def _check_partitions(self, membership: _Membership) -> None:
        """Start a rebalance if the topics have new partitions. Only the leader of the group does this."""
        self._check_due = monotonic() + PARTITIONS_CHECK_MS / 1000
        self._cluster.forget()
        if self._partition_counts(membership.partition_counts) != membership.partition_counts:
            raise BrokerRefused(REBALANCE_IN_PROGRESS)

    def _lose_membership(self, code: int) -> None:
        # During a rebalance, this member still has its partitions, so it can commit first.
        if code == REBALANCE_IN_PROGRESS and self._auto_commit:
            try:
                self.commit()
            except BrokerRefused as error:
                if error.code not in _REJOIN_CODES:
                    raise
                code = error.code
        if code == UNKNOWN_MEMBER_ID:
            self._member_id = ""
        self._membership = None

    def _join(self) -> None:
        """Try once to join; the membership stays None if the group requires another attempt."""
        try:
            answer = self._cluster.retry(self._send_join)
            is_leader = answer.leader == answer.member_id
            counts: dict[str, int] = {}
            shares: dict[str, bytes] = {}
            if is_leader:
                members = {m.member_id: decode_subscription(m.metadata).topics for m in answer.members}
                ranks = {m.member_id: m.group_instance_id or m.member_id for m in answer.members}
                counts = self._partition_counts({topic for topics in members.values() for topic in topics})
                given = assign_ranges(members, counts, ranks)
                shares = {member: _encode_share(places) for member, places in given.items()}
            assignment = self._sync(answer, shares)
        except BrokerRefused as error:
            if error.code not in _REJOIN_CODES:
                raise
            if error.code == UNKNOWN_MEMBER_ID:
                self._member_id = ""
            return
        self._membership = _Membership(answer.generation_id, is_leader, counts)
        now = monotonic()
        self._heartbeat_due = now + HEARTBEAT_INTERVAL_MS / 1000
        self._commit_due = now + COMMIT_INTERVAL_MS / 1000
        self._check_due = now + PARTITIONS_CHECK_MS / 1000
        self._start_reading(assigned(assignment))

    def _send_join(self) -> JoinGroupResponse:
        protocol = JoinGroupRequestProtocol(
            name=ASSIGNOR, metadata=encode_subscription(Subscription(self._topics), SUBSCRIPTION_VERSION)
        )
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )
        # The broker responds when the whole group has joined.
        timeout_ms = self._rebalance_timeout_ms + self._cluster.timeout_ms
        connection = self._cluster.coordinator(self._group)
        answer = connection.call(request, JoinGroupResponse, timeout_ms=timeout_ms)
        if answer.error_code == MEMBER_ID_REQUIRED:
            self._member_id = request.member_id = answer.member_id
            answer = connection.call(request, JoinGroupResponse, timeout_ms=timeout_ms)
        check(answer.error_code, f"joining group {self._group!r}")
        self._member_id = answer.member_id
        return answer

    def _sync(self, joined: JoinGroupResponse, shares: Mapping[str, bytes]) -> bytes:
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name or ASSIGNOR,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=share) for name, share in shares.items()
            ],
        )
        timeout_ms = self._rebalance_timeout_ms + self._cluster.timeout_ms
        connection = self._cluster.coordinator(self._group)
        answer = connection.call(request, SyncGroupResponse, timeout_ms=timeout_ms)
        check(answer.error_code, f"joining group {self._group!r}")
        return answer.assignment

    def _leave(self) -> None:
        member = LeaveGroupRequestMember(
            member_id=self._member_id, group_instance_id=self._instance_id, reason="closed"
        )
        request = LeaveGroupRequest(group_id=self._group, members=[member], member_id=self._member_id)
        self._cluster.coordinator(self._group).call(request, LeaveGroupResponse)

    # Positions

    def _start_reading(self, places: Sequence[TopicPartition]) -> None:
        self._committed = (
            {place: found.offset for place, found in self._admin.offsets(self._group, places).items()} if places else {}
        )
        fresh = [place for place in places if place not in self._committed]
        starts = list_offsets(self._cluster, dict.fromkeys(fresh, self._start)) if fresh else {}
        self._consumer.assign(
            {place: self._committed[place] if place in self._committed else starts[place].offset for place in places}
        )

    def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        info = self._cluster.describe(sorted(topics), auto_create=False)
        return {name: len(topic.partitions) for name, topic in info.topics.items()}


def assign_ranges(
    members: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int], ranks: Mapping[str, str]
) -> dict[str, list[TopicPartition]]:
    """Assign each subscribed member a range of each topic's partitions; the first members get one more."""
    given: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for topic, count in sorted(partition_counts.items()):
        readers = sorted((m for m, topics in members.items() if topic in topics), key=lambda m: ranks[m])
        if not readers:
            continue
        each, extra = divmod(count, len(readers))
        at = 0
        for index, reader in enumerate(readers):
            size = each + (index < extra)
            given[reader] += [(topic, partition) for partition in range(at, at + size)]
            at += size
    return given


def _encode_share(places: Iterable[TopicPartition]) -> bytes:
    topics = [TopicPartitions(topic, partitions) for topic, partitions in by_topic(places).items()]
    return encode_assignment(Assignment(topics), SUBSCRIPTION_VERSION)
