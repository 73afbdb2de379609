"""A clock and a source of ids that a test owns, and a broker in a world of such parts."""

from typing import Any
from uuid import UUID

from penstock.core.broker import Broker
from penstock.limits import OPEN_SEGMENTS_MAX
from penstock.log.manager import LogManager
from penstock.metadata.memory import MemoryStore
from penstock.metadata.subscribers import Subscribers
from penstock.ports import Clock, Entropy, Flusher
from penstock.settings import GroupSettings, Settings
from penstock.testing.disk import SimulatedDisk
from tests.support.encrypted import disk_of_process
from tests.support.settings import AT_ONCE

DATA_DIR = "/data"
"""On a simulated disk."""


class ManualClock:
    """Stands still until the test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.wall_ms = now_ms
        self.elapsed_ms = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.elapsed_ms

    def advance(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.elapsed_ms += milliseconds


class CountingEntropy:
    """Ids one after the other: the same in every run."""

    def __init__(self) -> None:
        self._count = 0

    def uuid(self) -> UUID:
        self._count += 1
        return UUID(int=self._count, version=4)

    def secret(self, count: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(count, "big")


def broker_on(
    disk: SimulatedDisk,
    store: MemoryStore,
    *,
    clock: Clock,
    entropy: Entropy,
    flusher: Flusher,
    reports: list[str],
    open_segments_max: int = OPEN_SEGMENTS_MAX,
    offsets_topic_partitions: int = 1,
    **settings: Any,
) -> Broker:
    """A broker on what disk and store hold, its logs open; start it. ``settings`` are those of :class:`~penstock.settings.Settings`."""
    # The store outlives the process, its subscribers do not.
    store._subscribers = Subscribers()
    logs = LogManager(
        disk_of_process(disk, DATA_DIR, reports.append),
        DATA_DIR,
        clock,
        reports.append,
        open_segments_max=open_segments_max,
    )
    groups = GroupSettings(initial_rebalance_delay_ms=0, offsets_topic_partitions=offsets_topic_partitions)
    broker = Broker(
        Settings(**{"groups": groups, "queues": AT_ONCE, **settings}),
        clock=clock,
        entropy=entropy,
        store=store,
        logs=logs,
        flusher=flusher,
        report=reports.append,
    )
    logs.open_all()
    return broker
