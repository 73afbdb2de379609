"""The ticker meets each deadline at its millisecond, whenever it was set, and sleeps in between. Time is virtual here."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from penstock.core.broker import Broker
from penstock.core.coordinators.deadlines import Timer
from penstock.core.publish import NewRecord
from penstock.core.security.access import INTERNAL
from penstock.core.topics.topics import NewTopic
from penstock.metadata.memory import MemoryStore
from penstock.operations.groups import (
    NO_MEMBER,
    GroupState,
    JoinClassicGroup,
    JoinResult,
    MemberProtocol,
    SyncClassicGroup,
    SyncResult,
)
from penstock.operations.queues import Delivery, Lease
from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.ticker import Ticker
from penstock.settings import LogSettings
from penstock.testing.disk import SimulatedDisk
from penstock.testing.simulation.loop import SimulatedExecutor, SimulatedLoop
from penstock.types import Acks, Flush, GroupId
from tests.support.worlds import DATA_DIR, CountingEntropy, broker_on

GROUP = GroupId("workers")


class LoopClock:
    """The time of a simulated loop."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        # Sums of fractions of a second may lie a little below a whole millisecond.
        return int(self._loop.time() * 1000 + 1e-6)


class World:
    """A broker with a ticker; what is asked of it is asked 250 ms after its start."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(Random(1))
        self.clock = LoopClock(self.loop)
        disk = SimulatedDisk(0)
        disk.make_dirs(DATA_DIR)
        self.ticks = 0
        self.is_busy = False
        self.loop.run_until_complete(self._start(disk))
        self.pass_ms(250 - self.clock.monotonic_ms())

    async def _start(self, disk: SimulatedDisk) -> None:
        self.commit = GroupCommit(self.loop, Flush.OS, 1, SimulatedExecutor(self.loop, 0.0))
        self.broker: Broker = broker_on(
            disk,
            MemoryStore(),
            clock=self.clock,
            entropy=CountingEntropy(),
            flusher=self.commit,
            reports=[],
            log=LogSettings(flush=Flush.OS),
        )
        await self.broker.start()
        await self.broker.topics.create(NewTopic("orders", 1))
        self.broker.timed.append(self)
        self.ticker = Ticker(self.broker)
        self.ticker.start()

    def next_deadline_ms(self) -> int | None:
        self.ticks += 1
        return self.clock.monotonic_ms() if self.is_busy else None

    def tick(self, now_ms: int) -> None:
        assert self.is_busy, "it is not due"

    def pass_ms(self, milliseconds: int) -> None:
        async def wait() -> None:
            done = self.loop.create_future()
            self.loop.call_later(milliseconds / 1000, done.set_result, None)
            await done

        self.loop.run_until_complete(wait())

    def when(self, condition: Callable[[], object], within_ms: int = 20_000) -> int:
        """The first millisecond, from now on, at whose end this is so."""
        began_ms = self.clock.monotonic_ms()
        while not condition():
            assert self.clock.monotonic_ms() - began_ms < within_ms
            self.pass_ms(1)
        return self.clock.monotonic_ms() - began_ms

    def produce(self) -> None:
        self.broker.publisher.publish(INTERNAL, "orders", [NewRecord(None, b"x")], Acks.NONE, lambda _: None)
        self.pass_ms(20)

    def lease(self, lease_ms: int, wait_ms: int = 0) -> list[list[Delivery]]:
        """Where the answer is going to be."""
        answers: list[list[Delivery]] = []
        self.broker.queues.lease(Lease("orders", GROUP, "a", 1, lease_ms, wait_ms), answers.append)
        # The end of the turn, which hands out what there is.
        self.pass_ms(0)
        return answers


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.ticker.stop()
    world.broker.close()
    world.loop.close()


@pytest.mark.parametrize("wait_ms", [1, 7, 50, 99, 100, 101, 1234])
def test_a_deadline_is_met_at_its_millisecond(world: World, wait_ms: int) -> None:
    fired: list[int] = []
    timer = Timer(lambda: fired.append(world.clock.monotonic_ms()))
    world.pass_ms(33)
    due_ms = world.clock.monotonic_ms() + wait_ms
    world.broker.groups.deadlines.set(timer, due_ms)
    world.pass_ms(2000)
    assert fired == [due_ms]


def test_a_deadline_that_is_brought_forward_is_met_at_the_new_time(world: World) -> None:
    fired: list[int] = []
    timer = Timer(lambda: fired.append(world.clock.monotonic_ms()))
    now_ms = world.clock.monotonic_ms()
    world.broker.groups.deadlines.set(timer, now_ms + 90)
    world.pass_ms(10)
    world.broker.groups.deadlines.set(timer, now_ms + 20)
    world.pass_ms(500)
    assert fired == [now_ms + 20]


def test_a_deadline_that_a_tick_sets_is_met_though_its_rules_had_their_turn(world: World) -> None:
    fired: list[int] = []
    now_ms = world.clock.monotonic_ms()
    groups = Timer(lambda: fired.append(world.clock.monotonic_ms()))
    # Groups come before queues in a tick.
    queues = Timer(lambda: world.broker.groups.deadlines.set(groups, now_ms + 43))
    world.broker.queues._context.deadlines.set(queues, now_ms + 40)
    world.pass_ms(500)
    assert fired == [now_ms + 43]


def test_a_deadline_is_met_while_other_rules_have_work_left_over(world: World) -> None:
    fired: list[int] = []
    timer = Timer(lambda: fired.append(world.clock.monotonic_ms()))
    # It always says that it is due.
    world.is_busy = True
    world.pass_ms(100)
    due_ms = world.clock.monotonic_ms() + 12
    world.broker.groups.deadlines.set(timer, due_ms)
    before = world.ticks
    world.pass_ms(100)
    assert fired == [due_ms]
    assert world.ticks - before <= 2 * 22, "every five milliseconds, and asked twice each time"


def test_a_session_ends_at_its_millisecond(world: World) -> None:
    joined: list[JoinResult] = []
    synced: list[SyncResult] = []
    groups = world.broker.groups
    request = JoinClassicGroup(
        group=GROUP,
        member_id=NO_MEMBER,
        client_id="c",
        client_host="h",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(MemberProtocol("range", b""),),
        require_known_member_id=False,
    )
    groups.join(request, joined.append)
    world.when(lambda: joined)
    member, generation = joined[0].member_id, joined[0].generation
    groups.sync(SyncClassicGroup(GROUP, member, generation, {member: b""}), synced.append)
    world.when(lambda: synced)
    world.pass_ms(1_007)
    assert groups.heartbeat(GROUP, member, generation) is None
    assert world.when(lambda: groups.describe(GROUP).state is not GroupState.STABLE) == 6_000


@pytest.mark.parametrize("lease_ms", [10, 35, 99, 3000])
def test_a_lease_ends_at_its_millisecond(world: World, lease_ms: int) -> None:
    world.produce()
    (got,) = world.lease(lease_ms)
    queue = world.broker.queues._queues["orders", GROUP]
    assert (len(got), queue.leased) == (1, 1)
    assert world.when(lambda: queue.leased == 0) == lease_ms


@pytest.mark.parametrize("wait_ms", [3, 35, 99, 3000])
def test_a_call_that_waits_for_records_is_answered_when_its_time_is_over(world: World, wait_ms: int) -> None:
    answers = world.lease(1000, wait_ms)
    assert world.when(lambda: answers) == wait_ms
    assert answers == [[]]


def test_the_ticker_sleeps_while_nothing_is_due(world: World) -> None:
    for _ in range(100):
        # Each of them is later than what the ticker waits for.
        world.broker.groups.deadlines.set(Timer(), world.clock.monotonic_ms() + 60_000)
    before = world.ticks
    world.pass_ms(10_000)
    assert world.ticks - before <= 101, "ten times a second, and twice for the meters' sample at the most"


def test_records_that_stream_into_a_queue_do_not_wake_it_for_each(world: World) -> None:
    world.lease(1000)
    world.pass_ms(20)
    before = world.ticks
    for _ in range(100):
        for _ in range(10):
            world.broker.publisher.publish(INTERNAL, "orders", [NewRecord(None, b"x")], Acks.NONE, lambda _: None)
        world.pass_ms(1)
    assert world.ticks - before <= 25
