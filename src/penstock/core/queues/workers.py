"""Who takes records from a queue: a connected worker that gets them as they come, or a call that takes some once.

Credit is what a taker may still get: a worker gets more when its socket has taken what it was given, so a slow one does not
pile up records that others could work on. Beside it a worker has a bound on what it holds: leases run from the delivery on, so
whoever gets more than it can work on in a lease's time gets the rest again, and again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.core.groups.deadlines import Timer
from penstock.core.queues.delivery import Delivery
from penstock.errors import Reason

if TYPE_CHECKING:
    from penstock.core.queues.queue import Queue

OnDeliver = Callable[[list[Delivery]], None]
OnGone = Callable[[Reason], None]

_TAKEN_SPARE: Final = 1024


class Taker(ABC):
    """Either of them, as a queue sees it."""

    __slots__ = ("attached", "credit", "lease_ms", "owner", "queue")

    def __init__(self, queue: "Queue", owner: str, lease_ms: int, credit: int) -> None:
        self.queue: Final = queue
        self.owner: Final = owner
        self.lease_ms: Final = lease_ms
        self.credit = credit
        self.attached = True
        """Whether it is still there to be given records."""

    def room(self) -> int:
        """How many more records it may hold."""
        return self.credit

    def leased(self, count: int) -> None:
        """So many records are about to be delivered to it."""
        self.credit -= count

    @abstractmethod
    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take records whose leases are written."""

    @abstractmethod
    def refuse(self, count: int) -> None:
        """So many records that it was about to get could not be leased."""

    @abstractmethod
    def gone(self, reason: Reason) -> None:
        """The queue is no more."""


class Worker(Taker):
    """A connected worker. Its gateway calls :meth:`grant` and, once, :meth:`detach`."""

    __slots__ = ("_in_flight_max", "_on_deliver", "_on_gone", "_taken", "_taken_max", "_under_way")

    def __init__(
        self,
        queue: "Queue",
        owner: str,
        lease_ms: int,
        credit: int,
        in_flight_max: int,
        on_deliver: OnDeliver,
        on_gone: OnGone,
    ) -> None:
        super().__init__(queue, owner, lease_ms, credit)
        self._in_flight_max = in_flight_max
        self._under_way = 0
        self._on_deliver = on_deliver
        self._on_gone = on_gone
        # Everything it got since it was last looked through: most of it is acked by now.
        self._taken: list[tuple[int, int, int]] = []
        self._taken_max = _TAKEN_SPARE

    def grant(self, count: int) -> None:
        """The worker can take so many more."""
        if self.attached:
            self.credit += count
            self.queue.wake()

    def detach(self) -> None:
        """The worker is gone: what it holds falls free at once. Fine when it is gone already."""
        if self.attached:
            self.attached = False
            self.queue.remove_worker(self, self._taken)
            self._taken = []

    def room(self) -> int:
        """Within its credit, and within its bound on what it holds."""
        free = self._in_flight_max - self._under_way - len(self._taken)
        if free <= 0:
            self._forget_settled()
            free = self._in_flight_max - self._under_way - len(self._taken)
        return min(self.credit, free)

    def leased(self, count: int) -> None:
        """They count as held from now on."""
        super().leased(count)
        self._under_way += count

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Hand on, and remember what it holds."""
        self._under_way -= len(deliveries)
        self._taken += [(item[1], item[2], item[3]) for item in deliveries]
        if len(self._taken) > self._taken_max:
            self._forget_settled()
            self._taken_max = 2 * len(self._taken) + _TAKEN_SPARE
        self._on_deliver(deliveries)

    def _forget_settled(self) -> None:
        self._taken = [entry for entry in self._taken if self.queue.holds(self.owner, *entry)]

    def refuse(self, count: int) -> None:
        """It will be tried again."""
        self.credit += count
        self._under_way -= count

    def gone(self, reason: Reason) -> None:
        """Tell the gateway."""
        if self.attached:
            self.attached = False
            self._on_gone(reason)


class Poll(Taker):
    """A call that takes records once, perhaps after waiting for the first. What it leases stays leased."""

    __slots__ = ("_done", "served", "timer", "waits")

    def __init__(
        self, queue: "Queue", owner: str, lease_ms: int, max_records: int, waits: bool, done: OnDeliver
    ) -> None:
        super().__init__(queue, owner, lease_ms, max_records)
        self._done = done
        self.waits = waits
        """Whether it stays when there is nothing at the end of this turn."""
        self.served = False
        self.timer: Final = Timer(self.time_out)

    def time_out(self) -> None:
        """It has waited long enough."""
        self.waits = False
        if not self.served:
            self.queue.remove_poll(self)
            self.deliver([])

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        if self.attached:
            self.attached = False
            self.queue.remove_poll(self)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Answer."""
        if self.attached:
            self.attached = False
            self._done(deliveries)

    def refuse(self, count: int) -> None:  # noqa: ARG002 - a worker counts them
        """It takes what there is, and there is nothing."""
        self.deliver([])

    def gone(self, reason: Reason) -> None:  # noqa: ARG002 - its answer has no room for it
        """An empty answer: the next call is told why."""
        self.deliver([])
