"""The queues of a node, as gateways use them. A queue is a topic that a group consumes with leases.

Nothing here waits. A call whose result takes time has a ``done``, which is called exactly once, perhaps before the call returns.
All calls are made on the event loop. The changes of a turn are stored at its end. Call ``tick`` at ``next_deadline_ms``.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.jobs import AllOf
from penstock.core.coordinators.topic import StoredDone
from penstock.core.queues.block import FINISHED, MOVING
from penstock.core.queues.leases import finish_leased, leased_runs, partition_of, runs_of, unfinished, when_stored
from penstock.core.queues.queue import Queue
from penstock.core.queues.status import known_states, opened_status, peek, queue_status
from penstock.core.queues.upkeep import Upkeep
from penstock.core.queues.why import explain
from penstock.core.queues.workers import OnDeliver, OnGone, Poll, Worker
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, GROUPS_MAX, QUEUE_OWNER_CHARS_MAX
from penstock.operations.queues import (
    Ack,
    AckUpTo,
    Consume,
    Extend,
    KnownStates,
    Lease,
    Nack,
    PartitionStatus,
    PeekedRecord,
    QueueStatus,
    Why,
)
from penstock.ports import Flusher, Report
from penstock.settings import QueueSettings
from penstock.types import GroupId, PartitionKey, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

NACK_REASON_CHARS_MAX: Final = 1024
"""Longer reasons are cut."""


class Queues:
    """All queues of a node."""

    def __init__(self, settings: QueueSettings, broker: "Broker", flusher: Flusher, report: Report) -> None:
        self._broker = broker
        self._upkeep = Upkeep(settings, broker, flusher, report)
        self._context = self._upkeep.context
        self._queues = self._upkeep.queues
        self.family: Final = self._upkeep.family
        self.check_loaded: Final = self._upkeep.check_loaded
        self.topic_changed: Final = self._upkeep.topic_changed
        self.forget_topic: Final = self._upkeep.forget_topic
        self.forget_group: Final = self._upkeep.forget_group
        self.next_deadline_ms: Final = self._upkeep.next_deadline_ms
        self.tick: Final = self._upkeep.tick
        self.close: Final = self._upkeep.close

    @property
    def settings(self) -> QueueSettings:
        """What the operator chose."""
        return self._context.settings

    # -- taking records

    def attach(self, asked: Consume, on_deliver: OnDeliver, on_gone: OnGone) -> Worker:
        """Connect a worker: it gets records as they come, as far as its credit and ``in_flight_max`` allow.

        Records that its owner holds and no other open stream of that owner has come first, with the same attempt and expiry.
        Leases that are released when it disconnects do not count as attempts.
        """
        self._check_owner(asked.owner)
        self._check_lease_ms(asked.lease_ms)
        queue = self._require(asked.topic, asked.group)
        worker = Worker(queue, asked, on_deliver, on_gone)
        queue.dispatcher.add_worker(worker)
        return worker

    def lease(self, asked: Lease, done: OnDeliver) -> Callable[[], None]:
        """Take records once. The leases outlive the caller. Returns what cancels the call."""
        self._check_owner(asked.owner)
        self._check_lease_ms(asked.lease_ms)
        if asked.max_records < 1:
            raise PenstockError(Reason.INVALID_REQUEST, "max_records must be at least 1")
        queue = self._require(asked.topic, asked.group)
        queue.dispatcher.check_can_lease()
        poll = Poll(queue, asked, done)
        if poll.waits:
            self._context.deadlines.set(poll.timer, self._context.clock.monotonic_ms() + asked.wait_ms)
        queue.dispatcher.add(poll)
        return poll.cancel

    # -- settling leases

    def ack(self, asked: Ack, done: StoredDone) -> None:
        """Finish records. With NOT_LEASE_OWNER or NOT_IN_FLIGHT nothing has changed."""
        queue = self._existing(asked.topic, asked.group)
        part = partition_of(queue, asked.partition)
        finish_leased(queue, part, leased_runs(part, asked.owner, asked.offsets), done)

    def ack_up_to(self, asked: AckUpTo, done: StoredDone) -> None:
        """Finish every record that the owner holds in the partition up to this one, which must be one of them."""
        queue = self._existing(asked.topic, asked.group)
        part = partition_of(queue, asked.partition)
        leased_runs(part, asked.owner, (asked.offset,))
        held = [offset for offset in part.held_by(asked.owner) if offset <= asked.offset]
        finish_leased(queue, part, list(runs_of(held)), done)

    def nack(self, asked: Nack, done: StoredDone) -> None:
        """Return records that failed: each is delivered again after its backoff, or becomes a dead letter."""
        queue = self._existing(asked.topic, asked.group)
        part = partition_of(queue, asked.partition)
        offsets = sorted(set(asked.offsets))
        leased_runs(part, asked.owner, offsets)
        reason = asked.reason[:NACK_REASON_CHARS_MAX]
        for offset in offsets:
            queue.failures.fail(part, offset, reason, backs_off=True)
        self._context.meters.nacks.add((*queue.labels, reason), len(offsets))
        when_stored(queue, part, offsets, done)

    def extend(self, asked: Extend, done: StoredDone) -> None:
        """Renew the leases of records: they end ``lease_ms`` from now."""
        self._check_lease_ms(asked.lease_ms)
        queue = self._existing(asked.topic, asked.group)
        part = partition_of(queue, asked.partition)
        runs = leased_runs(part, asked.owner, asked.offsets)
        until_ms = self._context.clock.now_ms() + asked.lease_ms
        for number, start, stop in runs:
            block = part.blocks[number]
            for at in range(start, stop):
                block.renew(at, until_ms)
            queue.changed(part, number, block)
        self._context.state_log.when_committed(queue.state_partition, done)

    # -- records without a lease

    def finish(
        self, topic: str, group: str, partition: int, offsets: Sequence[int], why: str, done: StoredDone
    ) -> None:
        """Finish records, whether they are leased or not (a purge). ``why`` goes to the broker's log."""
        self._context.report(f"{len(offsets)} records of {topic}/{partition} are finished for group {group}: {why}")
        queue = self._require(topic, group)
        part = partition_of(queue, partition)
        offsets = unfinished(queue, part, offsets)
        queue.finish(part, offsets)
        when_stored(queue, part, offsets, done)

    def move(
        self,
        topic: str,
        group: str,
        partition: int,
        offsets: Sequence[int],
        target_topic: str,
        target_partition: int | None,
        done: StoredDone,
    ) -> None:
        """Append records to another topic and finish them here, both or neither (a redrive). Finished records are skipped.

        The copies do not have the headers of a dead letter. ``done`` is called when all records are copied and finished.
        """
        queue = self._require(topic, group)
        part = partition_of(queue, partition)
        if self._broker.topics.require(target_topic).internal:
            # The origin of a dead letter is one of its headers, which anyone may have written.
            raise PenstockError(
                Reason.INVALID_TOPIC, f"{target_topic} is an internal topic; move records to another topic"
            )
        answer = AllOf(done)
        for offset in unfinished(queue, part, offsets):
            self._context.mover.redrive(queue, part, offset, target_topic, target_partition, answer.expect())
        answer.close()

    def is_finished(self, topic: str, group: str, partition: int, offset: int) -> bool:
        """Whether a group has finished a record, or will because it is being moved."""
        queue = self._queues.get((topic, group))
        if queue is not None:
            return queue.partition(partition).state_at(offset) in (FINISHED, MOVING)
        self.check_loaded(group)
        key = PartitionKey(TopicName(topic), partition)
        committed = self._broker.groups.fetch_offsets(GroupId(group), [key]).get(key)
        return committed is not None and offset < committed.offset

    # -- asking

    def get(self, topic: str, group: str) -> Queue | None:
        """The queue, if a worker ever requested records from it."""
        return self._queues.get((topic, group))

    def status(self, topic: str, group: str) -> QueueStatus:
        """The status of a queue; GROUP_ID_NOT_FOUND if it does not exist."""
        return queue_status(self._known(topic, group))

    def queues(self) -> list[QueueStatus]:
        """The status of all queues, by name."""
        found: list[QueueStatus] = []
        for key in sorted(self._queues):
            try:
                found.append(queue_status(self._queues[key]))
            except PenstockError as error:
                # A log that cannot be opened must not hide the other queues.
                self._context.report(f"queue {key[0]} of group {key[1]}: {error.text}")
        return found

    def of_group(self, group: str) -> list[QueueStatus]:
        """The status of the queues of one group, by name."""
        return [queue_status(self._queues[key]) for key in sorted(self._queues) if key[1] == group]

    def opened(self) -> Iterator[tuple[TopicName, GroupId, PartitionStatus]]:
        """The status of the partitions whose logs are open: for metrics, which must cost little."""
        for queue in list(self._queues.values()):
            for status in opened_status(queue):
                yield queue.topic, queue.group, status

    def peek(self, topic: str, group: str, max_records: int) -> list[PeekedRecord]:
        """The next unfinished records of each partition. Changes nothing."""
        return peek(self._known(topic, group), max_records)

    def known_states(self, topic: str, group: str, partition: int, from_offset: int) -> KnownStates:
        """The states of the records of a partition from an offset on. Changes nothing."""
        return known_states(self._known(topic, group), partition, from_offset)

    def why(self, topic: str, partition: int, offset: int, group: str) -> Why:
        """Why a record is not delivered, in one sentence."""
        self.check_loaded(group)
        return explain(self._broker, self._queues.get((topic, group)), topic, partition, offset, group)

    # -- finding queues

    def _check_owner(self, owner: str) -> None:
        if not 0 < len(owner) <= QUEUE_OWNER_CHARS_MAX:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"An owner needs a name of at most {QUEUE_OWNER_CHARS_MAX} characters"
            )

    def _check_lease_ms(self, lease_ms: int) -> None:
        if not 0 < lease_ms <= self.settings.lease_ms_max:
            raise PenstockError(
                Reason.INVALID_REQUEST,
                f"lease_ms must be from 1 to {self.settings.lease_ms_max}, not {lease_ms}; extend a lease to make it longer",
            )

    def _existing(self, topic: str, group: str) -> Queue:
        queue = self._queues.get((topic, group))
        if queue is None:
            self._topic(topic, group)
            raise PenstockError(
                Reason.NOT_IN_FLIGHT, f"The record is not in flight: group {group} has no queue on {topic}"
            )
        return queue

    def _known(self, topic: str, group: str) -> Queue:
        queue = self._queues.get((topic, group))
        if queue is None:
            self._topic(topic, group)
            raise PenstockError(
                Reason.GROUP_ID_NOT_FOUND,
                f"Group {group} has no queue on {topic}; the queue exists once a worker has requested a record",
            )
        return queue

    def _topic(self, topic: str, group: str) -> Topic:
        """The topic, if this node coordinates the group and the topic exists."""
        self.check_loaded(group)
        return self._broker.topics.require(topic)

    def _require(self, topic: str, group: str) -> Queue:
        """The queue, created if it does not exist."""
        queue = self._queues.get((topic, group))
        if queue is None:
            found = self._topic(topic, group)
            if found.internal:
                raise PenstockError(Reason.INVALID_TOPIC, f"{topic} is an internal topic; use another topic")
            if not 0 < len(group) <= GROUP_ID_CHARS_MAX:
                raise PenstockError(
                    Reason.INVALID_GROUP_ID, f"A group needs a name of at most {GROUP_ID_CHARS_MAX} characters"
                )
            if len(self._queues) >= GROUPS_MAX:
                raise PenstockError(
                    Reason.POLICY_VIOLATION, f"There are {GROUPS_MAX} queues, which is the limit; delete groups first"
                )
            queue = self._upkeep.add(found, GroupId(group))
            self._upkeep.note(queue)
            queue.open()
            # Every tool lists the group from now on, even before its first ack.
            for part in queue.partitions:
                self._context.floors.refresh(part)
        queue.open()
        return queue
