"""Order, bounds and losses on the way to an output."""

from collections.abc import Sequence

from penstock.core.audit.writer import Writer, Written
from penstock.meters import Meters


class Slow:
    """An output that ends when the test says so."""

    name = "slow"

    def __init__(self) -> None:
        self.batches: list[tuple[list[bytes], Written]] = []

    def write(self, lines: Sequence[bytes], done: Written) -> None:
        self.batches.append((list(lines), done))


class World:
    def __init__(self, bytes_max: int = 1000) -> None:
        self.output = Slow()
        self.meters = Meters()
        self.reports: list[str] = []
        self.writer = Writer(self.output, self.meters, self.reports.append, bytes_max)
        self.outcomes: list[str | None] = []

    def add(self, line: bytes) -> None:
        self.writer.add(line, self.outcomes.append)

    @property
    def lost(self) -> int:
        return self.meters.audit_lost.get(("slow",))


def test_lines_are_written_in_order_one_batch_at_a_time() -> None:
    world = World()
    for line in (b"a", b"b", b"c"):
        world.add(line)
    assert [lines for lines, _ in world.output.batches] == [[b"a"]]
    world.output.batches[0][1](None)
    assert [lines for lines, _ in world.output.batches] == [[b"a"], [b"b", b"c"]]
    assert world.outcomes == [None]
    assert not world.writer.is_idle
    world.output.batches[1][1](None)
    assert world.outcomes == [None] * 3
    assert world.writer.is_idle


def test_an_output_that_does_not_end_takes_bounded_memory() -> None:
    world = World(bytes_max=100)
    for _ in range(1000):
        world.add(b"x" * 10)
    assert world.lost == 990
    assert len(world.outcomes) == 990
    assert len(world.reports) == 1
    world.output.batches[0][1](None)
    world.output.batches[1][1](None)
    assert world.writer.is_idle
    world.add(b"x")
    assert world.lost == 990


def test_what_fails_is_counted_and_reported_once_and_the_next_is_tried() -> None:
    world = World()
    for _ in range(3):
        world.add(b"x")
        world.output.batches[-1][1]("No space left on device")
    assert world.lost == 3
    assert world.outcomes == ["No space left on device"] * 3
    assert world.reports == ["audit records are lost: output=slow reason=No space left on device"]
    world.add(b"y")
    world.output.batches[-1][1](None)
    assert world.outcomes[-1] is None
    assert world.writer.problem is None
