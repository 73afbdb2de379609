"""A world that a test of groups owns: its clock, its ids, and a log of offsets that syncs or fails when told."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

from penstock.core.coordinators.topic import InternalTopic, StateRecord, StoredDone, partition_of
from penstock.core.groups.coordinator import GroupCoordinator
from penstock.core.groups.requests import CommittedOffset, JoinDone, SyncDone
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    GroupState,
    JoinClassicGroup,
    JoinResult,
    LeavingMember,
    MemberProtocol,
    OffsetToCommit,
    SyncClassicGroup,
    SyncResult,
)
from penstock.settings import GroupSettings
from penstock.types import Buffer, GroupId, MemberId, PartitionKey, TopicName

GROUP = GroupId("readers")
TOPIC = TopicName("orders")
PARTITIONS = 4

T = TypeVar("T")


class Box(Generic[T]):
    """Takes the one answer of a call."""

    def __init__(self) -> None:
        self.answers: list[T] = []

    def __call__(self, answer: T) -> None:
        assert not self.answers, "answered twice"
        self.answers.append(answer)

    @property
    def waits(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> T:
        assert self.answers, "not answered yet"
        return self.answers[0]


class ManualClock:
    def __init__(self) -> None:
        self.monotonic = 1_000
        self.wall = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic

    def move(self, ms: int) -> None:
        self.monotonic += ms
        self.wall += ms


class CountingEntropy:
    def __init__(self) -> None:
        self.count = 0

    def uuid(self) -> UUID:
        self.count += 1
        return UUID(int=self.count)

    def secret(self, count: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(count, "big")


class MemoryOffsetsLog(InternalTopic):
    """Appends are committed at once, or when the test says so."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self.records: list[list[StateRecord]] = [[] for _ in range(partitions)]
        self.committed = [0] * partitions
        self.hold = False
        self.refuse_append: Reason | None = None
        self._waiting: list[tuple[int, int, StoredDone]] = []

    def partition_for(self, owner: str) -> int:
        return partition_of(owner, len(self.records))

    def append(self, partition: int, records: Sequence[StateRecord], *, hurried: bool = True) -> int:
        assert records
        assert hurried
        if self.refuse_append is not None:
            raise PenstockError(self.refuse_append)
        self.records[partition].extend(records)
        if not self.hold:
            self.committed[partition] = len(self.records[partition])
        return len(self.records[partition])

    def when_committed(self, partition: int, next_offset: int, done: StoredDone) -> None:
        if self.committed[partition] >= next_offset:
            done(None)
        else:
            self._waiting.append((partition, next_offset, done))

    def replay(self, partition: int, *, written: bool = False) -> Iterator[tuple[Buffer, Buffer | None, int]]:
        yield from ((key, value, 0) for key, value in self.records[partition][: self.committed[partition]])

    def settle(self) -> None:
        """Everything appended is committed."""
        self.committed = [len(records) for records in self.records]
        waiting, self._waiting = self._waiting, []
        for _, _, done in waiting:
            done(None)

    def lose(self, reason: Reason = Reason.STORAGE_ERROR) -> None:
        """What is not committed is undone."""
        for records, end in zip(self.records, self.committed, strict=True):
            del records[end:]
        waiting, self._waiting = self._waiting, []
        for _, _, done in waiting:
            done(reason)

    def crash(self) -> None:
        """The process is gone, and what was not committed with it."""
        self._waiting = []
        self.lose()

    def compacted(self, partition: int) -> dict[bytes, bytes | None]:
        return dict(self.records[partition])


class Topics:
    def __init__(self) -> None:
        self.counts: dict[TopicName, int] = {TOPIC: 8, TopicName("other"): 8}
        self.ids: dict[TopicName, UUID] = {TOPIC: UUID(int=1), TopicName("other"): UUID(int=2)}

    def exists(self, topic: TopicName, partition: int) -> bool:
        return 0 <= partition < self.counts.get(topic, 0)

    def partition_count(self, topic: TopicName) -> int:
        return self.counts.get(topic, 0)

    def topic_id(self, topic: TopicName) -> UUID | None:
        return self.ids.get(topic)


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """What a consumer sends as its metadata."""
    encoded = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\x00\x01" + len(topics).to_bytes(4, "big") + encoded + len(user_data).to_bytes(4, "big") + user_data


RANGE = (MemberProtocol("range", subscription(TOPIC)),)


