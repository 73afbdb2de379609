"""One sink in the memory of its coordinator: its stored state, the waiting commits, and the progress of its open intent."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.core.security.access import Caller
from penstock.core.sinks.stored import StoredSink, Target
from penstock.core.topics.names import staging_topic
from penstock.errors import PenstockError, Reason
from penstock.operations.sinks import CommitSink, CommittedBatch

CommitDone = Callable[[CommittedBatch | PenstockError], None]


class WaitingCommit:
    """A commit and the caller that waits for it. The caller is answered once."""

    __slots__ = ("_done", "asked", "caller")

    def __init__(self, caller: Caller, asked: CommitSink, done: CommitDone) -> None:
        self.caller: Final = caller
        self.asked: Final = asked
        self._done: CommitDone | None = done

    def answer(self, result: CommittedBatch | PenstockError) -> None:
        """Answer the caller, unless it has its answer already."""
        done, self._done = self._done, None
        if done is not None:
            done(result)


@dataclass(eq=False, slots=True)
class Work:
    """One target of the open intent, and how much of it is done."""

    target: Target
    is_lost: bool = False
    """Whether a power loss destroyed some of the staged batches. Possible only if records are acknowledged before they are synced."""
    appended: int = 0
    """Records in the target's log, committed or not."""
    dropped: bool = False
    """The remaining records are lost, or their topic was deleted."""

    @property
    def left(self) -> int:
        """Records that are still to be appended."""
        return 0 if self.dropped else self.target.record_count - self.appended


@dataclass(eq=False, slots=True)
class Sink:
    """Changed only by ``SinkCommits`` and ``Sinks``."""

    name: str
    stored: StoredSink
    """As last committed to ``__sinks``."""
    touched_ms: int
    """Monotonic time of the last use (``uses.py``). Before the start of the process if it was not used since."""
    work: list[Work] = field(default_factory=list)
    """The targets of the intent in ``stored``."""
    is_looked_at: bool = False
    """Whether ``work`` is what the targets really have."""
    queue: deque[WaitingCommit] = field(default_factory=deque)
    idle_waiters: list[Callable[[], None]] = field(default_factory=list)
    busy: bool = False
    gone: bool = False
    """Deleted, or coordinated by another node."""
    has_own_producer: bool = False
    """Whether this coordinator has taken a producer id for it."""
    left: Reason | None = None
    """Why this node no longer coordinates it."""
    problem: str | None = None
    """Why the open intent could not be completed yet; it is retried."""
    seen_offset: int | None = None
    """Where the staging log ended when it was last looked at; None before that."""

    @property
    def staging(self) -> str:
        """The name of its staging topic."""
        return staging_topic(self.name)

    def wants(self, batch_id: int) -> bool:
        """Whether the batch is not committed yet."""
        last = self.stored.last_batch_id
        return last is None or batch_id > last

    def is_about(self, batch_id: int) -> bool:
        """Whether the batch is being committed, or waits for that."""
        intent = self.stored.intent
        return (intent is not None and intent.batch_id == batch_id) or any(
            waiting.asked.batch_id == batch_id for waiting in self.queue
        )
