"""A broker on a simulated disk, and producers that send with keys."""

from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from penstock.core.idempotency.idempotency import Admit
from penstock.core.idempotency.stored import KEY_HEADER, TENANT_HEADER
from penstock.core.publish import NewRecord, Placed
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError
from penstock.metadata.memory import MemoryStore
from penstock.records.records import Record
from penstock.settings import LogSettings, QueueSettings
from penstock.types import Acks, Flush, Gateway
from tests.crash.simulated_node import read_all
from tests.crash.simulated_world import SeededEntropy, StepFlusher, TroubledDisk
from tests.support.worlds import DATA_DIR, ManualClock, broker_on

TOPIC = "t"
WINDOW_MS = 600_000
CALLER = Caller(ANONYMOUS, Gateway.HTTP)


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


@dataclass
class Sent:
    """A record that somebody sent, and what the answer was."""

    value: bytes
    result: Placed | PenstockError | None = None
    duplicate: bool | None = None

    def __call__(self, result: Placed | PenstockError, duplicate: bool) -> None:
        assert self.result is None, "answered twice"
        self.result, self.duplicate = result, duplicate

    @property
    def placed(self) -> Placed:
        assert isinstance(self.result, Placed), self.result
        return self.result

    @property
    def error(self) -> PenstockError:
        assert isinstance(self.result, PenstockError), self.result
        return self.result


class World:
    """Nothing is written or synced until the test says so."""

    def __init__(self, seed: int = 0, partitions: int = 2, flush: Flush = Flush.SYNC) -> None:
        self.disk = TroubledDisk(seed)
        self.disk.make_dirs(DATA_DIR)
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.entropy = SeededEntropy(seed)
        self.flush = flush
        self.reports: list[str] = []
        self.numbers = 0
        self.boot()
        finish(self.broker.topics.create(NewTopic(TOPIC, partitions)))

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
            queues=QueueSettings(idempotency_ms=WINDOW_MS),
        )
        finish(self.broker.start())

    def restart(self, *, power: bool = False) -> None:
        """The process dies, and another one starts."""
        self.disk.stop(power=power, torn=power)
        self.boot()

    @property
    def keys(self):
        return self.broker.idempotency

    def send(
        self,
        key: str = "k",
        *,
        tenant: str = "",
        topic: str = TOPIC,
        partition: int | None = None,
        acks: Acks = Acks.ALL,
        admit: Admit | None = None,
        value: bytes | None = None,
    ) -> Sent:
        self.numbers += 1
        sent = Sent(value or b"v%d" % self.numbers)
        record = NewRecord(b"user", sent.value, (("colour", b"red"),), partition)
        self.keys.publish_once(CALLER, topic, record, acks, tenant, key, sent, admit=admit)
        return sent

    def turn(self) -> None:
        """One turn of the loop: what was gathered is written and synced, and the clock's work is done."""
        self.flusher.sync()
        self.keys.tick(self.clock.monotonic_ms())
        self.broker.cluster.appends.tick(self.clock.monotonic_ms())

    def settle(self) -> None:
        """Turns until nothing is under way."""
        for _ in range(8):
            self.turn()

    def sent(self, *args: Any, **options: Any) -> Sent:
        """Send, and wait for the answer."""
        sent = self.send(*args, **options)
        self.settle()
        return sent

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.settle()

    def records(self, topic: str = TOPIC) -> list[tuple[int, Record]]:
        count = self.broker.topics.require(topic).partition_count
        return [(index, record) for index in range(count) for record in read_all(self.broker.partition(topic, index))]

    def values(self) -> list[bytes | None]:
        return sorted(record.value or b"" for _, record in self.records())

    def by_key(self) -> Counter[tuple[bytes, bytes]]:
        """How many records there are of each tenant and key."""
        found: Counter[tuple[bytes, bytes]] = Counter()
        for _, record in self.records():
            headers = dict(record.headers)
            if KEY_HEADER in headers:
                found[headers.get(TENANT_HEADER) or b"", headers[KEY_HEADER] or b""] += 1
        return found
