"""One sink as this node has it in memory: what is stored of it, who waits for it, and how far its open intent is."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from penstock.core.access import Caller
from penstock.core.sinks.stored import StoredSink, Target
from penstock.core.topics.names import staging_topic
from penstock.errors import PenstockError, Reason


class Part(NamedTuple):
    """What a caller wants to have in a partition: staged batches by staging partition, base offset and records, in this order."""

    topic: str
    partition: int
    staged: Sequence[tuple[int, int, int]]


class Committed(NamedTuple):
    """A batch is in its targets; ``dropped`` are records whose topic was deleted meanwhile."""

    already: bool
    records: int = 0
    dropped: int = 0


CommitDone = Callable[[Committed | PenstockError], None]


class CommitRequest:
    """Somebody who waits for a commit. Told once."""

    __slots__ = ("_done", "batch_id", "caller", "parts", "staging_id")

    def __init__(
        self, caller: Caller, batch_id: int, parts: Sequence[Part], staging_id: UUID | None, done: CommitDone
    ) -> None:
        self.caller: Final = caller
        self.batch_id: Final = batch_id
        self.parts: Final = parts
        self.staging_id: Final = staging_id
        """The staging topic in which the parts lie; None when the caller does not say."""
        self._done: CommitDone | None = done

    def tell(self, result: Committed | PenstockError) -> None:
        """The end, for this caller."""
        done, self._done = self._done, None
        if done is not None:
            done(result)


class Work:
    """One target of the open intent, and how much of it is done."""

    __slots__ = ("appended", "dropped", "is_lost", "target")

    def __init__(self, target: Target, *, is_lost: bool = False) -> None:
        self.target: Final = target
        self.is_lost: Final = is_lost
        """Whether a loss of power took some of what was staged: possible only if acknowledged does not mean synced."""
        self.appended = 0
        """Records in the target's log, perhaps not committed yet."""
        self.dropped = False
        """The rest has nowhere to go, or is lost."""

    @property
    def left(self) -> int:
        """Records that are still to be appended."""
        return 0 if self.dropped else self.target.record_count - self.appended


class Sink:
    """Changes only by :class:`penstock.core.sinks.commits.Commits` and the door."""

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
        """As it was last committed to ``__sinks``."""
        self.work: list[Work] = []
        """Of the intent in ``stored``."""
        self.is_looked_at = False
        """Whether ``work`` says what the targets really have."""
        self.queue: deque[CommitRequest] = deque()
        self.idle_waiters: list[Callable[[], None]] = []
        self.busy = False
        self.gone = False
        self.has_own_producer = False
        """Whether its producer id was taken since the sinks are spoken for here."""
        self.left: Reason | None = None
        """Why this node serves it no more."""
        self.problem: str | None = None
        """What keeps the open intent from being carried out; it is tried again and again."""
        self.touched_ms = touched_ms
        """Monotonic: when it was last used (``uses.py``). Before the start of the process for one that was not since."""
        self.seen_offset: int | None = None
        """Where the staging log ended when it was last looked at; None before that."""

    def wants(self, batch_id: int) -> bool:
        """Whether the batch is not committed yet."""
        last = self.stored.last_batch_id
        return last is None or batch_id > last

    def is_about(self, batch_id: int) -> bool:
        """Whether the batch is being committed, or waits to be."""
        intent = self.stored.intent
        return (intent is not None and intent.batch_id == batch_id) or any(
            request.batch_id == batch_id for request in self.queue
        )
