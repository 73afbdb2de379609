"""Kafka's classic group protocol: join, sync, heartbeat, leave, and the expiry of members.

A change of members starts a rebalance: all members must join again, and when they have (or the rebalance timeout has passed) the
next generation begins with those that did. Its leader receives the list of members and sends the assignment, which is stored
before any member gets it. Then the generation is stable.

Each transition answers all requests that wait in the state that it leaves. A member that waits needs no heartbeats. If its
connection is gone, its session expires after the answer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.core.coordinators.deadlines import Timer
from penstock.core.groups.directory import Directory, check_alive
from penstock.core.groups.group import Group, Member, protocols_bytes
from penstock.core.groups.requests import JoinDone, SyncDone
from penstock.core.groups.stored import group_record
from penstock.core.groups.subscription import subscribed_topics
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, GROUP_METADATA_BYTES_MAX, GROUP_PROTOCOLS_MAX, GROUP_STATE_BYTES_MAX
from penstock.operations.groups import (
    NO_MEMBER,
    GroupState,
    JoinClassicGroup,
    JoinResult,
    LeavingMember,
    MemberProtocol,
    SyncClassicGroup,
    SyncResult,
)
from penstock.ports import Entropy
from penstock.types import GroupId, MemberId

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""A new member cannot send heartbeats while its join waits, so this limits how long a disconnected one stays in the group."""
_POSTPONE_MS_MIN: Final = 1_000
"""If no member joined but static members are still expected; a shorter wait would only waste CPU time."""


