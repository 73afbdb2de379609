"""Dead letters: list, show, count, redrive and purge them."""

from typing import TYPE_CHECKING

import msgspec

from penstock.core.operations.handling import Cancel, Done, OnEnd, OnItems, OpenStream, answers, begins, streams
from penstock.core.operations.rights import may_describe_topic
from penstock.core.security.access import Caller
from penstock.errors import PenstockError
from penstock.operations import dead_letters
from penstock.operations.dead_letters import Progress

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@answers(dead_letters.ListDeadLetterTopics)
def list_topics(
    broker: "Broker", _: dead_letters.ListDeadLetterTopics, caller: Caller
) -> tuple[dead_letters.DeadLetterTopic, ...]:
    """By name."""
    return tuple(
        found for found in broker.dead_letters.topics() if may_describe_topic(broker, caller, found.dead_letter_topic)
    )


@begins(dead_letters.ShowDeadLetters)
def show(
    broker: "Broker",
    asked: dead_letters.ShowDeadLetters,
    _: Caller,
    done: Done[tuple[dead_letters.DeadLetter, ...]],
) -> Cancel | None:
    """Those that are open."""
    return broker.dead_letters.show(asked, done)


@begins(dead_letters.PlanRedrive)
def plan(
    broker: "Broker", asked: dead_letters.PlanRedrive, _: Caller, done: Done[dead_letters.RedrivePlan]
) -> Cancel | None:
    """Nothing is moved."""
    return broker.dead_letters.plan(asked, done)


class _Job:
    """A redrive or a purge, as a stream: its progress from time to time, and a last item with ``done``."""

    def __init__(self, on_items: OnItems[Progress], on_end: OnEnd) -> None:
        self._on_items = on_items
        self._on_end = on_end
        self.cancel: Cancel | None = None

    def progressed(self, progress: Progress) -> None:
        """There is progress."""
        self._on_items((progress,))

    def finished(self, result: Progress | PenstockError) -> None:
        """The job is complete, or cannot continue."""
        if isinstance(result, PenstockError):
            self._on_end(result)
            return
        self._on_items((msgspec.structs.replace(result, done=True),))
        self._on_end(None)

    def grant(self, count: int) -> None:
        """Progress is sent without credit."""

    def close(self) -> None:
        """Stop the job; what it has done is kept."""
        if self.cancel is not None:
            self.cancel()


@streams(dead_letters.Redrive)
def redrive(
    broker: "Broker", asked: dead_letters.Redrive, caller: Caller, on_items: OnItems[Progress], on_end: OnEnd
) -> OpenStream:
    """Move them back at a rate."""
    job = _Job(on_items, on_end)
    job.cancel = broker.dead_letters.redrive(caller, asked, job.progressed, job.finished)
    return job


@streams(dead_letters.Purge)
def purge(
    broker: "Broker", asked: dead_letters.Purge, _: Caller, on_items: OnItems[Progress], on_end: OnEnd
) -> OpenStream:
    """Finish them."""
    job = _Job(on_items, on_end)
    job.cancel = broker.dead_letters.purge(asked, job.progressed, job.finished)
    return job