@dataclass
class World:
    settings: GroupSettings = field(default_factory=lambda: GroupSettings(initial_rebalance_delay_ms=0))
    log: MemoryOffsetsLog = field(default_factory=MemoryOffsetsLog)
    clock: ManualClock = field(default_factory=ManualClock)
    entropy: CountingEntropy = field(default_factory=CountingEntropy)
    topics: Topics = field(default_factory=Topics)
    reports: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.groups = GroupCoordinator(
            self.settings, self.log, self.topics, self.clock, self.entropy, self.reports.append
        )
        for partition in range(len(self.log.records)):
            self.groups.family.load(partition)

    def restart(self) -> None:
        self.log.crash()
        self.start()

    def advance(self, ms: int) -> None:
        """Let time pass, with a tick whenever one is due."""
        end = self.clock.monotonic + ms
        while (due := self.groups.next_deadline_ms()) <= end:
            self.clock.move(max(0, due - self.clock.monotonic))
            self.groups.tick(self.clock.monotonic)
        self.clock.move(end - self.clock.monotonic)

    # -- calls, with defaults that most tests do not care about

    def join(
        self,
        member_id: str = NO_MEMBER,
        *,
        group: GroupId = GROUP,
        protocols: tuple[MemberProtocol, ...] = RANGE,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        protocol_type: str = "consumer",
        client_id: str = "client",
        require_known_member_id: bool = False,
        can_skip_assignment: bool = False,
        done: JoinDone | None = None,
    ) -> Box[JoinResult]:
        box: Box[JoinResult] = Box()
        request = JoinClassicGroup(
            group=group,
            member_id=MemberId(member_id),
            client_id=client_id,
            client_host="/127.0.0.1",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            instance_id=instance_id,
            require_known_member_id=require_known_member_id,
            can_skip_assignment=can_skip_assignment,
        )
        self.groups.join(request, done or box)
        return box

    def sync(
        self,
        joined: JoinResult,
        assignments: dict[str, bytes] | None = None,
        *,
        group: GroupId = GROUP,
        generation: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        done: SyncDone | None = None,
    ) -> Box[SyncResult]:
        box: Box[SyncResult] = Box()
        request = SyncClassicGroup(
            group=group,
            member_id=joined.member_id,
            generation=joined.generation if generation is None else generation,
            assignments={MemberId(key): value for key, value in (assignments or {}).items()},
            instance_id=instance_id,
            protocol_type=protocol_type,
            protocol=protocol,
        )
        self.groups.sync(request, done or box)
        return box

    def heartbeat(
        self,
        joined: JoinResult,
        *,
        group: GroupId = GROUP,
        generation: int | None = None,
        instance_id: str | None = None,
    ) -> Reason | None:
        generation = joined.generation if generation is None else generation
        return self.groups.heartbeat(group, joined.member_id, generation, instance_id)

    def leave(self, *members: str, group: GroupId = GROUP) -> list[Reason | None]:
        return self.groups.leave(group, [LeavingMember(MemberId(member)) for member in members])

    def commit(
        self,
        offset: int = 5,
        *,
        group: GroupId = GROUP,
        partition: int = 0,
        topic: TopicName = TOPIC,
        member: JoinResult | None = None,
        generation: int = NO_GENERATION,
        metadata: str = "",
        leader_epoch: int = -1,
        instance_id: str | None = None,
        retention_ms: int = -1,
    ) -> Box[dict[PartitionKey, Reason | None]]:
        box: Box[dict[PartitionKey, Reason | None]] = Box()
        item = OffsetToCommit(PartitionKey(topic, partition), offset, leader_epoch, metadata)
        self.groups.commit_offsets(
            CommitOffsets(
                group=group,
                offsets=(item,),
                member_id=NO_MEMBER if member is None else member.member_id,
                generation=generation if member is None else member.generation,
                instance_id=instance_id,
                retention_ms=retention_ms,
            ),
            box,
        )
        return box

    def commit_code(self, *args: object, **kwargs: object) -> Reason | None:
        """What one partition's commit was answered with."""
        box = self.commit(*args, **kwargs)  # type: ignore[arg-type]
        (reason,) = box.answer.values()
        return reason

    def committed(
        self, partition: int = 0, *, group: GroupId = GROUP, topic: TopicName = TOPIC
    ) -> CommittedOffset | None:
        key = PartitionKey(topic, partition)
        return self.groups.fetch_offsets(group, [key]).get(key)

    def state(self, group: GroupId = GROUP) -> GroupState:
        return self.groups.describe(group).state

    # -- whole generations

    def stable(self, count: int = 2, **kwargs: object) -> list[JoinResult]:
        """A stable group of so many members, the leader first; member i is assigned ``b"part i"``."""
        boxes = [self.join(**kwargs) for _ in range(count)]  # type: ignore[arg-type]
        # With no initial delay the first member is a generation by itself, so it joins once more.
        if count > 1:
            first = boxes[0].answer
            boxes[0] = self.join(first.member_id, **kwargs)  # type: ignore[arg-type]
        joined = [box.answer for box in boxes]
        self.settle_generation(joined)
        return joined

    def settle_generation(self, joined: Sequence[JoinResult], group: GroupId = GROUP) -> list[bytes]:
        """All sync; returns what each was assigned."""
        assignments = {each.member_id: b"part %d" % index for index, each in enumerate(joined)}
        boxes = [
            self.sync(each, assignments if each.leader_id == each.member_id else {}, group=group) for each in joined
        ]
        for box in boxes:
            assert box.answer.reason is None
        return [box.answer.assignment for box in boxes]


def answered(call: Callable[[Box[T]], None]) -> T:
    box: Box[T] = Box()
    call(box)
    return box.answer
