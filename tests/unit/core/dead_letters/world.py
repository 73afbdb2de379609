"""A broker on a simulated disk with dead letters in it, and a clock that the test moves."""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.security.access import ANONYMOUS, Caller
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError
from penstock.operations.dead_letters import (
    ALL,
    NO_LIMIT,
    DeadLetter,
    DeadLetterFilter,
    PlanRedrive,
    Progress,
    Purge,
    Redrive,
    RedrivePlan,
    ShowDeadLetters,
)
from penstock.records.builder import build_batch
from penstock.records.records import Headers, Record
from penstock.types import Gateway
from tests.crash.simulated_node import read_all
from tests.unit.core.idempotency.world import World, finish

CALLER = Caller(ANONYMOUS, Gateway.HTTP)
TOPIC = "orders"
DEAD = "dlq.orders"


@dataclass
class Job:
    """What a redrive or a purge said."""

    told: list[Progress] = field(default_factory=list)
    result: Progress | PenstockError | None = None
    cancel: Callable[[], None] = field(init=False)

    def done(self, result: Progress | PenstockError) -> None:
        assert self.result is None, "ended twice"
        self.result = result


class DeadLetterWorld(World):
    def __init__(self, seed: int = 0, partitions: int = 2) -> None:
        super().__init__(seed, partitions)
        for name in (TOPIC, DEAD):
            finish(self.broker.topics.create(NewTopic(name, partitions)))
        self.died = 0

    @property
    def letters(self):
        return self.broker.dead_letters

    def die(
        self, reason: str = "boom", *, partition: int = 0, group: str = "g", at_ms: int = 1_000, more: Headers = ()
    ) -> None:
        """A dead letter as the queue core writes it."""
        self.died += 1
        said = {
            "original_topic": TOPIC,
            "original_partition": partition,
            "original_offset": 100 + self.died,
            "original_group": group,
            "attempts": 3,
            "last_error": reason,
            "routed_at_ms": at_ms,
            "penstock.move_id": f"{group}/x/{partition}@{self.died}",
        }
        headers = (("colour", b"red"), *more, *((name, str(value).encode()) for name, value in said.items()))
        record = Record(0, self.clock.now_ms(), b"k%d" % self.died, b"v%d" % self.died, headers)
        self.append(DEAD, partition, record)

    def append(self, topic: str, partition: int, record: Record) -> None:
        self.broker.partition(topic, partition).append(build_batch([record]), self.clock.now_ms())
        self.flusher.sync()

    def turns(self, count: int = 12) -> None:
        """Turns of the loop at one moment: all that can be done without time passing."""
        for _ in range(count):
            self.flusher.sync()
            for rules in self.broker.timed:
                due_ms = rules.next_deadline_ms()
                if due_ms is not None and due_ms <= self.clock.monotonic_ms():
                    rules.tick(self.clock.monotonic_ms())
        self.flusher.sync()

    def pass_time(self, ms: int, step_ms: int = 10) -> None:
        for _ in range(0, ms, step_ms):
            self.clock.advance(step_ms)
            self.turns(4)

    def redrive(self, wanted: DeadLetterFilter = ALL, *, rate: float = 0.0, most: int = NO_LIMIT) -> Job:
        job = Job()
        job.cancel = self.letters.redrive(CALLER, Redrive(0, TOPIC, wanted, rate, most), job.told.append, job.done)
        return job

    def redriven(self, wanted: DeadLetterFilter = ALL, *, most: int = NO_LIMIT) -> Progress:
        job = self.redrive(wanted, most=most)
        self.finish(job)
        assert isinstance(job.result, Progress), job.result
        return job.result

    def purged(self, wanted: DeadLetterFilter = ALL, *, most: int = NO_LIMIT) -> Progress:
        job = Job()
        self.letters.purge(Purge(0, TOPIC, wanted, most), job.told.append, job.done)
        self.finish(job)
        assert isinstance(job.result, Progress), job.result
        return job.result

    def finish(self, job: Job) -> None:
        for _ in range(50):
            if job.result is not None:
                return
            self.pass_time(20)
        raise AssertionError(f"it does not end: {job.told[-1:]}")

    def plan(self, wanted: DeadLetterFilter = ALL, most: int = NO_LIMIT) -> RedrivePlan:
        found: list[RedrivePlan | PenstockError] = []
        self.letters.plan(PlanRedrive(TOPIC, wanted, most), found.append)
        self.turns()
        (plan,) = found
        assert isinstance(plan, RedrivePlan)
        return plan

    def shown(self, wanted: DeadLetterFilter = ALL, most: int = 100) -> list[DeadLetter]:
        found: list[tuple[DeadLetter, ...] | PenstockError] = []
        self.letters.show(ShowDeadLetters(TOPIC, wanted, most), found.append)
        self.turns()
        (letters,) = found
        assert isinstance(letters, tuple), letters
        return list(letters)

    def open_count(self) -> int:
        (topic,) = self.letters.topics()
        return topic.open

    def back(self, partition: int = 0) -> list[Record]:
        """What came back to the topic."""
        return read_all(self.broker.partition(TOPIC, partition))
