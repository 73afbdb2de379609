"""One sink in the memory of its coordinator: its stored state, the waiting commits, and the progress of its open intent."""

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.core.access import Caller
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


class Work:
    """One target of the open intent, and how much of it is done."""

    __slots__ = ("appended", "dropped", "is_lost", "target")

    def __init__(self, target: Target, *, is_lost: bool = False) -> None:
        self.target: Final = target
        self.is_lost: Final = is_lost
        """Whether a power loss destroyed some of the staged batches. Possible only if records are acknowledged before they are synced."""
        self.appended = 0
        """Records in the target's log, committed or not."""
        self.dropped = False
        """The remaining records are lost, or their topic was deleted."""

    @property
    def left(self) -> int:
        """Records that are still to be appended."""
        return 0 if self.dropped else self.target.record_count - self.appended


class Sink:
    """Changed only by ``SinkCommits`` and ``Sinks``."""

    __slots__ = (
        "busy",
        "gone",
        "has_own_producer",
        "idle_waiters",
        "is_looked_at",
        "left",
        "name",
        "problem",
        "queue",
        "seen_offset",
        "staging",
        "stored",
        "touched_ms",
        "work",
    )

    def __init__(self, name: str, stored: StoredSink, touched_ms: int) -> None:
        self.name: Final = name
        self.staging: Final = staging_topic(name)
        self.stored = stored
        """As last committed to ``__sinks``."""
        self.work: list[Work] = []
        """The targets of the intent in ``stored``."""
        self.is_looked_at = False
        """Whether ``work`` is what the targets really have."""
        self.queue: deque[WaitingCommit] = deque()
        self.idle_waiters: list[Callable[[], None]] = []
        self.busy = False
        self.gone = False
        """Deleted, or coordinated by another node."""
        self.has_own_producer = False
        """Whether this coordinator has taken a producer id for it."""
        self.left: Reason | None = None
        """Why this node no longer coordinates it."""
        self.problem: str | None = None
        """Why the open intent could not be completed yet; it is retried."""
        self.touched_ms = touched_ms
        """Monotonic time of the last use (``uses.py``). Before the start of the process if it was not used since."""
        self.seen_offset: int | None = None
        """Where the staging log ended when it was last looked at; None before that."""

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
