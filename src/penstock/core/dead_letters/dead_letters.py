"""The door to dead letters for gateways. All calls are made on the event loop; :meth:`DeadLetters.tick` drives what takes time.

``topic`` is always the topic that the dead letters came from; its dead-letter topic's name will do too. In a cluster the node is asked that
works for the group ``penstock.redrive``; every other refuses with NOT_COORDINATOR.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.access import Caller
from penstock.core.dead_letters.jobs import (
    DeadLetterJob,
    Finishing,
    JobDone,
    Reading,
    Told,
    finish_together,
    move_back_each,
)
from penstock.core.dead_letters.letters import Tally
from penstock.core.dead_letters.queue_letters import QueueLetters
from penstock.core.dead_letters.scan import Scan
from penstock.core.queues.moves import DEAD_LETTER_PREFIX, REDRIVE_GROUP, dead_letter_topic
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.operations.dead_letters import NO_LIMIT, DeadLetter, DeadLetterFilter, DeadLetterTopic, RedrivePlan
from penstock.operations.operation import Action
from penstock.types import TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

JOBS_MAX: Final = 100
"""Under way at a time, of all callers."""

Cancel = Callable[[], None]
"""Nobody wants the rest any more; fine after the end. ``done`` is not called after it."""


class DeadLetters:
    """Dead letters of all topics of this node."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._letters = QueueLetters(broker)
        self._jobs: list[DeadLetterJob] = []

    def topics(self) -> list[DeadLetterTopic]:
        """The dead-letter topics that there are, with how many are open in each, by name."""
        self._broker.queues.check_loaded(REDRIVE_GROUP)
        return [
            DeadLetterTopic(
                TopicName(topic.name.removeprefix(DEAD_LETTER_PREFIX)), topic.name, self._letters.open_count(topic.name)
            )
            for topic in sorted(self._broker.topics, key=lambda each: each.name)
            if topic.name.startswith(DEAD_LETTER_PREFIX)
        ]

    def show(
        self,
        topic: str,
        wanted: DeadLetterFilter,
        max_records: int,
        done: Callable[[list[DeadLetter] | PenstockError], None],
    ) -> Cancel:
        """Open dead letters that are meant, partition by partition, oldest first. PenstockError when there is no such topic."""
        self._require(topic)
        found: list[DeadLetter] = []
        scan = self._scan(topic, wanted, max_records)
        return self._begin(Reading(scan, found.extend, lambda error: done(found if error is None else error)))

    def plan(
        self,
        topic: str,
        wanted: DeadLetterFilter,
        done: Callable[[RedrivePlan | PenstockError], None],
        *,
        max_records: int = NO_LIMIT,
    ) -> Cancel:
        """Count what a redrive with this filter would move now. PenstockError when there is no such topic."""
        found = self._require(topic)
        original = TopicName(found.name.removeprefix(DEAD_LETTER_PREFIX))
        tally = Tally()

        def counted(error: PenstockError | None) -> None:
            done(tally.plan(original, found.name) if error is None else error)

        return self._begin(Reading(self._scan(topic, wanted, max_records), tally.add, counted))

    def redrive(
        self,
        caller: Caller,
        topic: str,
        wanted: DeadLetterFilter,
        progress: Told,
        done: JobDone,
        *,
        rate_per_second: float = 0.0,
        max_records: int = NO_LIMIT,
    ) -> Cancel:
        """Put dead letters back into the topic that each came from; 0 a second is as fast as it goes.

        PenstockError when there is nothing to put them back into. ``progress`` is told whenever something was done.
        """
        self._require(topic)
        # Not from the dead-letter topic's name: that of a long one is cut.
        original = topic.removeprefix(DEAD_LETTER_PREFIX)
        if original not in self._broker.topics:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {original}, the origin of these dead letters, no longer exists; create it, then redrive them",
            )
        act = partial(move_back_each, self._letters, partial(self._require_write, caller))
        return self._finish(topic, wanted, max_records, act, rate_per_second, progress, done)

    def purge(
        self,
        topic: str,
        wanted: DeadLetterFilter,
        progress: Told,
        done: JobDone,
        *,
        max_records: int = NO_LIMIT,
    ) -> Cancel:
        """Give dead letters up: they are finished where they lie, and never redriven."""
        self._require(topic)
        return self._finish(topic, wanted, max_records, partial(finish_together, self._letters), 0.0, progress, done)

    def _finish(
        self,
        topic: str,
        wanted: DeadLetterFilter,
        max_records: int,
        act: Callable[[list[DeadLetter], Finishing], None],
        rate_per_second: float,
        progress: Told,
        done: JobDone,
    ) -> Cancel:
        if rate_per_second < 0:
            raise PenstockError(Reason.INVALID_REQUEST, "a rate must be a number per second, or 0 for no limit")
        make_scan = partial(self._scan, topic, wanted, max_records)
        return self._begin(Finishing(make_scan, act, rate_per_second=rate_per_second, progress=progress, done=done))

    def _require_write(self, caller: Caller, letter: DeadLetter) -> None:
        """A letter says itself where it came from, and anyone who writes to the dead-letter topic may have said it."""
        if not self._broker.access.allows_all:
            self._broker.access.require_topic(caller, Action.WRITE, letter.original_topic)

    def _require(self, topic: str) -> Topic:
        name = dead_letter_topic(topic)
        self._broker.queues.check_loaded(REDRIVE_GROUP)
        found = self._broker.topics.get(name)
        if found is None:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name.removeprefix(DEAD_LETTER_PREFIX)} has no dead letters: there is no topic {name}",
            )
        return found

    def _scan(self, topic: str, wanted: DeadLetterFilter, count_max: int) -> Scan:
        found = self._broker.topics.require(dead_letter_topic(topic))
        return Scan(
            self._broker,
            found,
            wanted,
            count_max,
            partial(self._letters.floor, found.name),
            partial(self._letters.is_open, found.name),
        )

    # -- time

    def _begin(self, job: DeadLetterJob) -> Cancel:
        self._jobs = [each for each in self._jobs if not each.over]
        if len(self._jobs) >= JOBS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{JOBS_MAX} requests about dead letters are running, which is the limit; try again in a moment",
            )
        self._jobs.append(job)
        # What is small is answered at once.
        self._step(job, self._broker.clock.monotonic_ms())

        def cancel() -> None:
            job.over = True

        return cancel

    def _step(self, job: DeadLetterJob, now_ms: int) -> None:
        try:
            job.step(now_ms)
        except PenstockError as error:
            job.fail(error)

    def next_deadline_ms(self) -> int | None:
        """Monotonic time of the next call of :meth:`tick`."""
        self._jobs = [job for job in self._jobs if not job.over]
        now_ms = self._broker.clock.monotonic_ms()
        return min((job.next_ms(now_ms) for job in self._jobs), default=None)

    def tick(self, now_ms: int) -> None:
        """A step of each job that is due."""
        for job in self._jobs:
            if not job.over and job.next_ms(now_ms) <= now_ms:
                self._step(job, now_ms)

    def close(self) -> None:
        """The broker stops: whoever waits is told. What is not finished stays open."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            if not job.over:
                job.fail(PenstockError(Reason.SHUTTING_DOWN))
