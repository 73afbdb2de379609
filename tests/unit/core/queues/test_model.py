"""Queues against a simple model, under a virtual clock, with kills and losses of power in between.

What always holds: an acked record is never delivered again; no record is leased to two at once; a lease comes again only to its owner, as the same
attempt, when the stream that had it has ended; attempts count deliveries; the floor passes nothing that is unfinished; a record dies at most once; and in the end every record was acked or died.
"""

import os
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import PenstockError, Reason
from penstock.operations.queues import Ack, Consume, Delivery, Extend, Nack
from tests.unit.core.queues.world import TOPIC, Answers, Owner, World, header

GROUPS = ("g", "h")
OWNERS = ("a", "b", "c")
PARTITIONS = 2
LEASE_MS = 100
STEP_MS = 10
"""How far the clock moves before the model looks again."""
EXAMPLES = int(os.environ.get("QUEUE_EXAMPLES", "40"))
"""The default fits the whole test run; thousands are for a night."""

Place = tuple[str, int, int]
"""Group, partition, offset."""


@dataclass
class Known:
    """What the model knows of a record in a group."""

    deliveries: int = 0
    deliveries_min: int = 0
    """After a loss of power the broker may have forgotten deliveries that it had not made durable."""
    owner: str | None = None
    stream: Owner | None = None
    """The open stream that it was sent to; None for a call, and when the stream has ended."""
    until_ms: int = 0
    acked: bool = False
    ack_sent: bool = False
    perhaps_acked: bool = False
    """An ack was sent, and the process ended before the answer."""
    not_before_ms: int = 0

    def lose_lease(self, *, lost_power: bool) -> None:
        """A call for this and other records was refused. Of those that may have been acked before it is known why; any other one is
        leased still, unless a loss of power took its lease, which nobody knows."""
        if self.perhaps_acked:
            self.owner = None
        elif lost_power:
            self.owner = None
            self.deliveries_min = min(self.deliveries_min, self.deliveries - 1)


@dataclass
class Sent:
    """What a record says of itself."""

    max_attempts: int = 0
    backoff_ms: int = 0


