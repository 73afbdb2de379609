"""Members that join, sync, heartbeat, leave and crash in any order, with time, failing storage and restarts in between.

Checked after each step: one leader a generation; what a stable member was assigned is what the leader gave; generations of one
coordinator never go back; committed offsets are those last acknowledged, over restarts too. Checked at the end: once time passes,
nobody waits any more, and members that keep talking agree on one stable generation.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import Reason
from penstock.operations.groups import NO_MEMBER, GroupState, JoinResult, MemberProtocol, SyncResult
from penstock.settings import GroupSettings
from penstock.types import PartitionKey
from tests.unit.core.groups.world import GROUP, TOPIC, Box, World, subscription

SESSION_MS = 10_000
REBALANCE_MS = 30_000
SUBSCRIPTIONS = (
    (MemberProtocol("range", subscription(TOPIC)),),
    (MemberProtocol("range", subscription(TOPIC, "other")), MemberProtocol("sticky", b"opaque")),
    (MemberProtocol("sticky", b"more"), MemberProtocol("range", subscription("other"))),
)
REJOIN = {
    Reason.REBALANCE_IN_PROGRESS,
    Reason.COORDINATOR_NOT_AVAILABLE,
    Reason.NOT_COORDINATOR,
}
FORGET_ID = {Reason.UNKNOWN_MEMBER_ID, Reason.ILLEGAL_GENERATION, Reason.FENCED_INSTANCE_ID}


@dataclass
class Client:
    """A consumer, as far as the group can tell: it remembers its id and its generation, and what it waits for."""

    number: int
    instance_id: str | None
    protocols: tuple[MemberProtocol, ...] = SUBSCRIPTIONS[0]
    member_id: str = NO_MEMBER
    joining: Box[JoinResult] | None = None
    joined: JoinResult | None = None
    syncing: Box[SyncResult] | None = None
    assignment: bytes | None = None
    abandoned: list[Box] = field(default_factory=list)

    def forget(self) -> None:
        """A new process in the old one's place; nobody takes the old one's answers."""
        self.abandoned += [box for box in (self.joining, self.syncing) if box is not None]
        self.member_id = NO_MEMBER
        self.joining = self.joined = self.syncing = self.assignment = None


class GroupMachine(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 3_000]), statics=st.integers(0, 3))
    def begin(self, delay_ms, statics) -> None:
        self.world = World(settings=GroupSettings(initial_rebalance_delay_ms=delay_ms))
        self.clients = [Client(number, f"i{number}" if number < statics else None) for number in range(5)]
        self.incarnation = 0
        self.leaders: dict[tuple[int, int], str] = {}
        self.given: dict[tuple[int, int], dict[str, bytes]] = {}
        self.generation = 0
        self.acknowledged: dict[int, int] = {}
        self.in_flight: list[tuple[int, int, Box]] = []

    # -- what a client does

    def _take_answers(self) -> None:
        """Each client reads what came back, as a real one would."""
        for client in self.clients:
            if client.joining is not None and not client.joining.waits:
                result = client.joining.answer
                client.joining = None
                self._take_join(client, result)
            if client.syncing is not None and not client.syncing.waits:
                answer = client.syncing.answer
                client.syncing = None
                self._take_sync(client, answer)
        self._take_commits()

    def _take_join(self, client: Client, result: JoinResult) -> None:
        if result.reason is Reason.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
        elif result.reason in FORGET_ID:
            client.member_id = NO_MEMBER
        elif result.reason is None:
            client.member_id = result.member_id
            client.joined = result
            client.assignment = None
            assert result.generation >= self.generation, "a generation went back"
            self.generation = max(self.generation, result.generation)
            if result.members:
                key = (self.incarnation, result.generation)
                ids = [member.member_id for member in result.members]
                assert len(set(ids)) == len(ids)
                assert client.member_id in ids
                assert result.leader_id == client.member_id
                if not result.skip_assignment:
                    known = self.leaders.setdefault(key, client.member_id)
                    assert known == client.member_id, "two leaders in one generation"

    def _take_sync(self, client: Client, answer: SyncResult) -> None:
        if answer.reason in FORGET_ID:
            client.member_id, client.joined = NO_MEMBER, None
        elif answer.reason is None:
            client.assignment = answer.assignment

    def _take_commits(self) -> None:
        for partition, offset, box in self.in_flight:
            if not box.waits:
                (reason,) = box.answer.values()
                if reason is None:
                    self.acknowledged[partition] = offset
        self.in_flight = [each for each in self.in_flight if each[2].waits]

    def _join(self, client: Client, *, known_first: bool, skip: bool = False) -> None:
        if client.joining is not None:
            client.abandoned.append(client.joining)
        client.joined = None
        client.joining = self.world.join(
            client.member_id,
            protocols=client.protocols,
            instance_id=client.instance_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            require_known_member_id=known_first,
            can_skip_assignment=skip,
        )
        self._take_answers()

    def _sync(self, client: Client) -> None:
        joined = client.joined
        assert joined is not None
        if client.syncing is not None:
            client.abandoned.append(client.syncing)
        assignments: dict[str, bytes] = {}
        if joined.members and not joined.skip_assignment:
            assignments = {
                member.member_id: b"%d/%d to %s" % (self.incarnation, joined.generation, member.member_id.encode())
                for member in joined.members
            }
        client.syncing = self.world.sync(joined, assignments, instance_id=client.instance_id)
        self._take_answers()

    def _heartbeat(self, client: Client) -> None:
        assert client.joined is not None
        reason = self.world.heartbeat(client.joined, instance_id=client.instance_id)
        if reason in REJOIN:
            client.joined = None
        elif reason in FORGET_ID:
            client.joined, client.member_id = None, NO_MEMBER

    # -- rules

    any_client = st.integers(0, 4)

    @rule(number=any_client, known_first=st.booleans(), skip=st.booleans())
    def join(self, number, known_first, skip) -> None:
        self._join(self.clients[number], known_first=known_first, skip=skip)

    @rule(number=any_client, choice=st.sampled_from(SUBSCRIPTIONS))
    def subscribe_otherwise_and_join(self, number, choice) -> None:
        self.clients[number].protocols = choice
        self._join(self.clients[number], known_first=False)

    @rule(number=any_client)
    def sync(self, number) -> None:
        if self.clients[number].joined is not None:
            self._sync(self.clients[number])

    @rule(number=any_client)
    def heartbeat(self, number) -> None:
        if self.clients[number].joined is not None:
            self._heartbeat(self.clients[number])

    @rule(number=any_client)
    def leave(self, number) -> None:
        client = self.clients[number]
        if client.member_id != NO_MEMBER:
            self.world.leave(client.member_id)
            self._take_answers()
            client.forget()

    @rule(number=any_client)
    def crash(self, number) -> None:
        self.clients[number].forget()

    @rule(number=any_client, partition=st.integers(0, 3), offset=st.integers(0, 1_000))
    def commit(self, number, partition, offset) -> None:
        client = self.clients[number]
        if client.joined is not None and client.assignment is not None:
            box = self.world.commit(offset, partition=partition, member=client.joined, instance_id=client.instance_id)
            self.in_flight.append((partition, offset, box))
            self._take_answers()

    @rule(ms=st.sampled_from([1, 1_000, 3_000, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def let_time_pass(self, ms) -> None:
        self.world.advance(ms)
        self._take_answers()

    @rule()
    @precondition(lambda self: not self.world.log.hold)
    def storage_becomes_slow(self) -> None:
        self.world.log.hold = True

    @rule(loses=st.booleans())
    @precondition(lambda self: self.world.log.hold)
    def storage_catches_up_or_fails(self, loses) -> None:
        self.world.log.hold = False
        self.world.log.lose() if loses else self.world.log.settle()
        self._take_answers()

    @rule()
    def restart(self) -> None:
        """Whatever was waited for is lost with the process."""
        self._take_answers()
        self.world.log.hold = False
        for client in self.clients:
            client.joining = client.syncing = None
            client.abandoned.clear()
        self.in_flight.clear()
        self.world.restart()
        self.incarnation += 1
        # A generation that was not stored may be formed once more, by others.
        self.generation = 0

    # -- invariants

    @invariant()
    def committed_offsets_are_those_last_acknowledged(self) -> None:
        keys = [PartitionKey(TOPIC, partition) for partition in range(4)]
        found = self.world.groups.fetch_offsets(GROUP, keys)
        assert {key.partition: each.offset for key, each in found.items()} == self.acknowledged

    @invariant()
    def the_group_holds_together(self) -> None:
        group = self.world.groups._directory.groups.get(GROUP)
        if group is None:
            return
        assert group.awaiting_join == sum(member.join_done is not None for member in group.members.values())
        assert (group.leader_id in group.members) if group.members else group.leader_id is None
        assert group.static_members == {
            member.instance_id: member.member_id for member in group.members.values() if member.instance_id is not None
        }
        assert all(key == member.member_id for key, member in group.members.items())
        assert group.metadata_bytes == sum(member.metadata_bytes for member in group.members.values())
        assert group.unsynced <= set(group.members)
        for member in group.members.values():
            waits = member.join_done is not None or member.sync_done is not None
            assert waits or member.session.deadline_ms is not None, "a member that nothing would ever remove"
        if group.state is GroupState.EMPTY:
            assert not group.members

    @invariant()
    def who_was_assigned_something_was_assigned_it_by_the_leader_of_that_generation(self) -> None:
        for client in self.clients:
            if client.joined is None or not client.assignment:
                continue
            generation, member_id = client.assignment.split(b" to ")
            assert int(generation.split(b"/")[1]) == client.joined.generation
            # A static member that came back holds what was given to its older self.
            if client.instance_id is None:
                assert member_id.decode() == client.member_id

    @invariant()
    def members_in_the_stable_generation_hold_what_it_says(self) -> None:
        described = self.world.groups.describe(GROUP)
        if described.state is not GroupState.STABLE:
            return
        group = self.world.groups._directory.groups[GROUP]
        for client in self.clients:
            joined = client.joined
            if joined is None or client.assignment is None or joined.generation != group.generation:
                continue
            member = group.members.get(joined.member_id)
            if member is not None:
                assert member.assignment == client.assignment

    # -- the end

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.log.hold = False
        self.world.log.settle()
        self._take_answers()
        waiting = [box for client in self.clients for box in client.abandoned]
        for client in self.clients:
            waiting += [box for box in (client.joining, client.syncing) if box is not None]
        self._run_to_agreement()
        self.world.advance(600_000)
        assert not [box for box in waiting if box.waits], "somebody waits for ever"
        assert self.world.state() in {GroupState.EMPTY, GroupState.DEAD}

    def _run_to_agreement(self) -> None:
        """Clients that behave reach one stable generation, whatever happened before."""
        for client in self.clients:
            client.forget()
            client.protocols = SUBSCRIPTIONS[1]
        for _ in range(60):
            for client in self.clients:
                if client.joining is None and client.joined is None:
                    self._join(client, known_first=True)
                elif client.joined is not None and client.syncing is None and client.assignment is None:
                    self._sync(client)
                elif client.joined is not None:
                    self._heartbeat(client)
            self.world.advance(2_000)
            self._take_answers()
        group = self.world.groups._directory.groups[GROUP]
        assert group.state is GroupState.STABLE
        assert {client.joined.generation for client in self.clients if client.joined is not None} == {group.generation}
        assert sorted(client.member_id for client in self.clients) == sorted(group.members)
        assert all(client.assignment for client in self.clients)
        for client in self.clients:
            client.forget()


GroupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestGroups = GroupMachine.TestCase
