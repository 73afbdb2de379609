"""The dead letters of a node, as gateways use them. All calls are made on the event loop; :meth:`DeadLetters.tick` drives the jobs.

``topic`` is the topic that the dead letters came from, or its dead-letter topic. In a cluster, only the coordinator of the group
``penstock.redrive`` serves them; other nodes refuse with NOT_COORDINATOR.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.dead_letters.jobs import (
    DeadLetterJob,
    Finishing,
    JobDone,
    OnProgress,
    Reading,
)
from penstock.core.dead_letters.letters import ReasonCounts
from penstock.core.dead_letters.scan import Scan, floor_of
from penstock.core.publish import NewRecord
from penstock.core.queues.moves import DEAD_LETTER_PREFIX, REDRIVE_GROUP, dead_letter_topic
from penstock.core.security.access import Caller
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.operations.dead_letters import (
    DeadLetter,
    DeadLetterTopic,
    PlanRedrive,
    Purge,
    Redrive,
    RedrivePlan,
    ShowDeadLetters,
)
from penstock.operations.operation import Action
from penstock.types import TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

JOBS_MAX: Final = 100
"""Jobs at a time, of all callers."""

Cancel = Callable[[], None]
"""Stops a job, whose ``done`` is then not called; harmless after the end."""


class DeadLetters:
    """The dead letters of all topics."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._jobs: list[DeadLetterJob] = []

    def topics(self) -> list[DeadLetterTopic]:
        """The dead-letter topics by name, each with its number of open dead letters."""
        self._broker.queues.check_loaded(REDRIVE_GROUP)
        return [
            DeadLetterTopic(TopicName(topic.name.removeprefix(DEAD_LETTER_PREFIX)), topic.name, self._open_count(topic))
            for topic in sorted(self._broker.topics, key=lambda each: each.name)
            if topic.name.startswith(DEAD_LETTER_PREFIX)
        ]

    def _open_count(self, topic: Topic) -> int:
        """From the status of the queue; without a queue, nothing was ever redriven."""
        queues = self._broker.queues
        if queues.get(topic.name, REDRIVE_GROUP) is not None:
            status = queues.status(topic.name, REDRIVE_GROUP)
            return sum(max(0, partition.lag - partition.moving) for partition in status.partitions)
        ends = (self._broker.observe(topic.name, index).high_watermark for index in range(topic.partition_count))
        return sum(max(0, end - floor_of(self._broker, topic.name, index)) for index, end in enumerate(ends))

    def show(self, asked: ShowDeadLetters, done: Callable[[tuple[DeadLetter, ...] | PenstockError], None]) -> Cancel:
        """The selected open dead letters, partition by partition, oldest first. PenstockError if there is no such topic."""
        found: list[DeadLetter] = []
        scan = self._scan(asked)
        return self._begin(Reading(scan, found.extend, lambda error: done(tuple(found) if error is None else error)))

    def plan(self, asked: PlanRedrive, done: Callable[[RedrivePlan | PenstockError], None]) -> Cancel:
        """Count what a redrive with this filter would move now. PenstockError if there is no such topic."""
        name = self._require(asked.topic).name
        original = TopicName(name.removeprefix(DEAD_LETTER_PREFIX))
        counts = ReasonCounts()

        def counted(error: PenstockError | None) -> None:
            done(counts.plan(original, name) if error is None else error)

        return self._begin(Reading(self._scan(asked), counts.add, counted))

    def redrive(self, caller: Caller, asked: Redrive, progress: OnProgress, done: JobDone) -> Cancel:
        """Move dead letters back to the topic that each came from. A rate of 0 means no limit.

        PenstockError if that topic does not exist. ``progress`` is called whenever something was done.
        """
        self._require(asked.topic)
        # Not from the name of the dead-letter topic, which may be cut.
        original = asked.topic.removeprefix(DEAD_LETTER_PREFIX)
        if original not in self._broker.topics:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {original}, the origin of these dead letters, no longer exists; create it, then redrive them",
            )
        if asked.rate_per_second < 0:
            raise PenstockError(Reason.INVALID_REQUEST, "A rate must be a number per second, or 0 for no limit")
        act = partial(self._move_back, caller)
        return self._begin(Finishing(partial(self._scan, asked), act, asked.rate_per_second, progress, done))

    def purge(self, asked: Purge, progress: OnProgress, done: JobDone) -> Cancel:
        """Finish dead letters without redriving them."""
        return self._begin(Finishing(partial(self._scan, asked), self._purge, 0.0, progress, done))

    def _move_back(self, caller: Caller, letters: list[DeadLetter], job: Finishing) -> None:
        broker = self._broker
        for letter in letters:
            try:
                # The origin is a header, which anyone who may write to the dead-letter topic can set.
                if not broker.access.allows_all:
                    broker.access.require_topic(caller, Action.WRITE, letter.original_topic)
                index = letter.original_partition
                origin = broker.topics.require(letter.original_topic)
                if index >= origin.partition_count:
                    index = broker.publisher.choose_partition(origin, NewRecord(letter.key, letter.value))
                broker.queues.move(
                    letter.topic,
                    REDRIVE_GROUP,
                    letter.partition,
                    [letter.offset],
                    origin.name,
                    index,
                    partial(job.settled, 1),
                )
            except PenstockError as error:
                job.settled(1, error.reason, error.text)

    def _purge(self, letters: list[DeadLetter], job: Finishing) -> None:
        """The dead letters of one step are of one partition."""
        topic, partition = letters[0].topic, letters[0].partition
        offsets = [letter.offset for letter in letters]
        try:
            settled = partial(job.settled, len(letters))
            self._broker.queues.finish(topic, REDRIVE_GROUP, partition, offsets, "purged", settled)
        except PenstockError as error:
            job.settled(len(letters), error.reason, error.text)

    def _require(self, topic: str) -> Topic:
        name = dead_letter_topic(topic)
        self._broker.queues.check_loaded(REDRIVE_GROUP)
        found = self._broker.topics.get(name)
        if found is None:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {name.removeprefix(DEAD_LETTER_PREFIX)} has no dead letters: there is no topic {name}",
            )
        return found

    def _scan(self, asked: ShowDeadLetters | PlanRedrive | Redrive | Purge) -> Scan:
        return Scan(self._broker, self._require(asked.topic), asked.wanted, asked.max_records)

    # -- jobs

    def _begin(self, job: DeadLetterJob) -> Cancel:
        self._jobs = [each for each in self._jobs if not each.over]
        if len(self._jobs) >= JOBS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{JOBS_MAX} requests about dead letters are running, which is the limit; try again in a moment",
            )
        self._jobs.append(job)
        # A small request is answered at once.
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
        """Do a step of each job that is due."""
        for job in self._jobs:
            if not job.over and job.next_ms(now_ms) <= now_ms:
                self._step(job, now_ms)

    def close(self) -> None:
        """The broker stops: all waiting callers get SHUTTING_DOWN. Unfinished dead letters stay open."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            if not job.over:
                job.fail(PenstockError(Reason.SHUTTING_DOWN))
