"""The runtime for replicated state. A change of state is committed to a compacted internal topic before its caller is answered.

A :class:`Family` is one kind of state (groups, queues, produce keys, sinks) with its own topic. For each partition of the topic that this
node leads, it has a :class:`Shard`: a state machine that the runtime loads, feeds and unloads. A new kind of state needs a topic and
three methods, and has two to write with:

====================  ====================================================================================
``Shard.replay``      take one committed record; called in the order of the log, before anything is served
``Shard.loaded``      the log is replayed: build the state that is served, step by step
``Shard.unloaded``    another node leads now, or the broker stops: answer all waiting callers
``Family.append``     a command's records as one batch, at once; the state changes when they are committed
``Family.put``        one record, in a batch with all others of the turn
====================  ====================================================================================

Invariants:

- A shard belongs to one leader epoch: the next one begins with a new shard and the log. After ``unloaded``, nothing is appended for it.
- A shard is served once all records that an earlier leader may have acknowledged are committed (``leading.py``) and replayed, and
  ``loaded`` has ended. Until then callers get COORDINATOR_LOAD_IN_PROGRESS, and without a shard NOT_COORDINATOR.
- A piece of a load is about :data:`PIECE_BYTES` of work. All connections are served between two pieces.
- A batch is synced at once only if a caller waits for it.

Queues alone change memory first, because many changes of a turn are one record (``core/queues/state_log.py``). When an append fails they
replay the log again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from penstock.core.coordinators.topic import InternalTopic, StateRecord, StoredDone
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.types import Buffer

PIECE_BYTES: Final = 1 * MIB
"""Some milliseconds."""
_RECORD_BYTES: Final = 512
"""The fixed cost of replaying a record."""


class Shard(ABC):
    """The state of one partition of a family's topic, as long as this node leads it."""

    steps: Iterator[int] | None = None
    """The load that is under way, if any."""
    is_served = False

    @abstractmethod
    def replay(self, key: Buffer, value: Buffer | None, written_ms: int) -> None:
        """Take a committed record. Without a value, the key is deleted. ``written_ms`` is the time of its append."""

    @abstractmethod
    def loaded(self) -> Iterator[int]:
        """All records are replayed. Yields the cost of each step in bytes."""

    @abstractmethod
    def unloaded(self, reason: Reason) -> None:
        """The shard ends, for this reason. This may happen at any time, even while it is being loaded."""


S_co = TypeVar("S_co", bound=Shard, covariant=True)


class Family(Generic[S_co]):
    """All state of one kind. ``name`` is the word for it in error texts."""

    def __init__(self, topic: InternalTopic, make: Callable[[int], S_co], name: str) -> None:
        self.topic: Final = topic
        self.shards: Final[dict[int, S_co]] = {}
        """Those that are served, being loaded, or about to be loaded."""
        self._make = make
        self._name = name
        self._gathered: dict[int, tuple[list[StateRecord], list[StoredDone]]] = {}

    # Serving.

    def served(self, index: int) -> S_co:
        """The shard; NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS if this node does not serve it."""
        shard = self.shards.get(index)
        if shard is None:
            raise self.not_coordinator()
        if not shard.is_served:
            raise PenstockError(
                Reason.COORDINATOR_LOAD_IN_PROGRESS, f"This node is loading {self._name}; try again in a moment"
            )
        return shard

    def serves(self, index: int) -> bool:
        """Whether the shard is loaded."""
        shard = self.shards.get(index)
        return shard is not None and shard.is_served

    def not_coordinator(self) -> PenstockError:
        """The refusal of a node that does not lead the partition."""
        return PenstockError(Reason.NOT_COORDINATOR, f"Another node coordinates {self._name}; send the request again")

    @property
    def loading(self) -> int | None:
        """One of the partitions that are being loaded."""
        return next((index for index, shard in self.shards.items() if shard.steps is not None), None)

    # Loading and unloading.

    def expect(self, index: int) -> S_co:
        """This node leads the partition. Callers get COORDINATOR_LOAD_IN_PROGRESS until it is loaded."""
        assert index not in self.shards, "unload a partition before it is loaded again"
        shard = self.shards[index] = self._make(index)
        return shard

    def begin_load(self, index: int) -> None:
        """All its records are committed: :meth:`load_some` loads it."""
        shard = self.shards.get(index) or self.expect(index)
        shard.steps = self._load(index, shard)

    def load_some(self, index: int) -> bool:
        """Load a piece; True once the shard is served, or never will be. PenstockError if the log cannot be read."""
        shard = self.shards.get(index)
        if shard is None or shard.steps is None:
            return True
        left = PIECE_BYTES
        try:
            for cost in shard.steps:
                left -= cost
                if left <= 0:
                    return False
        except PenstockError:
            # An incomplete state is never served.
            shard.steps = None
            raise
        shard.steps = None
        shard.is_served = True
        return True

    def load(self, index: int) -> None:
        """Load a partition to the end."""
        self.begin_load(index)
        while not self.load_some(index):
            pass

    def _load(self, index: int, shard: Shard) -> Iterator[int]:
        for key, value, written_ms in self.topic.replay(index):
            shard.replay(key, value, written_ms)
            yield _RECORD_BYTES + (0 if value is None else len(value))
        yield from shard.loaded()

    def unload(self, index: int, reason: Reason = Reason.NOT_COORDINATOR) -> None:
        """This node no longer leads the partition. Does nothing if it did not."""
        shard = self.shards.pop(index, None)
        if shard is not None:
            shard.steps = None
            self._gathered.pop(index, None)
            shard.unloaded(reason)

    def close(self, reason: Reason) -> None:
        """The broker stops."""
        for index in list(self.shards):
            self.unload(index, reason)

    # Writing.

    def append(self, index: int, records: Sequence[StateRecord], done: StoredDone) -> None:
        """Append one batch. PenstockError if it is refused; otherwise ``done`` is called once it is committed or has failed."""
        if index not in self.shards:
            raise self.not_coordinator()
        self.topic.when_committed(index, self.topic.append(index, records), done)

    def put(self, index: int, key: bytes, value: bytes | None, done: StoredDone | None = None) -> None:
        """Append a record at the end of this turn, unless the shard is unloaded by then. Without ``done``, no caller waits for it."""
        gathered = self._gathered.get(index)
        if gathered is None:
            if index not in self.shards:
                return
            if not self._gathered:
                self.topic.gather(self._append_gathered)
            gathered = self._gathered[index] = [], []
        gathered[0].append((key, value))
        if done is not None:
            gathered[1].append(done)

    def _append_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for index, (records, waiting) in gathered.items():
            tell = partial(_tell_all, waiting)
            try:
                next_offset = self.topic.append(index, records, hurried=bool(waiting))
                if waiting:
                    self.topic.when_committed(index, next_offset, tell)
            except PenstockError as error:
                self.topic.report(f"{len(records)} records of {self.topic.name}/{index} were not stored: {error.text}")
                tell(error.reason)


def _tell_all(waiting: list[StoredDone], reason: Reason | None) -> None:
    for done in waiting:
        done(reason)
