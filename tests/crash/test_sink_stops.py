"""What a driver commits is in its topics once and in order, wherever the node stopped in between.

Every call to the disk that staging and committing make is tried as the last one, with the process killed and with the power
lost; then the driver comes back as Spark's does: it asks for the last batch, stages the next one anew and commits it. The
restarted node is stopped once more while it carries out what was intended.
"""

import pytest

from penstock.operations.sinks import CommittedBatch, OpenedSink
from penstock.types import Flush
from tests.crash.simulated_world import Stopped
from tests.unit.core.sinks.world import SINK, TOPIC, Told, World

BATCHES = 2
PARTITIONS = 2
PER_PARTITION = 7
"""Staged batches for each partition in each batch of the query: more than a log remembers of a producer."""
LARGE = b"x" * 70_000
"""Some are large enough to be written when they are appended."""


def value(batch_id: int, partition: int, number: int) -> bytes:
    return b"%d/%d/%d " % (batch_id, partition, number) + (LARGE if number == 1 else b"")


class Driver:
    """Runs a query until all its batches are committed. Every life of it stages differently."""

    def __init__(self, seed: int, flush: Flush) -> None:
        self.world = World(seed, PARTITIONS, flush)
        self.answered = -1
        self.lives = 0

    def work(self) -> None:
        self.lives += 1
        world = self.world
        last = self._open()
        assert last >= self.answered, "a batch that was answered is forgotten"
        for batch_id in range(last + 1, BATCHES):
            self._run(batch_id)
        world.broker.close()
        world.flusher.sync()
        world.broker.logs.close()

    def _open(self) -> int:
        told = Told()
        self.world.sinks.open(SINK, told)
        self._wait(told)
        assert isinstance(told.result, OpenedSink), told.result
        return -1 if told.result.last_batch_id is None else told.result.last_batch_id

    def _run(self, batch_id: int) -> None:
        world = self.world
        # A task that died, whose work nobody names.
        world.stage(b"garbage of life %d" % self.lives)
        staged = [
            (partition, world.stage(value(batch_id, partition, number)))
            for number in range(PER_PARTITION)
            for partition in range(PARTITIONS)
        ]
        parts = [(TOPIC, p, [each for index, each in staged if index == p]) for p in range(PARTITIONS)]
        told = world.commit(batch_id, *parts)
        # One that does not know that it is dead wants the same.
        zombie = world.commit(batch_id, *parts)
        self._wait(told)
        assert isinstance(told.result, CommittedBatch), told.result
        self.answered = batch_id
        self._wait(zombie)
        assert zombie.committed.already

    def _wait(self, told: Told) -> None:
        for _ in range(60):
            if told.result is not None:
                return
            self.world.turn()
        raise AssertionError("no answer")

    def work_until_call(self, call: int, *, power: bool) -> bool:
        """Die at this call to the disk; False when the work was done before."""
        self.world.disk.stop_at = self.world.disk.calls + call
        try:
            self.work()
        except Stopped:
            return True
        finally:
            self.world.disk.stop(power=power, torn=call % 3 != 0)
        return False

    def check(self) -> None:
        """All is there, once, in order."""
        self.world.restart()
        self.world.settle()
        for partition in range(PARTITIONS):
            assert self.world.values(partition) == [
                value(batch_id, partition, number) for batch_id in range(BATCHES) for number in range(PER_PARTITION)
            ]
        assert self._open() == BATCHES - 1
        assert self.world.status().staged_bytes == 0
        # What came back of the staging log is cut again.
        assert self.world.committed(BATCHES, (TOPIC, 0, [self.world.stage(b"more")])).committed.records == 1
        assert self.world.staging().log.size_bytes == 0
        assert not [line for line in self.world.reports if "dropped" in line]


@pytest.mark.parametrize(("power", "flush"), [(False, Flush.SYNC), (True, Flush.SYNC), (False, Flush.OS)])
def test_every_batch_is_there_once_wherever_the_node_stopped(power, flush, monkeypatch) -> None:
    # The staging log is cut after each commit, so that the node stops in a cut, too.
    monkeypatch.setattr("penstock.core.sinks.staging.Staging.cut.__kwdefaults__", {"at_least_bytes": 1}, raising=True)
    call, stopped = 1, True
    while stopped:
        driver = Driver(call, flush)
        stopped = driver.work_until_call(call, power=power)
        driver.world.boot()
        # The stops of the second life are spread over its work by the number of the first one's.
        driver.work_until_call(1 + call * 7 % 60, power=power)
        driver.world.boot()
        driver.work()
        driver.check()
        call += 1
    assert call > 60, "the work should take more calls to the disk than this"