class Rebalancer:
    """The rules of membership, for all groups of a directory."""

    def __init__(self, directory: Directory, entropy: Entropy) -> None:
        self._directory = directory
        self._settings = directory.settings
        self._deadlines = directory.deadlines
        self._clock = directory.clock
        self._entropy = entropy

    # -- join

    def join(self, request: JoinClassicGroup, done: JoinDone) -> None:
        """Add a member to the next generation; ``done`` is called when that begins, or with the reason why it will not."""
        try:
            self._check_join(request)
            if request.member_id == NO_MEMBER:
                group = self._directory.find_or_create(request.group)
            else:
                known = self._directory.find(request.group)
                if known is None:
                    raise PenstockError(Reason.UNKNOWN_MEMBER_ID)
                group = known
        except PenstockError as error:
            done(JoinResult(error.reason, request.member_id))
            return
        reason = self._join_group(group, request, done)
        if reason is not None:
            self._directory.forget_if_unused(group)
            done(JoinResult(reason, request.member_id))
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._complete_join_if_ready(group)

    def _check_join(self, request: JoinClassicGroup) -> None:
        settings = self._settings
        if not request.group:
            raise PenstockError(Reason.INVALID_GROUP_ID, "A group needs a name; set group.id")
        if not settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max:
            raise PenstockError(
                Reason.INVALID_SESSION_TIMEOUT,
                f"The session timeout of {request.session_timeout_ms} ms is out of range; "
                f"set session.timeout.ms from {settings.session_timeout_ms_min} to {settings.session_timeout_ms_max}",
            )
        names = [request.protocol_type, request.instance_id or "", *(name for name, _ in request.protocols)]
        if (
            len(request.protocols) > GROUP_PROTOCOLS_MAX
            or protocols_bytes(request.protocols) > GROUP_METADATA_BYTES_MAX
            or any(len(name) > GROUP_ID_CHARS_MAX for name in names)
        ):
            raise PenstockError(Reason.INVALID_REQUEST, "The subscription is too large; subscribe to fewer topics")

    def _join_group(self, group: Group, request: JoinClassicGroup, done: JoinDone) -> Reason | None:
        if group.state is GroupState.DEAD:
            return Reason.COORDINATOR_NOT_AVAILABLE
        if not self._has_room(group, request):
            return self._reject(group, request)
        if not group.supports(request.protocol_type, request.protocols):
            return Reason.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id == NO_MEMBER:
            self._join_new(group, request, done)
            return None
        return self._join_known(group, request, done)

    def _has_room(self, group: Group, request: JoinClassicGroup) -> bool:
        members_max = self._settings.members_max
        holder = request.member_id if request.instance_id is None else group.static_members.get(request.instance_id)
        member = group.members.get(holder or NO_MEMBER)
        metadata_bytes = group.metadata_bytes + protocols_bytes(request.protocols)
        if metadata_bytes - (0 if member is None else member.metadata_bytes) > GROUP_STATE_BYTES_MAX:
            return False
        preparing = group.state is GroupState.PREPARING_REBALANCE
        if member is not None:
            return not preparing or member.join_done is not None or group.awaiting_join < members_max
        # Members that have not joined again may be gone, so only those that have are counted during a rebalance.
        taken = group.awaiting_join if preparing else len(group.members)
        if request.member_id not in group.pending:
            taken += len(group.pending)
        return taken < members_max

    def _reject(self, group: Group, request: JoinClassicGroup) -> Reason:
        member = group.members.get(request.member_id)
        if member is not None:
            self._remove(group, member)
        self._drop_pending(group, request.member_id)
        return Reason.GROUP_MAX_SIZE_REACHED

    def _join_new(self, group: Group, request: JoinClassicGroup, done: JoinDone) -> None:
        stem = request.client_id if request.instance_id is None else request.instance_id
        member_id = MemberId(f"{stem[:GROUP_ID_CHARS_MAX]}-{self._entropy.uuid()}")
        if request.instance_id is not None:
            holder = group.static_members.get(request.instance_id)
            if holder is not None:
                self._replace_static(group, group.members[holder], member_id, request, done)
                return
        elif request.require_known_member_id:
            timer = Timer(partial(self._pending_expired, group, member_id))
            group.pending[member_id] = timer
            self._deadlines.set(timer, self._clock.monotonic_ms() + request.session_timeout_ms)
            done(JoinResult(Reason.MEMBER_ID_REQUIRED, member_id))
            return
        self._add(group, member_id, request, done)

    def _join_known(self, group: Group, request: JoinClassicGroup, done: JoinDone) -> Reason | None:
        if request.member_id in group.pending and request.instance_id is None:
            self._deadlines.cancel(group.pending.pop(request.member_id))
            self._add(group, request.member_id, request, done)
            return None
        reason = group.check_member(request.member_id, request.instance_id)
        if reason is not None:
            return reason
        member = group.members[request.member_id]
        unchanged = member.protocols == request.protocols
        leads = group.leader_id == member.member_id
        # The answer to an earlier join may have been lost. Only a stable leader certainly wants a rebalance when it joins again:
        # it does so when topics have changed.
        if unchanged and (
            group.state is GroupState.COMPLETING_REBALANCE or (group.state is GroupState.STABLE and not leads)
        ):
            self._directory.keep_alive(member)
            done(group.join_result(member))
            return None
        group.update(member, request.protocols, request.session_timeout_ms, request.rebalance_timeout_ms, done)
        self._prepare(group)
        return None

    def _add(self, group: Group, member_id: MemberId, request: JoinClassicGroup, done: JoinDone) -> None:
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            session=Timer(),
            is_new=True,
        )
        self.watch(group, member)
        if group.initial_delay_left_ms is not None:
            group.new_member_added = True
        group.add(member, request.protocol_type, done)
        self._deadlines.set(member.session, self._clock.monotonic_ms() + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._prepare(group)

    def watch(self, group: Group, member: Member) -> None:
        """Remove the member when its session expires."""
        member.session.fire = partial(self._session_expired, group, member)

    # -- static members

    def _replace_static(
        self, group: Group, member: Member, new_id: MemberId, request: JoinClassicGroup, done: JoinDone
    ) -> None:
        """A static member was restarted: it keeps its assignment under a new id, if its subscription has not changed."""
        before = (member.member_id, member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)
        same_topics = not group.uses_consumer_protocol or subscribed_topics(
            member.metadata_for(group.protocol)
        ) == subscribed_topics(next((metadata for name, metadata in request.protocols if name == group.protocol), b""))
        group.replace_static(member, new_id)
        member.client_id = request.client_id
        member.client_host = request.client_host
        group.update(member, request.protocols, request.session_timeout_ms, request.rebalance_timeout_ms, done)
        self._directory.keep_alive(member)
        if group.state is GroupState.STABLE and same_topics and group.select_protocol() == group.protocol:
            assignments = {each.member_id: each.assignment for each in group.members.values()}
            record = group_record(group.group_id, group.stored(assignments, group.state_since_ms))
            stored = partial(
                self._static_replaced, group, member, before, done, group.generation, request.can_skip_assignment
            )
            self._directory.store(group.partition, [record], stored)
        else:
            # After the joins, the leader assigns to the old id: the new one needs a new generation.
            self._prepare(group)

    def _static_replaced(
        self,
        group: Group,
        member: Member,
        before: tuple[MemberId, tuple[MemberProtocol, ...], int, int],
        done: JoinDone,
        generation: int,
        can_skip_assignment: bool,
        reason: Reason | None,
    ) -> None:
        if group.state is not GroupState.STABLE or group.generation != generation or member.join_done is not done:
            return  # a rebalance began, or the member was restarted again: the join is answered there
        old_id, protocols, session_timeout_ms, rebalance_timeout_ms = before
        if reason is None:
            # A leader that cannot skip the assignment would assign, and no member would use it: tell it that its old id leads.
            hides_leader = group.leader_id == member.member_id and not can_skip_assignment
            leader_id = old_id if hides_leader else None
            group.answer_join(member, group.join_result(member, leader_id=leader_id, skip_assignment=True))
        else:
            group.answer_join(member, JoinResult(reason, NO_MEMBER))
            group.replace_static(member, old_id)
            group.update(member, protocols, session_timeout_ms, rebalance_timeout_ms, None)
        self._directory.keep_alive(member)

    # -- the rebalance

    def _prepare(self, group: Group) -> None:
        """Start a rebalance, unless one has started."""
        if not group.can_rebalance:
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(group, Reason.REBALANCE_IN_PROGRESS)
        self._deadlines.cancel(group.sync)
        group.unsynced.clear()
        was_empty = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE, self._clock.now_ms())
        if not was_empty:
            self._arm(group.rebalance, group.rebalance_timeout_ms, partial(self._complete_join, group))
            self._complete_join_if_ready(group)
            return
        delay_ms = self._settings.initial_rebalance_delay_ms
        if delay_ms == 0:
            self._complete_join(group)
            return
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        group.new_member_added = False
        self._arm(group.rebalance, delay_ms, partial(self._initial_delay_over, group))

    def _initial_delay_over(self, group: Group) -> None:
        left_ms = group.initial_delay_left_ms
        assert left_ms is not None
        if not group.new_member_added or left_ms == 0:
            self._complete_join(group)
            return
        delay_ms = min(self._settings.initial_rebalance_delay_ms, left_ms)
        group.new_member_added = False
        group.initial_delay_left_ms = left_ms - delay_ms
        self._arm(group.rebalance, delay_ms, partial(self._initial_delay_over, group))

    def _complete_join_if_ready(self, group: Group) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is None and group.all_joined:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """Begin the next generation, with the members that joined and all static members, which may be restarting."""
        self._deadlines.cancel(group.rebalance)
        for member in list(group.members.values()):
            if member.join_done is None and not member.is_static:
                self._drop(group, member)
        if group.members and not group.elect_joined_leader():
            wait_ms = max(group.rebalance_timeout_ms, _POSTPONE_MS_MIN)
            self._arm(group.rebalance, wait_ms, partial(self._complete_join, group))
            return
        group.begin_generation(self._clock.now_ms())
        if group.state is GroupState.EMPTY:
            self._store_empty(group)
            return
        group.unsynced = set(group.members)
        self._arm(group.sync, group.rebalance_timeout_ms, partial(self._sync_overdue, group))
        for member in list(group.members.values()):
            member.is_new = False
            self._directory.keep_alive(member)
            group.answer_join(member, group.join_result(member))

    def _store_empty(self, group: Group) -> None:
        record = group_record(group.group_id, group.stored({}, group.state_since_ms))
        # No caller waits. Without the record, a restart restores the old members, whose sessions then expire.
        self._directory.store(group.partition, [record], lambda _: None)

    def _arm(self, timer: Timer, wait_ms: int, fire: Callable[[], None]) -> None:
        timer.fire = fire
        self._deadlines.set(timer, self._clock.monotonic_ms() + wait_ms)

    # -- sync

    def sync(self, request: SyncClassicGroup, done: SyncDone) -> None:
        """Give a member its assignment once the leader has sent it and it is stored."""
        try:
            group = self._directory.find(request.group)
        except PenstockError as error:
            # The member has joined a generation that this node has not loaded: it must join again.
            loading = error.reason is Reason.COORDINATOR_LOAD_IN_PROGRESS
            done(SyncResult(Reason.REBALANCE_IN_PROGRESS if loading else error.reason))
            return
        reason = self._check_sync(group, request)
        if reason is not None or group is None:
            done(SyncResult(reason))
            return
        member = group.members[request.member_id]
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            self._deadlines.cancel(group.sync)
        if group.state is GroupState.STABLE:
            self._directory.keep_alive(member)
            done(group.sync_result(member))
            return
        member.answer_sync(SyncResult(Reason.REBALANCE_IN_PROGRESS))
        member.sync_done = done
        if group.leader_id == member.member_id and group.assigned_generation != group.generation:
            self._store_generation(group, request.assignments)

    def _check_sync(self, group: Group | None, request: SyncClassicGroup) -> Reason | None:
        if not request.group:
            return Reason.INVALID_GROUP_ID
        if group is None:
            return Reason.UNKNOWN_MEMBER_ID
        reason = self._check_current(group, request.member_id, request.instance_id, request.generation)
        if reason is not None:
            return reason
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return Reason.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol is not None and request.protocol != group.protocol:
            return Reason.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return Reason.REBALANCE_IN_PROGRESS
        sizes = [len(assignment) for assignment in request.assignments.values()]
        if sizes and (max(sizes) > GROUP_METADATA_BYTES_MAX or sum(sizes) > GROUP_STATE_BYTES_MAX):
            return Reason.INVALID_REQUEST
        return None

    def _check_current(
        self, group: Group, member_id: MemberId, instance_id: str | None, generation: int
    ) -> Reason | None:
        if group.state is GroupState.DEAD:
            return Reason.COORDINATOR_NOT_AVAILABLE
        reason = group.check_member(member_id, instance_id)
        if reason is None and generation != group.generation:
            return Reason.ILLEGAL_GENERATION
        return reason

    def _store_generation(self, group: Group, given: dict[MemberId, bytes]) -> None:
        group.assigned_generation = group.generation
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        record = group_record(group.group_id, group.stored(assignments, self._clock.now_ms()))
        self._directory.store(
            group.partition, [record], partial(self._generation_stored, group, group.generation, assignments)
        )

    def _generation_stored(
        self, group: Group, generation: int, assignments: dict[MemberId, bytes], reason: Reason | None
    ) -> None:
        if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
            return  # the members changed meanwhile, and another rebalance began
        if reason is not None:
            self._answer_syncs(group, reason)
            self._prepare(group)
            return
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        group.enter(GroupState.STABLE, self._clock.now_ms())
        for member in list(group.members.values()):
            if member.answer_sync(group.sync_result(member)):
                self._directory.keep_alive(member)

    def _answer_syncs(self, group: Group, reason: Reason) -> None:
        for member in list(group.members.values()):
            if member.answer_sync(SyncResult(reason)):
                self._directory.keep_alive(member)

    # -- heartbeat and leave

    def heartbeat(
        self, group_id: GroupId, member_id: MemberId, generation: int, instance_id: str | None = None
    ) -> Reason | None:
        """Keep a member alive; REBALANCE_IN_PROGRESS if it must join again."""
        if not group_id:
            return Reason.INVALID_GROUP_ID
        try:
            group = self._directory.find(group_id)
        except PenstockError as error:
            # A loaded member starts with a new session, so this heartbeat is not needed.
            return None if error.reason is Reason.COORDINATOR_LOAD_IN_PROGRESS else error.reason
        if group is None:
            return Reason.UNKNOWN_MEMBER_ID
        reason = self._check_current(group, member_id, instance_id, generation)
        if reason is not None:
            return reason
        self._directory.keep_alive(group.members[member_id])
        return Reason.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else None

    def leave(self, group_id: GroupId, leaving: Sequence[LeavingMember]) -> list[Reason | None]:
        """Remove members at once; one result each, in order. PenstockError if the whole request is refused."""
        if not group_id:
            raise PenstockError(Reason.INVALID_GROUP_ID, "Name the group to leave")
        group = self._directory.find(group_id)
        if group is None:
            return [Reason.UNKNOWN_MEMBER_ID] * len(leaving)
        check_alive(group)
        answers = [self._leave(group, *each) for each in leaving]
        self._directory.forget_if_unused(group)
        return answers

    def _leave(self, group: Group, member_id: MemberId, instance_id: str | None) -> Reason | None:
        if instance_id is None and member_id in group.pending:
            self._drop_pending(group, member_id)
            return None
        if instance_id is not None and member_id == NO_MEMBER:
            member_id = group.static_members.get(instance_id, NO_MEMBER)
        reason = group.check_member(member_id, instance_id)
        if reason is None:
            self._remove(group, group.members[member_id])
        return reason

    def _remove(self, group: Group, member: Member) -> None:
        self._drop(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._complete_join_if_ready(group)
        elif group.state is not GroupState.EMPTY:
            self._prepare(group)

    def _drop(self, group: Group, member: Member) -> None:
        group.answer_join(member, JoinResult(Reason.UNKNOWN_MEMBER_ID, NO_MEMBER))
        member.answer_sync(SyncResult(Reason.UNKNOWN_MEMBER_ID))
        self._deadlines.cancel(member.session)
        group.remove(member)

    def _drop_pending(self, group: Group, member_id: MemberId) -> None:
        timer = group.pending.pop(member_id, None)
        if timer is not None:
            self._deadlines.cancel(timer)
            self._complete_join_if_ready(group)

    # -- time

    def _session_expired(self, group: Group, member: Member) -> None:
        waits = member.join_done is not None or member.sync_done is not None
        if group.members.get(member.member_id) is member and (member.is_new or not waits):
            self._remove(group, member)
            self._directory.forget_if_unused(group)

    def _pending_expired(self, group: Group, member_id: MemberId) -> None:
        self._drop_pending(group, member_id)
        self._directory.forget_if_unused(group)

    def _sync_overdue(self, group: Group) -> None:
        """Remove members that joined and never asked for their assignment: nobody reads their partitions."""
        for member_id in list(group.unsynced):
            self._drop(group, group.members[member_id])
        self._prepare(group)

    def abandon(self, group: Group, reason: Reason) -> None:
        """This node no longer coordinates the group: answer all waiting requests with the reason."""
        for member in list(group.members.values()):
            group.answer_join(member, JoinResult(reason, member.member_id))
            member.answer_sync(SyncResult(reason))
        group.enter(GroupState.DEAD, group.state_since_ms)
        self._directory.forget(group)
