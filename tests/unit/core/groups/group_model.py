"""One group under two or three consumers that join, change, leave, crash and come back at the same time, from a seed.

The model sees every request when it reaches the coordinator and every answer when it is given, and checks what must hold
whatever happens (:class:`Watched`). :func:`run` ends each history with a quiet time, after which the group must be stable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from penstock.core.groups.group import Group
from penstock.core.groups.stored import read_group
from penstock.errors import Reason
from penstock.operations.groups import NO_MEMBER, GroupState, JoinResult, LeavingMember, SyncResult
from penstock.settings import GroupSettings
from penstock.types import MemberId
from tests.unit.core.groups.consumers import (
    HEARTBEAT_MS,
    SUBSCRIPTIONS,
    Consumer,
    Join,
    Network,
    Schedule,
    Timeouts,
    identity,
    void,
)
from tests.unit.core.groups.world import GROUP, World

HOLD_MS = 400
"""The longest that a write of the log takes."""
TIMEOUTS = (Timeouts(session_ms=6_000, rebalance_ms=8_000), Timeouts(session_ms=12_000, rebalance_ms=4_000))


TROUBLE = ("join", "join", "leave", "change", "crash", "twin", "reconnect", "pause", "remove", "slow", "late")


@dataclass(eq=False)
class Asked:
    """A join or a sync that reached the coordinator."""

    consumer: Consumer
    member_id: str
    since_ms: int
    reason: Reason | None = None
    is_answered: bool = False


class Watched:
    """The coordinator, with everything that is asked of it and answered by it checked.

    - A member id is given to one consumer, once.
    - A generation has one set of members and one leader, and numbers only rise.
    - The dynamic members of a generation are those that joined it. A member that left is in no later one.
    - A generation begins as soon as the last member has joined.
    - All members of a generation get what one sync of its leader gave them.
    - A join or sync is answered within the rebalance timeout, or the initial delay where that is longer.
    - A consumer that was replaced under its instance id is refused with FENCED_INSTANCE_ID while the new one is a member.
    - Heartbeats and syncs succeed in the latest generation alone.
    - A stable group is stored as it is.
    - A member that waits for nothing is removed when its session ends.
    """

    def __init__(self, world: World, timeouts: Timeouts) -> None:
        self.world = world
        self.timeouts = timeouts
        self.asked: list[Asked] = []
        self.generation = 0
        self.owners: dict[str, Consumer] = {}
        self.gone: set[str] = set()
        """Members that left or were replaced: ids that may do nothing any more."""
        self.members: dict[int, frozenset[str]] = {}
        self.leaders: dict[int, str] = {}
        self.joined: dict[str, int] = {}
        """The latest generation that each member was told of."""
        self.formed: list[JoinResult] = []
        """What leaders were told since the last event."""
        self.assigned: dict[int, str] = {}
        self.stored = b""

    # -- requests

    def join(self, consumer: Consumer, join: Join, answered: Callable[[JoinResult], None]) -> None:
        asked = self._note(consumer, join.member_id)
        instance_id = consumer.instance_id
        if instance_id is None or join.member_id != NO_MEMBER:
            self._call_join(asked, join, answered)
            if join.member_id in self.gone:
                self._check_refused(consumer, asked.reason)
            return
        is_replaced = self._holder(instance_id) is not None
        waiting = [each for each in self.asked if each is not asked and each.consumer.instance_id == instance_id]
        self.gone.update(key for key, owner in self.owners.items() if owner.instance_id == instance_id)
        self._call_join(asked, join, answered)
        if is_replaced:
            assert all(each.reason is Reason.FENCED_INSTANCE_ID for each in waiting), "a replaced consumer still waits"

    def _call_join(self, asked: Asked, join: Join, answered: Callable[[JoinResult], None]) -> None:
        consumer = asked.consumer

        def take(result: JoinResult) -> None:
            self._answered(asked, result.reason)
            self._check_join(asked, result)
            answered(result)

        self.world.join(
            join.member_id,
            protocols=join.protocols,
            instance_id=consumer.instance_id,
            session_timeout_ms=self.timeouts.session_ms,
            rebalance_timeout_ms=self.timeouts.rebalance_ms,
            client_id=consumer.name,
            require_known_member_id=consumer.takes_id_first,
            can_skip_assignment=consumer.can_skip_assignment,
            done=take,
        )

    def sync(
        self, consumer: Consumer, joined: JoinResult, given: dict[str, bytes], answered: Callable[[SyncResult], None]
    ) -> None:
        asked = self._note(consumer, joined.member_id)

        def take(result: SyncResult) -> None:
            self._answered(asked, result.reason)
            if result.reason is None:
                self._check_current(joined)
                generation, sync, member = result.assignment.decode().split(" ")
                assert int(generation) == joined.generation, "an assignment of another generation"
                assert member == identity(consumer if consumer.instance_id else joined), (
                    "the assignment of another member"
                )
                assert self.assigned.setdefault(joined.generation, sync) == sync, "two assignments in one generation"
            answered(result)

        self.world.sync(joined, given, instance_id=consumer.instance_id, done=take)
        if joined.member_id in self.gone:
            self._check_refused(consumer, asked.reason)

    def heartbeat(self, consumer: Consumer, joined: JoinResult) -> Reason | None:
        reason = self.world.heartbeat(joined, instance_id=consumer.instance_id)
        if joined.member_id in self.gone:
            self._check_refused(consumer, reason)
        elif reason is None:
            self._check_current(joined)
        return reason

    def leave(self, consumer: Consumer, member_id: str) -> None:
        (reason,) = self.world.groups.leave(GROUP, [LeavingMember(MemberId(member_id), consumer.instance_id)])
        if member_id in self.gone:
            self._check_refused(consumer, reason)
        elif reason is None:
            self._left(member_id)

    def remove(self, instance_id: str) -> None:
        """An administrator removes a static member."""
        held = self._holder(instance_id)
        (reason,) = self.world.groups.leave(GROUP, [LeavingMember(NO_MEMBER, instance_id)])
        assert (reason is None) == (held is not None)
        if held is not None:
            self._left(held)

    # -- checks

    def _note(self, consumer: Consumer, member_id: str) -> Asked:
        asked = Asked(consumer, member_id, self.world.clock.monotonic)
        self.asked.append(asked)
        return asked

    def _answered(self, asked: Asked, reason: Reason | None) -> None:
        assert not asked.is_answered, "answered twice"
        asked.is_answered, asked.reason = True, reason
        self.asked.remove(asked)

    def _left(self, member_id: str) -> None:
        self.gone.add(member_id)
        assert not [each for each in self.asked if each.member_id == member_id], (
            "a member that left waits for an answer"
        )

    def _holder(self, instance_id: str) -> str | None:
        members = self.world.groups.describe(GROUP).members
        return next((each.member_id for each in members if each.instance_id == instance_id), None)

    def _check_refused(self, consumer: Consumer, reason: Reason | None) -> None:
        fenced = consumer.instance_id is not None and self._holder(consumer.instance_id) is not None
        assert reason is (Reason.FENCED_INSTANCE_ID if fenced else Reason.UNKNOWN_MEMBER_ID)

    def _check_current(self, joined: JoinResult) -> None:
        assert joined.generation == self.generation, "an old generation is accepted"
        assert joined.member_id not in self.gone, "a member that is gone is accepted"

    def _check_join(self, asked: Asked, result: JoinResult) -> None:
        if result.reason is not None and result.reason is not Reason.MEMBER_ID_REQUIRED:
            return
        if asked.member_id == NO_MEMBER:
            assert result.member_id not in self.owners, "a member id is given twice"
            self.owners[result.member_id] = asked.consumer
        assert self.owners[result.member_id] is asked.consumer
        if result.reason is not None:
            return
        assert result.generation >= self.generation, "a generation went back"
        self.generation = self.joined[result.member_id] = result.generation
        assert result.leader_id == result.member_id if result.members else result.leader_id
        if result.members:
            self._check_members(result)

    def _check_members(self, result: JoinResult) -> None:
        ids = [each.member_id for each in result.members]
        assert len(set(ids)) == len(ids), "a member is listed twice"
        names = frozenset(identity(each) for each in result.members)
        assert len(names) == len(ids), "an instance id is listed twice"
        assert result.member_id in ids
        assert not self.gone & set(ids), "a member that is gone is in a new generation"
        assert self.members.setdefault(result.generation, names) == names, "the members of a generation changed"
        self.formed.append(result)
        leader = next(identity(each) for each in result.members if each.member_id == result.member_id)
        assert self.leaders.setdefault(result.generation, leader) == leader, "two leaders in one generation"

    def check(self) -> None:
        """What holds between any two events."""
        now_ms = self.world.clock.monotonic
        limit_ms = max(self.timeouts.rebalance_ms, self.world.settings.initial_rebalance_delay_ms) + HOLD_MS
        for each in self.asked:
            assert now_ms - each.since_ms <= limit_ms, f"{each.consumer.name} waits too long for an answer"
        for told in self.formed:
            for each in told.members:
                joined = self.joined.get(each.member_id)
                assert each.instance_id is not None or joined == told.generation, (  # type: ignore[attr-defined]
                    "a member that did not join is in a generation"
                )
        self.formed.clear()
        group = self.world.groups._directory.groups.get(GROUP)
        if group is not None:
            self._check_group(group, now_ms)

    def _check_group(self, group: Group, now_ms: int) -> None:
        if group.state is GroupState.STABLE and not self.world.log.hold:
            self._check_stored(group)
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is None:
            joining = [each for each in group.members.values() if each.join_done is not None]
            assert group.pending or len(joining) < len(group.members), "all joined, and no generation begins"
        for each in group.members.values():
            if each.join_done is None and each.sync_done is None:
                assert each.session.deadline_ms is not None, "a member has no session"
                assert now_ms <= each.session.deadline_ms <= now_ms + self.timeouts.session_ms, "a session is too long"

    def _check_stored(self, group: Group) -> None:
        _, value = self.world.log.records[group.partition][-1]
        if value is self.stored:
            return
        assert value is not None
        self.stored = value
        stored = read_group(value)
        assert stored.generation == group.generation
        assert {each.member_id: each.assignment for each in stored.members} == {
            each.member_id: each.assignment for each in group.members.values()
        }, "a restart would give members another assignment"


class Model:
    """A group, its consumers and the trouble they make."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.world = World(settings=GroupSettings(initial_rebalance_delay_ms=random.choice((0, 0, 500, 3_000))))
        timeouts = random.choice(TIMEOUTS)
        self.watched = Watched(self.world, timeouts)
        self.schedule = Schedule()
        self.network = Network(random, self.schedule, self.world.clock.monotonic_ms, timeouts)
        self.events = 0
        self.started = 0
        statics = random.choice((0, 1, 2, 3))
        self.seats = [f"static-{n}" if n < statics else None for n in range(random.choice((2, 3, 3)))]
        self.consumers = [self._start(seat) for seat in self.seats]
        """The newest consumer of each seat."""
        self.older: list[Consumer] = []

    def _start(self, instance_id: str | None) -> Consumer:
        self.started += 1
        return Consumer(
            name=f"c{self.started}",
            network=self.network,
            broker=self.watched,
            instance_id=instance_id,
            takes_id_first=self.random.random() < 0.7,
            can_skip_assignment=self.random.random() < 0.5,
            protocols=self.random.choice(SUBSCRIPTIONS),
        )

    def step(self) -> None:
        """The next event at its time: a message arrives, a consumer acts, or a deadline of the coordinator passes."""
        clock = self.world.clock
        due_ms = max(clock.monotonic, self.world.groups.next_deadline_ms())
        if due_ms <= self.schedule.next_ms:
            clock.move(due_ms - clock.monotonic)
            self.world.groups.tick(due_ms)
        else:
            at_ms, action = self.schedule.pop()
            clock.move(at_ms - clock.monotonic)
            action()
        self.watched.check()
        self.events += 1

    def trouble(self) -> None:
        """Something happens to one of the consumers, and then to another, until it is quiet."""
        if not self.network.loses:
            return
        self._trouble_for(self.random.randrange(len(self.seats)))
        pause_ms = self.random.choice((0, 0, 0, 1, 3, 10, 100, 1_000, 3_000))
        self.schedule.add(self.world.clock.monotonic + pause_ms, self.trouble)

    def _trouble_for(self, seat: int) -> None:
        consumer = self.consumers[seat]
        kind = self.random.choice(TROUBLE)
        if kind == "slow":
            self._slow_log()
        elif kind == "remove" and consumer.instance_id is not None:
            self.watched.remove(consumer.instance_id)
        elif kind in ("crash", "twin") or not consumer.alive:
            if kind == "crash":
                consumer.crash()
            self.older.append(consumer)
            self.consumers[seat] = self._start(consumer.instance_id)
            self.consumers[seat].join()
        elif kind == "late" and (places := [p for p in consumer.places if p.generation < self.watched.generation]):
            # Requests from an earlier generation arrive; the checks allow no success.
            place = self.random.choice(places)
            self.watched.heartbeat(consumer, place)
            self.watched.sync(consumer, place, {}, void)
        elif kind == "leave":
            consumer.leave()
        elif kind == "reconnect":
            consumer.reconnect()
        elif kind == "pause":
            consumer.paused = not consumer.paused
        elif not consumer.subscribed or kind == "change":
            consumer.protocols = self.random.choice(SUBSCRIPTIONS)
            consumer.join()

    def _slow_log(self) -> None:
        def settle() -> None:
            self.world.log.hold = False
            self.world.log.settle()

        if not self.world.log.hold:
            self.world.log.hold = True
            self.schedule.add(self.world.clock.monotonic + self.random.randint(1, HOLD_MS), settle)

    # -- the end

    def quiet(self) -> None:
        """Nothing is lost any more, and each seat has one consumer that wants to be in the group."""
        timeouts = self.network.timeouts
        self.network.loses = False
        for consumer in self.older:
            consumer.crash()
        for consumer in self.consumers:
            consumer.paused = False
        # An older consumer may have fenced a newer one, which learns it from the next answer.
        self._pass(2 * timeouts.answer_ms)
        for seat, consumer in enumerate(self.consumers):
            if not consumer.alive:
                assert consumer.fenced
                self.consumers[seat] = self._start(consumer.instance_id)
            if not self.consumers[seat].subscribed:
                self.consumers[seat].join()
        self._pass(2 * (timeouts.rebalance_ms + timeouts.session_ms))
        generation = self.watched.generation
        self._pass(2 * timeouts.session_ms)
        assert self.watched.generation == generation, "a quiet group rebalances"
        self._check_stable()

    def _pass(self, ms: int) -> None:
        over: list[bool] = []
        self.schedule.add(self.world.clock.monotonic + ms, partial(over.append, True))
        while not over:
            self.step()

    def _check_stable(self) -> None:
        described = self.world.groups.describe(GROUP)
        assert described.state is GroupState.STABLE
        assert not self.watched.asked, "a request waits in a stable group"
        held = {each.member_id: each.assignment for each in described.members}
        assert held == {each.member_id: each.assignment for each in self.consumers}, (
            "a member or its assignment is missing"
        )
        assert all(held.values())
        for each in self.consumers:
            assert each.joined is not None
            assert each.joined.generation == self.watched.generation
        live = {identity(each) for each in self.consumers}
        assert self.watched.leaders[self.watched.generation] in live, "the leader is not a member"

    def empty(self) -> None:
        """Everybody leaves at once, and nothing remains."""
        for consumer in self.consumers:
            consumer.leave()
        self._pass(HEARTBEAT_MS)
        assert self.world.state() in {GroupState.EMPTY, GroupState.DEAD}
        assert not self.watched.asked


def run(seed: int, events: int) -> Model:
    """A history with so many events of trouble, and its quiet end."""
    model = Model(seed)
    for consumer in model.consumers:
        consumer.join()
    model.schedule.add(model.world.clock.monotonic, model.trouble)
    while model.events < events:
        model.step()
    model.quiet()
    model.empty()
    return model
