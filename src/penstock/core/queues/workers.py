"""The takers of a queue's records: a connected worker, which gets them as they come, or a call that takes some once.

Credit is the number of records that a taker may still get. A worker gets credit when its socket has sent what it was given, so a slow
one does not pile up records that others could process. A worker also has a limit on the records that it holds: a lease starts with
the delivery, and leases of records that it cannot process in time would expire again and again.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.deadlines import Timer
from penstock.errors import Reason
from penstock.operations.queues import Consume, Delivery, Lease

if TYPE_CHECKING:
    from penstock.core.queues.queue import Queue

LeaseId = tuple[int, int, int]
"""A delivery by which a record is leased: partition, offset and attempts."""
OnDeliver = Callable[[list[Delivery]], None]
OnGone = Callable[[Reason], None]

_TAKEN_SPARE: Final = 1024


class Taker(ABC):
    """A worker or a call."""

    __slots__ = ("attached", "credit", "lease_ms", "owner", "queue")

    def __init__(self, queue: "Queue", owner: str, lease_ms: int, credit: int) -> None:
        self.queue: Final = queue
        self.owner: Final = owner
        self.lease_ms: Final = lease_ms
        self.credit = credit
        self.attached = True
        """Whether it still takes records."""

    def room(self) -> int:
        """How many more records it may get."""
        return self.credit

    def leased(self, deliveries: list[Delivery]) -> None:
        """These records were leased to it and will be delivered."""
        self.credit -= len(deliveries)

    @abstractmethod
    def deliver(self, deliveries: list[Delivery]) -> None:
        """Deliver records whose leases are written."""

    @abstractmethod
    def refuse(self, deliveries: list[Delivery]) -> None:
        """The leases of these records could not be stored."""

    @abstractmethod
    def gone(self, reason: Reason) -> None:
        """The queue was closed."""


class Worker(Taker):
    """A connected worker. Its gateway calls :meth:`grant` and, at the end, :meth:`close`.

    Leases outlive the connection. A worker that reconnects under the same owner name gets the leases that no open stream has again,
    before anything else: they are ``unsent``.
    """

    __slots__ = (
        "_in_flight_max",
        "_on_deliver",
        "_on_gone",
        "_releases",
        "_taken",
        "_taken_max",
        "_unsent_max",
        "unsent",
    )

    def __init__(self, queue: "Queue", asked: Consume, on_deliver: OnDeliver, on_gone: OnGone) -> None:
        super().__init__(queue, asked.owner, asked.lease_ms, asked.credit)
        self._in_flight_max = asked.in_flight_max or queue.context.settings.worker_in_flight
        self._on_deliver = on_deliver
        self._on_gone = on_gone
        self._releases = asked.release_on_disconnect
        # The leases since the last clean-up: most of them are acked by now.
        self._taken: list[LeaseId] = []
        self._taken_max = _TAKEN_SPARE
        self.unsent: deque[LeaseId] = deque()
        """Leases of its owner to send: they were sent to a stream that has ended, or to none."""
        self._unsent_max = _TAKEN_SPARE

    def grant(self, count: int) -> None:
        """The worker can take this many more records."""
        if self.attached:
            self.credit += count
            self.queue.wake()

    def close(self) -> None:
        """The stream has ended. Its leases stay, unless they are to be released. May be called again."""
        if self.attached:
            self.attached = False
            released = self._taken if self._releases else []
            kept = self.unsent if self._releases else [*self._taken, *self.unsent]
            self.queue.dispatcher.remove_worker(self, released, kept)
            self._taken = []
            self.unsent.clear()

    def inherit(self, leases: Iterable[LeaseId]) -> None:
        """Take over leases of an ended stream of the same owner. If there are many, expired ones are dropped."""
        self.unsent.extend(leases)
        if len(self.unsent) > self._unsent_max:
            self.unsent = deque(lease for lease in self.unsent if self.queue.dispatcher.holds(self.owner, *lease))
            self._unsent_max = 2 * len(self.unsent) + _TAKEN_SPARE

    def room(self) -> int:
        """Within its credit and its limit on records that it holds."""
        free = self._in_flight_max - len(self._taken)
        if free <= 0:
            self._forget_settled()
            free = self._in_flight_max - len(self._taken)
        return min(self.credit, free)

    def leased(self, deliveries: list[Delivery]) -> None:
        """The records count as held from now on."""
        super().leased(deliveries)
        self._taken += [(each.partition, each.offset, each.attempts) for each in deliveries]
        if len(self._taken) > self._taken_max:
            self._forget_settled()
            self._taken_max = 2 * len(self._taken) + _TAKEN_SPARE

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Pass them to the gateway."""
        self._on_deliver(deliveries)

    def leases(self) -> Iterable[LeaseId]:
        """The leases that it was sent, settled or not, and those to send."""
        yield from self._taken
        yield from self.unsent

    def _forget_settled(self) -> None:
        self._taken = [lease for lease in self._taken if self.queue.dispatcher.holds(self.owner, *lease)]

    def refuse(self, deliveries: list[Delivery]) -> None:
        """Send those that are leased nevertheless, such as a record that was to be sent again."""
        refused = {(each.partition, each.offset, each.attempts) for each in deliveries}
        self.credit += len(deliveries)
        self._taken = [lease for lease in self._taken if lease not in refused]
        self.unsent.extendleft(sorted(refused, reverse=True))

    def gone(self, reason: Reason) -> None:
        """Notify the gateway."""
        if self.attached:
            self.attached = False
            self._on_gone(reason)


class Poll(Taker):
    """A call that takes records once, and may wait for the first. The leases outlive it."""

    __slots__ = ("_done", "served", "timer", "waits")

    def __init__(self, queue: "Queue", asked: Lease, done: OnDeliver) -> None:
        super().__init__(queue, asked.owner, asked.lease_ms, asked.max_records)
        self._done = done
        self.waits = asked.wait_ms > 0
        """Whether it waits if there are no records at the end of this turn."""
        self.served = False
        self.timer: Final = Timer(self.time_out)

    def time_out(self) -> None:
        """The wait is over."""
        self.waits = False
        if not self.served:
            self.queue.dispatcher.remove_poll(self)
            self.deliver([])

    def cancel(self) -> None:
        """The caller no longer waits."""
        if self.attached:
            self.attached = False
            self.queue.dispatcher.remove_poll(self)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Answer."""
        if self.attached:
            self.attached = False
            self._done(deliveries)

    def refuse(self, deliveries: list[Delivery]) -> None:  # noqa: ARG002 - a worker counts them
        """Answer without records."""
        self.deliver([])

    def gone(self, reason: Reason) -> None:  # noqa: ARG002 - its answer has no room for it
        """Answer without records; the next call gets the reason."""
        self.deliver([])