@dataclass
class SentAck:
    """An ack on its way."""

    places: list[Place]
    answers: Answers = field(default_factory=Answers)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World().boot()
        self.world.create(TOPIC, PARTITIONS)
        self.sent: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
        self.known: dict[Place, Known] = {}
        self.workers: list[tuple[str, Owner]] = []
        self.acks: list[SentAck] = []

    def teardown(self) -> None:
        try:
            self.finish_everything()
        finally:
            self.world.close()

    # -- the model

    def of(self, place: Place) -> Known:
        return self.known.setdefault(place, Known())

    def now(self) -> int:
        return self.world.clock.now_ms()

    def took(self, group: str, owner: str, deliveries: list[Delivery], stream: Owner | None = None) -> None:
        for delivery in deliveries:
            place = (group, delivery.partition, delivery.offset)
            known = self.of(place)
            assert not known.acked, f"{place} was acked and came again"
            if known.owner is not None and known.until_ms > self.now():
                self.took_again(place, known, owner, delivery, stream)
                continue
            assert known.deliveries_min < delivery.attempts <= known.deliveries + 1, (place, known, delivery.attempts)
            assert self.now() >= known.not_before_ms, f"{place} came before its backoff was over"
            limit = self.sent[delivery.partition][delivery.offset].max_attempts
            assert not limit or delivery.attempts <= limit, f"{place} had had its attempts"
            is_new = self.now() + LEASE_MS - STEP_MS <= delivery.lease_until_ms <= self.now() + LEASE_MS
            assert is_new or (delivery.attempts, delivery.lease_until_ms) == (known.deliveries, known.until_ms)
            known.deliveries = known.deliveries_min = delivery.attempts
            known.owner, known.until_ms, known.not_before_ms = owner, delivery.lease_until_ms, 0
            known.stream = stream

    def took_again(self, place: Place, known: Known, owner: str, delivery: Delivery, stream: Owner | None) -> None:
        """A lease came once more."""
        assert known.owner == owner, f"{place} is leased to {known.owner} and {owner}"
        assert stream is not None, f"{place} came again to a call"
        assert known.stream is None, f"{place} is with another open stream of {owner}"
        assert delivery.attempts == known.deliveries, (place, known, delivery.attempts)
        assert delivery.lease_until_ms == known.until_ms
        known.stream = stream

    def collect(self) -> None:
        """What came of the last turn."""
        for group, owner in self.workers:
            self.took(group, owner.name, owner.take(), owner)
        for ack in list(self.acks):
            if not ack.answers.waits:
                self.acks.remove(ack)
                assert ack.answers.reason is None
                for place in ack.places:
                    self.of(place).acked = True
                    self.of(place).owner = None

    def turn(self) -> None:
        self.world.turn()
        self.collect()

    def held(self, group: str, owner: str) -> list[Place]:
        return sorted(
            place
            for place, known in self.known.items()
            if place[0] == group and known.owner == owner and known.until_ms > self.now() and not known.ack_sent
        )

    def all_held(self) -> list[Place]:
        return sorted(
            place
            for place, known in self.known.items()
            if known.owner is not None and known.until_ms > self.now() and not known.ack_sent
        )

    # -- what clients do

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        count=st.integers(1, 150),
        max_attempts=st.sampled_from([0, 0, 1, 2]),
        backoff_ms=st.sampled_from([0, 0, 30]),
    )
    def produce(self, partition: int, count: int, max_attempts: int, backoff_ms: int) -> None:
        headers = []
        if max_attempts:
            headers.append(("penstock.max_attempts", str(max_attempts).encode()))
        if backoff_ms:
            headers.append(("penstock.backoff_ms", str(backoff_ms).encode()))
        # Before the call: workers get the records while it runs.
        self.sent[partition] += [Sent(max_attempts, backoff_ms) for _ in range(count)]
        self.world.produce(count, partition=partition, headers=tuple(headers))
        self.collect()

    @precondition(lambda self: len(self.workers) < 4)
    @rule(
        group=st.sampled_from(GROUPS), owner=st.sampled_from(OWNERS), credit=st.integers(0, 50), releases=st.booleans()
    )
    def attach(self, group: str, owner: str, credit: int, releases: bool) -> None:
        made = Owner(owner)
        self.workers.append((group, made))
        consume = Consume(credit, TOPIC, group, owner, LEASE_MS, release_on_disconnect=releases)
        made.worker = self.world.queues.attach(consume, made.got.extend, made.gone.append)
        made.releases = releases
        self.turn()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), count=st.integers(1, 60), turn=st.booleans())
    def grant(self, data: st.DataObject, count: int, turn: bool) -> None:
        _, owner = data.draw(st.sampled_from(self.workers))
        assert owner.worker is not None
        owner.worker.grant(count)
        if turn:
            self.turn()

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.workers) - 1))
        self.end(self.workers.pop(at)[1])
        self.turn()

    def end(self, owner: Owner) -> None:
        """A stream ends."""
        assert owner.worker is not None
        owner.worker.close()
        for known in self.known.values():
            if known.stream is owner:
                known.stream = None
                is_held = known.owner is not None and known.until_ms > self.now()
                if owner.releases and is_held and not known.ack_sent:
                    # Free at once, and as if it had not been delivered.
                    known.owner = None
                    known.deliveries -= 1
                    known.deliveries_min = max(0, known.deliveries_min - 1)

    @rule(group=st.sampled_from(GROUPS), owner=st.sampled_from(OWNERS), count=st.integers(1, 40))
    def lease(self, group: str, owner: str, count: int) -> None:
        name = f"{owner}-call"
        got = self.world.lease(name, group=group, max_records=count, lease_ms=LEASE_MS)
        self.took(group, name, got)
        self.collect()

    @precondition(lambda self: self.all_held())
    @rule(data=st.data(), turn=st.booleans())
    def ack(self, data: st.DataObject, turn: bool) -> None:
        first = data.draw(st.sampled_from(self.all_held()))
        owner = self.of(first).owner
        assert owner is not None
        same = [place for place in self.held(first[0], owner) if place[1] == first[1]]
        places = data.draw(st.lists(st.sampled_from(same), min_size=1, max_size=30, unique=True))
        self.send_ack(places, owner, turn)

    @precondition(lambda self: self.all_held())
    @rule(data=st.data(), turn=st.booleans())
    def ack_all_of_an_owner(self, data: st.DataObject, turn: bool) -> None:
        first = data.draw(st.sampled_from(self.all_held()))
        owner = self.of(first).owner
        assert owner is not None
        self.send_ack([place for place in self.held(first[0], owner) if place[1] == first[1]], owner, turn)

    def send_ack(self, places: list[Place], owner: str, turn: bool) -> None:
        ack = SentAck(places)
        group, partition, _ = places[0]
        try:
            self.world.queues.ack(Ack(TOPIC, group, owner, partition, [p[2] for p in places]), ack.answers)
        except PenstockError as error:
            # Only a loss of power can have taken a lease that the model knows of, or an ack that was not answered.
            assert self.lost_power or any(self.of(place).perhaps_acked for place in places), (places, error.text)
            assert error.reason in (Reason.NOT_LEASE_OWNER, Reason.NOT_IN_FLIGHT)
            for place in places:
                self.of(place).lose_lease(lost_power=self.lost_power)
            return
        self.acks.append(ack)
        for place in places:
            self.of(place).ack_sent = True
        if turn:
            self.turn()

    lost_power = False

    @precondition(lambda self: self.all_held())
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.all_held()))
        known = self.of(place)
        group, partition, offset = place
        answers = Answers()
        owner = known.owner
        assert owner is not None
        try:
            self.world.queues.nack(Nack(TOPIC, group, owner, partition, [offset], "failed"), answers)
        except PenstockError:
            assert self.lost_power or known.perhaps_acked
            known.owner = None
            return
        known.owner = None
        known.not_before_ms = self.now() + (self.sent[partition][offset].backoff_ms << (known.deliveries - 1))
        self.turn()
        assert answers.reason is None

    @precondition(lambda self: self.all_held())
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.all_held()))
        known = self.of(place)
        group, partition, offset = place
        answers = Answers()
        owner = known.owner
        assert owner is not None
        try:
            self.world.queues.extend(Extend(TOPIC, group, owner, partition, [offset], 2 * LEASE_MS), answers)
        except PenstockError:
            assert self.lost_power or known.perhaps_acked
            known.owner = None
            return
        known.until_ms = self.now() + 2 * LEASE_MS
        self.turn()
        assert answers.reason is None

    @rule(ms=st.integers(1, 150))
    def wait(self, ms: int) -> None:
        end = self.world.clock.monotonic_ms() + ms
        while self.world.clock.monotonic_ms() < end:
            self.world.advance(min(STEP_MS, end - self.world.clock.monotonic_ms()))
            self.collect()

    # -- the end of a process

    @rule(stage=st.sampled_from(["at once", "gathered", "first log", "last log", "written"]))
    def kill(self, stage: str) -> None:
        """The process dies somewhere in the end of its turn."""
        if stage == "gathered":
            self.world.flusher.gather_all()
        elif stage != "at once":
            chosen = {"first log": slice(1), "last log": slice(-1, None), "written": slice(None)}[stage]
            self.world.flusher.write(chosen)
        self.collect()
        self.stop()
        self.world.kill()
        self.world.turn()

    @rule(torn=st.booleans())
    def lose_power(self, torn: bool) -> None:
        self.stop()
        self.world.lose_power(torn=torn)
        self.world.turn()
        self.lost_power = True
        for known in self.known.values():
            known.not_before_ms = 0
            known.deliveries_min = 0

    def stop(self) -> None:
        """Acks that were not answered may count or not; workers are gone, their leases run on."""
        self.acks.clear()
        self.workers.clear()
        for known in self.known.values():
            known.perhaps_acked |= known.ack_sent and not known.acked
            known.ack_sent = known.acked
            known.stream = None

    # -- what always holds

    @invariant()
    def the_floor_passes_nothing_unfinished(self) -> None:
        for status in self.world.queues.queues():
            if status.topic != TOPIC:
                continue
            for part in status.partitions:
                for offset in range(part.floor):
                    known = self.of((status.group, part.partition, offset))
                    limit = self.sent[part.partition][offset].max_attempts
                    assert (
                        known.acked or known.ack_sent or known.perhaps_acked or (limit and known.deliveries >= limit)
                    ), f"{status.group}/{part.partition}: floor {part.floor} passes {offset}"

    @invariant()
    def nothing_dies_twice(self) -> None:
        letters = self.letters()
        assert len(letters) == len(set(letters))
        for group, partition, offset in letters:
            assert self.sent[partition][offset].max_attempts, "a record without a limit died"
            assert not self.of((group, partition, offset)).acked, "an acked record died"

    def letters(self) -> list[Place]:
        name = f"dlq.{TOPIC}"
        if name not in self.world.broker.topics:
            return []
        return [
            (header(letter, "original_group") or "", partition, int(header(letter, "original_offset") or -1))
            for partition in range(PARTITIONS)
            for letter in self.world.records(name, partition)
        ]

    def finish_everything(self) -> None:
        """In the end everything is finished: acked, or dead."""
        self.turn()
        while self.workers:
            self.end(self.workers.pop()[1])
            self.turn()
        # The longest lease that any worker has.
        self.wait(2 * LEASE_MS)
        for known in self.known.values():
            known.owner = known.stream = None
        for group in GROUPS:
            for _ in range(12):
                for known in self.known.values():
                    if known.until_ms <= self.now():
                        known.owner = None
                got = self.world.lease("last", group=group, max_records=10_000, lease_ms=LEASE_MS)
                self.took(group, "last", got)
                for partition in range(PARTITIONS):
                    places = [(group, partition, d.offset) for d in got if d.partition == partition]
                    if places:
                        self.send_ack(places, "last", turn=True)
                self.wait(LEASE_MS)
            letters = set(self.letters())
            status = self.world.queues.status(TOPIC, group)
            for part in status.partitions:
                assert (part.floor, part.lag) == (len(self.sent[part.partition]), 0), part
                assert self.world.committed(group=group, partition=part.partition) in (part.floor, None)
                for offset in range(part.floor):
                    known = self.of((group, part.partition, offset))
                    died = (group, part.partition, offset) in letters
                    assert not (known.acked and died)
                    assert known.acked or died or known.perhaps_acked, f"{group}/{part.partition}@{offset} was lost"


QueueMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    # A failing history says enough as it is; making it shorter takes minutes.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
TestQueues = QueueMachine.TestCase
