"""One group: its members, their votes, its generation and its offsets. No rules of time live here.

Invariants:
- ``leader_id`` names a member whenever there are members.
- ``static_members`` maps each instance id to the one member that holds it.
- ``awaiting_join`` counts the members whose join is not answered.
- The generation only grows.
- ``members`` and ``shared`` are never both filled: a group shares its partitions in one way at a time.
"""

from dataclasses import dataclass
from typing import Final

from penstock.core.coordinators.deadlines import Timer
from penstock.core.groups.offsets import GroupOffsets
from penstock.core.groups.requests import (
    NO_MEMBER,
    GroupState,
    JoinDone,
    JoinedMember,
    JoinResult,
    MemberProtocol,
    SyncDone,
    SyncResult,
)
from penstock.core.groups.shared_members import SharedMembers
from penstock.core.groups.stored import StoredGroup, StoredMember
from penstock.core.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from penstock.errors import Reason
from penstock.types import GroupId, MemberId

_MAY_REBALANCE: Final = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})


@dataclass(slots=True, eq=False)
class Member:
    """One member. ``join_done`` and ``sync_done`` are there while an answer is owed."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    session: Timer
    assignment: bytes = b""
    join_done: JoinDone | None = None
    sync_done: SyncDone | None = None
    is_new: bool = False
    """Its first join is not answered, so it cannot know its id and cannot heartbeat."""

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its place over a restart."""
        return self.instance_id is not None

    @property
    def metadata_bytes(self) -> int:
        """What the member makes the broker remember."""
        return protocols_bytes(self.protocols)

    def metadata_for(self, protocol: str | None) -> bytes:
        """Its subscription under ``protocol``; empty when it has none."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def answer_join(self, result: JoinResult) -> bool:
        """Answer the join that waits, if one does."""
        done, self.join_done = self.join_done, None
        if done is None:
            return False
        done(result)
        return True

    def answer_sync(self, result: SyncResult) -> bool:
        """Answer the sync that waits, if one does."""
        done, self.sync_done = self.sync_done, None
        if done is None:
            return False
        done(result)
        return True


def protocols_bytes(protocols: tuple[MemberProtocol, ...]) -> int:
    """Bytes of all subscriptions and their names."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class Group:
    """The state of one group."""

    __slots__ = (
        "assigned_generation",
        "awaiting_join",
        "generation",
        "group_id",
        "initial_delay_left_ms",
        "leader_id",
        "members",
        "metadata_bytes",
        "new_member_added",
        "offsets",
        "partition",
        "pending",
        "protocol",
        "protocol_type",
        "rebalance",
        "shared",
        "state",
        "state_since_ms",
        "static_members",
        "subscribed",
        "supported",
        "sync",
        "unsynced",
    )

    def __init__(self, group_id: GroupId, partition: int, now_ms: int) -> None:
        self.group_id: Final = group_id
        self.partition: Final = partition
        self.state = GroupState.EMPTY
        self.state_since_ms = now_ms
        """Wall time; -1 when it was stored by a version that did not say."""
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.assigned_generation = 0
        """The last generation whose assignment the leader sent. A second one in the same generation is not used."""
        self.leader_id: MemberId | None = None
        self.members: dict[MemberId, Member] = {}
        self.static_members: dict[str, MemberId] = {}
        self.pending: dict[MemberId, Timer] = {}
        """Ids that were given out and have not joined yet."""
        self.awaiting_join = 0
        self.new_member_added = False
        self.initial_delay_left_ms: int | None = None
        """While the first members of an empty group are waited for: how much longer the wait may still be extended."""
        self.supported: dict[str, int] = {}
        """How many members can use each protocol."""
        self.metadata_bytes = 0
        self.subscribed: frozenset[str] | None = None
        """Topics the members read; None when that cannot be known."""
        self.rebalance: Final = Timer()
        self.sync: Final = Timer()
        self.unsynced: set[MemberId] = set()
        """Members that were told of this generation and have not asked for their assignment."""
        self.offsets: Final = GroupOffsets()
        self.shared: Final = SharedMembers()
        """Members whose partitions the broker assigns."""

    # -- membership

    def add(self, member: Member, protocol_type: str, done: JoinDone | None) -> None:
        """Let a member in; the first one leads."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member.protocols, 1)
        self._await_join(member, done)

    def remove(self, member: Member) -> None:
        """Let a member go. Its answers must have been given."""
        assert member.join_done is None and member.sync_done is None
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        self._count_protocols(member.protocols, -1)
        self.unsynced.discard(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def update(
        self,
        member: Member,
        protocols: tuple[MemberProtocol, ...],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        done: JoinDone | None,
    ) -> None:
        """Take over what a member says when it joins again."""
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms
        self._await_join(member, done)

    def replace_static(self, member: Member, new_id: MemberId) -> None:
        """Give a static member the id it came back with; whoever still waits under the old id is told so."""
        assert member.instance_id is not None and new_id not in self.members
        old_id = member.member_id
        self.answer_join(member, JoinResult(Reason.FENCED_INSTANCE_ID, old_id))
        member.answer_sync(SyncResult(Reason.FENCED_INSTANCE_ID))
        # The place in the order is kept, because the order of the members decides ties.
        self.members = {new_id if key == old_id else key: value for key, value in self.members.items()}
        member.member_id = new_id
        self.static_members[member.instance_id] = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        if self.leader_id == old_id:
            self.leader_id = new_id

    def answer_join(self, member: Member, result: JoinResult) -> bool:
        """Answer a member's waiting join and count it."""
        if member.join_done is None:
            return False
        self.awaiting_join -= 1
        return member.answer_join(result)

    def _await_join(self, member: Member, done: JoinDone | None) -> None:
        # A join that is replaced came over a connection that is most likely gone; it is answered, so that nothing waits forever.
        self.answer_join(member, JoinResult(Reason.REBALANCE_IN_PROGRESS, member.member_id))
        if done is not None:
            member.join_done = done
            self.awaiting_join += 1

    def _count_protocols(self, protocols: tuple[MemberProtocol, ...], by: int) -> None:
        for name in dict.fromkeys(name for name, _ in protocols):
            count = self.supported.get(name, 0) + by
            if count:
                self.supported[name] = count
            else:
                del self.supported[name]
        self.metadata_bytes += by * protocols_bytes(protocols)

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance can start; not while one is being prepared."""
        return self.state in _MAY_REBALANCE

    @property
    def all_joined(self) -> bool:
        """Whether nobody is left to wait for."""
        return self.awaiting_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The patience of the most patient member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether the members' bytes are consumer subscriptions."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def is_void(self) -> bool:
        """Whether forgetting the group would lose nothing."""
        return self.state is GroupState.EMPTY and not self.members and not self.pending and self.offsets.is_empty

    def check_member(self, member_id: MemberId, instance_id: str | None) -> Reason | None:
        """Why a request that names this member is refused."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                return Reason.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return Reason.FENCED_INSTANCE_ID
        return None if member_id in self.members else Reason.UNKNOWN_MEMBER_ID

    # -- protocols and generations

    def supports(self, protocol_type: str, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Whether a member with these protocols leaves the group one that all can use."""
        if not protocol_type or not protocols or self.shared:
            return False
        if not self.members:
            return True
        everyone = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supported.get(name) == everyone for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all can use; most votes win, the earliest vote on a tie."""
        everyone = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if self.supported[name] == everyone)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one who joined; False when nobody did."""
        leader = self.members.get(self.leader_id or NO_MEMBER)
        if leader is None or leader.join_done is None:
            leader = next((member for member in self.members.values() if member.join_done is not None), None)
        if leader is None:
            return False
        self.leader_id = leader.member_id
        return True

    def begin_generation(self, now_ms: int) -> None:
        """The next generation, of the members there are; ``now_ms`` is wall time."""
        self.generation += 1
        self.new_member_added = False
        self.initial_delay_left_ms = None
        if self.members:
            self.protocol = self.select_protocol()
            self.enter(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.leader_id = None
            self.enter(GroupState.EMPTY, now_ms)
        self.note_subscriptions()

    def note_subscriptions(self) -> None:
        """Remember which topics the members read under the protocol they agreed on."""
        self.subscribed = None
        if not self.uses_consumer_protocol:
            return
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = subscribed_topics(member.metadata_for(self.protocol))
            if subscribed is None:
                return
            topics |= subscribed
        self.subscribed = frozenset(topics)

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Change state; ``now_ms`` is wall time."""
        self.state = state
        self.state_since_ms = now_ms

    # -- what is told and stored

    def join_result(
        self, member: Member, *, leader_id: MemberId | None = None, skip_assignment: bool = False
    ) -> JoinResult:
        """The member's place in this generation. ``leader_id`` is said instead of the real one where it is given."""
        leads = leader_id is None and self.leader_id == member.member_id
        return JoinResult(
            reason=None,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader_id=leader_id or self.leader_id or NO_MEMBER,
            skip_assignment=skip_assignment and leads,
            members=self.joined_members() if leads else (),
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Everybody, as the leader is told."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    def sync_result(self, member: Member) -> SyncResult:
        """The member's assignment in this generation."""
        return SyncResult(None, member.assignment, self.protocol_type, self.protocol)

    def stored(self, assignments: dict[MemberId, bytes], now_ms: int) -> StoredGroup:
        """The group as it goes to the log, with these assignments; ``now_ms`` is wall time."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader_id=self.leader_id,
            state_since_ms=now_ms,
            members=tuple(
                StoredMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata_for(self.protocol),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    # -- offsets

    def check_commit(self, member_id: MemberId, generation: int, instance_id: str | None) -> Reason | None:
        """Why a commit is refused. Without members, anybody who claims no generation may commit."""
        if self.state is GroupState.DEAD:
            return Reason.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return None
        reason = self.check_member(member_id, instance_id)
        if reason is not None:
            return reason
        if generation != self.generation:
            return Reason.ILLEGAL_GENERATION
        # The member knows the generation but not yet its partitions, so it cannot have read from them.
        return Reason.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING_REBALANCE else None
