"""One group: its members, their votes, its generation and its offsets. Knows nothing of time.

Invariants:
- ``leader_id`` names a member whenever there are members.
- ``static_members`` maps each instance id to the one member that holds it.
- ``awaiting_join`` counts the members with an unanswered join.
- The generation only increases.
- Either ``members`` or ``shared`` is empty: a group assigns its partitions in one way at a time.
"""

from dataclasses import dataclass, field
from typing import Final

from penstock.core.coordinators.deadlines import Timer
from penstock.core.groups.offsets import GroupOffsets
from penstock.core.groups.requests import JoinDone, SyncDone
from penstock.core.groups.shared_members import SharedMembers
from penstock.core.groups.stored import StoredGroup, StoredMember
from penstock.core.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from penstock.errors import Reason
from penstock.operations.groups import NO_MEMBER, GroupState, JoinedMember, JoinResult, MemberProtocol, SyncResult
from penstock.types import GroupId, MemberId

_MAY_REBALANCE: Final = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})


@dataclass(slots=True, eq=False)
class Member:
    """One member. ``join_done`` and ``sync_done`` are set while a request waits."""

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
    """Its first join is not answered, so it does not know its id and cannot send heartbeats."""

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its assignment when it restarts."""
        return self.instance_id is not None

    @property
    def metadata_bytes(self) -> int:
        """The bytes of its subscriptions."""
        return protocols_bytes(self.protocols)

    def metadata_for(self, protocol: str | None) -> bytes:
        """Its subscription under ``protocol``; empty if it has none."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def answer_join(self, result: JoinResult) -> bool:
        """Answer the waiting join, if any."""
        done, self.join_done = self.join_done, None
        if done is None:
            return False
        done(result)
        return True

    def answer_sync(self, result: SyncResult) -> bool:
        """Answer the waiting sync, if any."""
        done, self.sync_done = self.sync_done, None
        if done is None:
            return False
        done(result)
        return True


def protocols_bytes(protocols: tuple[MemberProtocol, ...]) -> int:
    """Bytes of all subscriptions and their names."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


@dataclass(slots=True, eq=False)
class Group:
    """The state of one group."""

    group_id: Final[GroupId]
    partition: Final[int]
    """The partition of the offsets topic that has its records."""
    state_since_ms: int
    """Wall time; -1 if it was stored by a version that did not record it."""
    state: GroupState = GroupState.EMPTY
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    assigned_generation: int = 0
    """The last generation whose assignment the leader sent. A second one in the same generation is not used."""
    leader_id: MemberId | None = None
    members: dict[MemberId, Member] = field(default_factory=dict)
    static_members: dict[str, MemberId] = field(default_factory=dict)
    pending: dict[MemberId, Timer] = field(default_factory=dict)
    """Member ids that were returned to clients that have not joined with them yet."""
    awaiting_join: int = 0
    new_member_added: bool = False
    initial_delay_left_ms: int | None = None
    """How much longer the wait for the first members of an empty group may be extended; None if there is no such wait."""
    supported: dict[str, int] = field(default_factory=dict)
    """How many members support each protocol."""
    metadata_bytes: int = 0
    subscribed: frozenset[str] | None = None
    """Topics that the members read; None if unknown."""
    rebalance: Timer = field(default_factory=Timer)
    sync: Timer = field(default_factory=Timer)
    unsynced: set[MemberId] = field(default_factory=set)
    """Members of this generation that have not requested their assignment."""
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    shared: SharedMembers = field(default_factory=SharedMembers)
    """Members whose partitions the broker assigns."""

    # -- membership

    def add(self, member: Member, protocol_type: str, done: JoinDone | None) -> None:
        """Add a member; the first one leads."""
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
        """Remove a member. Its requests must be answered before."""
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
        """A member joins again, with these properties."""
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms
        self._await_join(member, done)

    def replace_static(self, member: Member, new_id: MemberId) -> None:
        """Give a restarted static member its new id. Requests that wait under the old id are answered with FENCED_INSTANCE_ID."""
        assert member.instance_id is not None and new_id not in self.members
        old_id = member.member_id
        self.answer_join(member, JoinResult(Reason.FENCED_INSTANCE_ID, old_id))
        member.answer_sync(SyncResult(Reason.FENCED_INSTANCE_ID))
        # The order of the members is kept, because it decides ties.
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
        # The connection of an earlier join is most likely gone; it is answered so that nothing waits forever.
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
        """Whether a rebalance can start."""
        return self.state in _MAY_REBALANCE

    @property
    def all_joined(self) -> bool:
        """Whether all members have joined."""
        return self.awaiting_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
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
        """Whether all members would still have a protocol in common with a member that has these."""
        if not protocol_type or not protocols or self.shared:
            return False
        if not self.members:
            return True
        everyone = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supported.get(name) == everyone for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Each member votes for its first protocol that all support. Most votes win, then the earliest vote."""
        everyone = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if self.supported[name] == everyone)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that joined; False if none did."""
        leader = self.members.get(self.leader_id or NO_MEMBER)
        if leader is None or leader.join_done is None:
            leader = next((member for member in self.members.values() if member.join_done is not None), None)
        if leader is None:
            return False
        self.leader_id = leader.member_id
        return True

    def begin_generation(self, now_ms: int) -> None:
        """Begin the next generation, of the present members; ``now_ms`` is wall time."""
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
        """Note which topics the members read under the selected protocol."""
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

    # -- results and stored records

    def join_result(
        self, member: Member, *, leader_id: MemberId | None = None, skip_assignment: bool = False
    ) -> JoinResult:
        """The member's result in this generation. ``leader_id`` replaces the real leader's, if given."""
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
        """All members, for the leader."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    def sync_result(self, member: Member) -> SyncResult:
        """The member's assignment in this generation."""
        return SyncResult(None, member.assignment, self.protocol_type, self.protocol)

    def stored(self, assignments: dict[MemberId, bytes], now_ms: int) -> StoredGroup:
        """The group as a stored record, with these assignments; ``now_ms`` is wall time."""
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
        """Why a commit is refused. In a group without members, any client may commit without a generation."""
        if self.state is GroupState.DEAD:
            return Reason.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return None
        reason = self.check_member(member_id, instance_id)
        if reason is not None:
            return reason
        if generation != self.generation:
            return Reason.ILLEGAL_GENERATION
        # The member knows the generation but not its partitions yet, so it cannot have read from them.
        return Reason.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING_REBALANCE else None
