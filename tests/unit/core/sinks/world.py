"""A broker on a simulated disk, tasks that stage batches, and a driver that commits them."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from penstock.core.partitions.partition import Partition
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError
from penstock.metadata.memory import MemoryStore
from penstock.operations.sinks import AbortedBatch, CommitSink, CommittedBatch, OpenedSink, SinkPart
from penstock.records.batch import Compression, read_header
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.settings import LogSettings, SinkSettings
from penstock.types import Flush, Gateway
from tests.crash.simulated_node import read_all
from tests.crash.simulated_world import SeededEntropy, StepFlusher, TroubledDisk
from tests.support.worlds import DATA_DIR, ManualClock, broker_on
from tests.unit.core.idempotency.world import finish

TOPIC = "t"
SINK = "q.0"
IDLE_MS = 3_600_000
CALLER = Caller(ANONYMOUS, Gateway.HTTP)
Staged = tuple[int, int, int]


class Told:
    """What the answer to a call was."""

    def __init__(self) -> None:
        self.result: Any = None

    def __call__(self, result: Any) -> None:
        assert self.result is None, "answered twice"
        self.result = result

    @property
    def committed(self) -> CommittedBatch:
        assert isinstance(self.result, CommittedBatch), self.result
        return self.result

    @property
    def error(self) -> PenstockError:
        assert isinstance(self.result, PenstockError), self.result
        return self.result


class World:
    """Nothing is written or synced until the test says so."""

    def __init__(self, seed: int = 0, partitions: int = 2, flush: Flush = Flush.SYNC, **settings: Any) -> None:
        self.disk = TroubledDisk(seed)
        self.disk.make_dirs(DATA_DIR)
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.entropy = SeededEntropy(seed)
        self.flush = flush
        self.settings = SinkSettings(**{"staging_idle_ms": IDLE_MS, **settings})
        self.reports: list[str] = []
        self.boot()
        self.create(TOPIC, partitions)

    def boot(self) -> None:
        """Start on what the disk holds."""
        self.flusher = StepFlusher()
        self.broker = broker_on(
            self.disk,
            self.store,
            clock=self.clock,
            entropy=self.entropy,
            flusher=self.flusher,
            reports=self.reports,
            open_segments_max=6,
            log=LogSettings(flush=self.flush),
            sinks=self.settings,
        )
        finish(self.broker.start())

    def restart(self, *, power: bool = False) -> None:
        """The process dies, and another one starts."""
        self.disk.stop(power=power, torn=power)
        self.boot()

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        by_name = {key.replace("_", "."): value for key, value in configs.items()}
        finish(self.broker.topics.create(NewTopic(name, partitions, configs=by_name)))

    def delete(self, name: str) -> None:
        finish(self.broker.topics.delete(name))

    def alter(self, name: str, key: str, value: str) -> None:
        finish(self.broker.topics.alter(name, [ConfigChange(key, ChangeKind.SET, value)]))

    @property
    def sinks(self):
        return self.broker.sinks

    # Turns.

    def turn(self) -> None:
        """One turn of the loop: what was gathered is written and synced, and the clock's work is done."""
        self.flusher.sync()
        self.sinks.tick(self.clock.monotonic_ms())

    def settle(self, turns: int = 40) -> None:
        """Turns until nothing is under way."""
        for _ in range(turns):
            self.turn()

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.settle()

    # What a driver and its tasks do.

    def open(self, sink: str = SINK, remember_ms: int | None = None) -> OpenedSink:
        told = Told()
        self.sinks.open(sink, told, remember_ms=remember_ms)
        self.settle()
        if isinstance(told.result, PenstockError):
            raise told.result
        assert isinstance(told.result, OpenedSink), told.result
        return told.result

    def staging(self, sink: str = SINK) -> Partition:
        return self.broker.partition(f"__staging.{sink}", 0)

    def stage(
        self,
        *values: bytes,
        key: bytes | None = b"k",
        sink: str = SINK,
        compression: Compression = Compression.NONE,
        timestamp_ms: int | None = None,
    ) -> Staged:
        """One batch, acknowledged."""
        at_ms = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        records = [Record(number, at_ms, key, value) for number, value in enumerate(values)]
        offset = self.staging(sink).append(build_batch(records, compression=compression), self.clock.now_ms())
        self.flusher.sync()
        return 0, offset, len(values)

    def commit(
        self,
        batch_id: int,
        *parts: SinkPart | tuple[str, int, Sequence[Staged]],
        sink: str = SINK,
        staging_id: UUID | None = None,
    ) -> Told:
        told = Told()
        all_parts = [
            part if isinstance(part, SinkPart) else SinkPart(part[0], part[1], list(part[2])) for part in parts
        ]
        self.sinks.commit(CALLER, CommitSink(sink, batch_id, all_parts, staging_id), told)
        return told

    def committed(
        self,
        batch_id: int,
        *parts: tuple[str, int, Sequence[Staged]],
        sink: str = SINK,
        staging_id: UUID | None = None,
    ) -> Told:
        """Commit, and wait for the answer."""
        told = self.commit(batch_id, *parts, sink=sink, staging_id=staging_id)
        self.settle()
        return told

    def abort(self, batch_id: int, sink: str = SINK) -> AbortedBatch:
        told = Told()
        self.sinks.abort(sink, batch_id, told)
        self.settle()
        assert isinstance(told.result, AbortedBatch), told.result
        return told.result

    def delete_sink(self, sink: str = SINK) -> None:
        answers: list[PenstockError | None] = []
        self.sinks.delete(sink, answers.append)
        self.settle()
        assert answers == [None]

    def status(self, sink: str = SINK):
        return self.sinks.status(sink)

    # What readers see.

    def values(self, partition: int = 0, topic: str = TOPIC) -> list[bytes]:
        return [record.value or b"" for record in read_all(self.broker.partition(topic, partition))]

    def headers(self, partition: int = 0, topic: str = TOPIC):
        source = self.broker.partition(topic, partition)
        data = source.read(0, 1_000_000).data
        found, position = [], 0
        while position < len(data):
            found.append(read_header(data, position))
            position += found[-1].size_bytes
        return found
