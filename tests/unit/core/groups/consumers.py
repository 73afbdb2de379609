"""Consumers of one group on a simulated network and clock: what the group model lets loose on the coordinator.

A consumer does what the clients of Kafka do: it joins, syncs, sends heartbeats, and joins again when an answer tells it to.
Its requests arrive in order, later than they were sent; a request or its answer can be lost, and then it asks again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple, Protocol, TypeVar

from penstock.errors import Reason
from penstock.operations.groups import NO_MEMBER, JoinResult, MemberProtocol, SyncResult
from tests.unit.core.groups.world import TOPIC, subscription

HEARTBEAT_MS = 2_000
SUBSCRIPTIONS = (
    (MemberProtocol("range", subscription(TOPIC)),),
    (MemberProtocol("range", subscription(TOPIC, "other")), MemberProtocol("sticky", b"opaque")),
    (MemberProtocol("sticky", b"more"), MemberProtocol("range", subscription(TOPIC))),
)
LATENCIES_MS = (0, 0, 1, 2, 5, 30)

T = TypeVar("T")


class Timeouts(NamedTuple):
    """What all consumers of a group are configured with."""

    session_ms: int
    rebalance_ms: int

    @property
    def answer_ms(self) -> int:
        """After this long a consumer asks again."""
        return self.rebalance_ms + 2_000


class Schedule:
    """What happens next, and when, in virtual milliseconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    def add(self, at_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ms, self._sequence, action))

    @property
    def next_ms(self) -> int:
        return self._heap[0][0]

    def pop(self) -> tuple[int, Callable[[], None]]:
        at_ms, _, action = heappop(self._heap)
        return at_ms, action


class Network:
    """Carries requests to the coordinator and answers back; it loses some while ``loses`` is set."""

    def __init__(self, random: Random, schedule: Schedule, now_ms: Callable[[], int], timeouts: Timeouts) -> None:
        self.random = random
        self.timeouts = timeouts
        self.schedule = schedule
        self.now_ms = now_ms
        self.loses = True

    def send(self, not_before_ms: int, action: Callable[[], None]) -> int:
        """Do ``action`` at the other end, perhaps; returns when it would arrive."""
        at_ms = max(not_before_ms, self.now_ms() + self.random.choice(LATENCIES_MS))
        if not (self.loses and self.random.random() < 0.04):
            self.schedule.add(at_ms, action)
        return at_ms


class Join(NamedTuple):
    """What a join says."""

    member_id: str
    protocols: tuple[MemberProtocol, ...]


class Broker(Protocol):
    """The coordinator as consumers reach it. Each answer is given once."""

    def join(self, consumer: "Consumer", asked: "Join", answered: Callable[[JoinResult], None]) -> None: ...

    def sync(
        self, consumer: "Consumer", joined: JoinResult, given: dict[str, bytes], answered: Callable[[SyncResult], None]
    ) -> None: ...

    def heartbeat(self, consumer: "Consumer", joined: JoinResult) -> Reason | None: ...

    def leave(self, consumer: "Consumer", member_id: str) -> None: ...


@dataclass(eq=False)
class Consumer:
    """One process. ``name`` is what tells it apart from all others, restarts of itself included."""

    name: str
    network: Network
    broker: Broker
    instance_id: str | None
    takes_id_first: bool
    can_skip_assignment: bool
    protocols: tuple[MemberProtocol, ...]
    member_id: str = NO_MEMBER
    joined: JoinResult | None = None
    places: list[JoinResult] = field(default_factory=list)
    """All that it ever joined."""
    assignment: bytes | None = None
    alive: bool = True
    subscribed: bool = False
    fenced: bool = False
    paused: bool = False
    _attempt: int = 0
    """Answers to earlier attempts are ignored, as after a reconnection."""
    _arrives_ms: int = 0
    _assigned: int = 0

    # -- what its application does

    def join(self) -> None:
        """Join, or join again with what it subscribes to now."""
        self.subscribed = True
        self.joined = self.assignment = None
        asked = Join(self.member_id, self.protocols)
        self._ask(lambda answered: self.broker.join(self, asked, answered), self._take_join)

    def leave(self) -> None:
        """Unsubscribe: leave the group and stay alive."""
        member_id, self.member_id = self.member_id, NO_MEMBER
        self.subscribed, self.joined, self.assignment = False, None, None
        self._attempt += 1
        if member_id != NO_MEMBER:
            self._arrives_ms = self.network.send(self._arrives_ms, lambda: self.broker.leave(self, member_id))

    def crash(self) -> None:
        """End without a word."""
        self.alive = self.subscribed = False
        self._attempt += 1

    def reconnect(self) -> None:
        """Lose the connection, and with it the answer to what was asked."""
        if self.subscribed:
            self.join()

    # -- requests and answers

    def _ask(
        self,
        call: Callable[[Callable[[T], None]], None],
        take: Callable[[T], None],
        give_up: Callable[[], None] | None = None,
    ) -> None:
        self._attempt += 1
        attempt = self._attempt

        def arrives(answer: T) -> None:
            if self._attempt == attempt and self.alive:
                self._attempt += 1
                take(answer)

        def gives_up() -> None:
            if self._attempt == attempt and self.alive:
                (give_up or self.join)()

        self._arrives_ms = self.network.send(
            self._arrives_ms, lambda: call(lambda answer: void(self.network.send(0, lambda: arrives(answer))))
        )
        self.network.schedule.add(self.network.now_ms() + self.network.timeouts.answer_ms, gives_up)

    def _take_join(self, result: JoinResult) -> None:
        if result.reason is not None:
            if result.reason is Reason.MEMBER_ID_REQUIRED:
                self.member_id = result.member_id
            self._start_over(result.reason)
            return
        self.member_id, self.joined = result.member_id, result
        self.places.append(result)
        given: dict[str, bytes] = {}
        if result.members and not result.skip_assignment:
            self._assigned += 1
            given = {
                each.member_id: f"{result.generation} {self.name}#{self._assigned} {identity(each)}".encode()
                for each in result.members
            }
        self._ask(lambda answered: self.broker.sync(self, result, given, answered), self._take_sync)

    def _take_sync(self, result: SyncResult) -> None:
        if result.reason is not None:
            self._start_over(result.reason)
            return
        self.assignment = result.assignment
        self._schedule_heartbeat()

    def _schedule_heartbeat(self) -> None:
        joined, attempt = self.joined, self._attempt
        assert joined is not None

        def beat() -> None:
            if self._attempt != attempt or not self.alive:
                return
            if self.paused:
                self.network.schedule.add(self.network.now_ms() + HEARTBEAT_MS, beat)
                return
            self._ask(
                lambda answered: answered(self.broker.heartbeat(self, joined)),
                self._take_heartbeat,
                give_up=self._schedule_heartbeat,
            )

        self.network.schedule.add(self.network.now_ms() + HEARTBEAT_MS, beat)

    def _take_heartbeat(self, reason: Reason | None) -> None:
        if reason is None:
            self._schedule_heartbeat()
        else:
            self._start_over(reason)

    def _start_over(self, reason: Reason) -> None:
        if reason is Reason.FENCED_INSTANCE_ID:
            self.fenced = True
            self.crash()
            return
        if reason is Reason.UNKNOWN_MEMBER_ID:
            self.member_id = NO_MEMBER
        self.join()


def identity(member: object) -> str:
    """What a member is known by over restarts: its instance id, else its member id."""
    instance_id: str | None = getattr(member, "instance_id", None)
    return instance_id if instance_id is not None else str(getattr(member, "member_id", ""))


def void(_: object) -> None:
    """Drop a value."""
