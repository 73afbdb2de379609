"""A clock and a source of ids that a test owns."""

from uuid import UUID


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
