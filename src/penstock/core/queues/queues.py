"""The door to queues for every gateway. A queue is a topic worked by a group, record by record, by leases.

Nothing here waits. A call whose answer takes time has a ``done``, called exactly once, perhaps before the call returns. All
calls are made on the event loop. What changed in a turn is stored at its end; ``tick`` must be called at ``next_deadline_ms``.
Call ``load`` for each partition of the state topic once the groups are loaded.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.groups.requests import PartitionKey
from penstock.core.queues import leases
from penstock.core.queues.delivery import Cancel, Done
from penstock.core.queues.queue import Queue
from penstock.core.queues.status import known_states, opened_status, peek, queue_status
from penstock.core.queues.upkeep import Upkeep
from penstock.core.queues.why import explain
from penstock.core.queues.workers import OnDeliver, OnGone, Poll, Worker
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, GROUPS_MAX, QUEUE_OWNER_CHARS_MAX
from penstock.operations.queues import Delivery, KnownStates, PartitionStatus, PeekedRecord, QueueStatus, Why
from penstock.ports import Flusher, Report
from penstock.settings import QueueSettings
from penstock.types import GroupId, TopicName

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

    def attach(
        self,
        topic: str,
        group: str,
        owner: str,
        *,
        lease_ms: int,
        credit: int,
        on_deliver: OnDeliver,
        on_gone: OnGone,
        in_flight_max: int = 0,
        release_on_detach: bool = False,
    ) -> Worker:
        """Connect a worker: it gets records as soon as there are any, as far as its credit and its bound go.

        What its owner holds already, and no other open stream of that name has, comes first: the same attempt, until the same end.
        ``in_flight_max`` bounds what it holds and has not settled; 0 leaves that to the settings. Leases outlive the worker;
        with ``release_on_detach`` they end with it, and the delivery does not count as an attempt.
        """
        self._check_owner(owner)
        lease_ms = self._checked_lease_ms(lease_ms)
        queue = self._require(topic, group)
        worker = Worker(
            queue,
            owner,
            lease_ms,
            credit,
            in_flight_max or self.settings.worker_in_flight,
            on_deliver,
            on_gone,
            releases=release_on_detach,
        )
        queue.dispatcher.add_worker(worker)
        return worker

    def lease(
        self,
        topic: str,
        group: str,
        owner: str,
        *,
        max_records: int,
        lease_ms: int,
        wait_ms: int,
        done: Callable[[list[Delivery]], None],
    ) -> Cancel:
        """Take records once, waiting at most ``wait_ms`` for the first. The leases stay when the caller goes."""
        self._check_owner(owner)
        lease_ms = self._checked_lease_ms(lease_ms)
        if max_records < 1:
            raise PenstockError(Reason.INVALID_REQUEST, "max_records must be at least 1.")
        queue = self._require(topic, group)
        queue.dispatcher.check_can_lease()
        poll = Poll(queue, owner, lease_ms, max_records, wait_ms > 0, done)
        if wait_ms > 0:
            self._context.deadlines.set(poll.timer, self._context.clock.monotonic_ms() + wait_ms)
        queue.dispatcher.add(poll)
        return poll.cancel

    # -- what workers say about records

    def ack(self, topic: str, group: str, owner: str, partition: int, offsets: Sequence[int], done: Done) -> None:
        """These records are done with. NOT_LEASE_OWNER, NOT_IN_FLIGHT: then nothing has changed."""
        leases.ack(self._existing(topic, group), partition, owner, offsets, done)

    def ack_cumulative(self, topic: str, group: str, owner: str, partition: int, offset: int, done: Done) -> None:
        """Every record of the partition that this owner holds, up to this one, is done with."""
        leases.ack_cumulative(self._existing(topic, group), partition, owner, offset, done)

    def nack(
        self,
        topic: str,
        group: str,
        owner: str,
        partition: int,
        offset: int | Sequence[int],
        reason: str,
        done: Done,
    ) -> None:
        """The record (or each of several) failed: it is delivered again after its backoff, or goes to the dead letters."""
        queue = self._existing(topic, group)
        offsets = (offset,) if isinstance(offset, int) else offset
        reason = reason[:NACK_REASON_CHARS_MAX]
        leases.nack(queue, partition, owner, offsets, reason, done)

    def extend(
        self,
        topic: str,
        group: str,
        owner: str,
        partition: int,
        offset: int | Sequence[int],
        lease_ms: int,
        done: Done,
    ) -> None:
        """The owner keeps the record for ``lease_ms`` from now."""
        lease_ms = self._checked_lease_ms(lease_ms)
        queue = self._existing(topic, group)
        offsets = (offset,) if isinstance(offset, int) else offset
        leases.extend(queue, partition, owner, offsets, lease_ms, done)

    # -- what is done to records without a lease

    def finish(self, topic: str, group: str, partition: int, offsets: Sequence[int], why: str, done: Done) -> None:
        """These records need no more work (a purge), for this reason; finished ones are fine."""
        self._context.report(f"{len(offsets)} records of {topic}/{partition} are finished for group {group}: {why}")
        leases.finish(self._require(topic, group), partition, offsets, done)

    def move(
        self,
        topic: str,
        group: str,
        partition: int,
        offsets: Sequence[int],
        target_topic: str,
        target_partition: int | None,
        done: Done,
    ) -> None:
        """Append these records to another topic and finish them here, never one without the other (a redrive).

        Headers that dead letters have are left away. ``done`` is told when all are there and finished.
        """
        leases.move(self._require(topic, group), partition, offsets, target_topic, target_partition, done)

    def is_finished(self, topic: str, group: str, partition: int, offset: int) -> bool:
        """Whether a group is done with a record, or about to be, since it is being moved."""
        queue = self._queues.get((topic, group))
        if queue is not None:
            return leases.is_finished(queue, partition, offset)
        self.check_loaded(group)
        key = PartitionKey(TopicName(topic), partition)
        committed = self._broker.groups.fetch_offsets(GroupId(group), [key]).get(key)
        return committed is not None and offset < committed.offset

    # -- asking

    def get(self, topic: str, group: str) -> Queue | None:
        """The queue, if anybody ever worked it."""
        return self._queues.get((topic, group))

    def status(self, topic: str, group: str) -> QueueStatus:
        """How a queue stands; GROUP_ID_NOT_FOUND when there is none."""
        return queue_status(self._known(topic, group))

    def queues(self) -> list[QueueStatus]:
        """How all queues stand, by name."""
        found: list[QueueStatus] = []
        for key in sorted(self._queues):
            try:
                found.append(queue_status(self._queues[key]))
            except PenstockError as error:
                # One log that cannot be opened does not hide the others.
                self._context.report(f"queue {key[0]} of group {key[1]}: {error.text}")
        return found

    def of_group(self, group: str) -> list[QueueStatus]:
        """How the queues of one group stand, by name."""
        return [queue_status(self._queues[key]) for key in sorted(self._queues) if key[1] == group]

    def opened(self) -> Iterator[tuple[TopicName, GroupId, PartitionStatus]]:
        """How the partitions of all queues stand, as far as their logs are open: for numbers that must cost little."""
        for queue in list(self._queues.values()):
            for status in opened_status(queue):
                yield queue.topic, queue.group, status

    def peek(self, topic: str, group: str, max_records: int) -> list[PeekedRecord]:
        """The next unfinished records of each partition, as they are; nothing changes."""
        return peek(self._known(topic, group), max_records)

    def known_states(self, topic: str, group: str, partition: int, from_offset: int) -> KnownStates:
        """What is known of the records of a partition, without the records, from an offset on; nothing changes."""
        return known_states(self._known(topic, group), partition, from_offset)

    def why(self, topic: str, partition: int, offset: int, group: str) -> Why:
        """Why a record is not being delivered, in one sentence."""
        self.check_loaded(group)
        return explain(self._broker, self._queues.get((topic, group)), topic, partition, offset, group)

    # -- finding queues

    def _check_owner(self, owner: str) -> None:
        if not 0 < len(owner) <= QUEUE_OWNER_CHARS_MAX:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"An owner needs a name of at most {QUEUE_OWNER_CHARS_MAX} characters."
            )

    def _checked_lease_ms(self, lease_ms: int) -> int:
        if not 0 < lease_ms <= self.settings.lease_ms_max:
            raise PenstockError(
                Reason.INVALID_REQUEST,
                f"lease_ms must be from 1 to {self.settings.lease_ms_max}, not {lease_ms}; extend a lease to make it longer.",
            )
        return lease_ms

    def _existing(self, topic: str, group: str) -> Queue:
        queue = self._queues.get((topic, group))
        if queue is None:
            self.check_loaded(group)
            self._broker.topics.require(topic)
            raise PenstockError(
                Reason.NOT_IN_FLIGHT, f"The record is not in flight: group {group} has no queue on {topic}."
            )
        return queue

    def _known(self, topic: str, group: str) -> Queue:
        queue = self._queues.get((topic, group))
        if queue is None:
            self.check_loaded(group)
            self._broker.topics.require(topic)
            raise PenstockError(
                Reason.GROUP_ID_NOT_FOUND,
                f"Group {group} has no queue on {topic}; the queue exists once a worker has requested a record.",
            )
        return queue

    def _require(self, topic: str, group: str) -> Queue:
        """The queue, made when there is none."""
        queue = self._queues.get((topic, group))
        if queue is None:
            self.check_loaded(group)
            found = self._broker.topics.require(topic)
            if found.internal:
                raise PenstockError(Reason.INVALID_TOPIC, f"{topic} is an internal topic; use another topic.")
            if not 0 < len(group) <= GROUP_ID_CHARS_MAX:
                raise PenstockError(
                    Reason.INVALID_GROUP_ID, f"A group needs a name of at most {GROUP_ID_CHARS_MAX} characters."
                )
            if len(self._queues) >= GROUPS_MAX:
                raise PenstockError(
                    Reason.POLICY_VIOLATION, f"There are {GROUPS_MAX} queues, which is the limit; delete groups first."
                )
            queue = self._upkeep.add(found, GroupId(group))
            self._upkeep.note(queue)
            queue.open()
            # From now on the group is there for every tool, before its first ack.
            for part in queue.partitions:
                self._context.floors.refresh(part)
        queue.open()
        return queue
