"""The way of the records to their outputs: in order, in batches, outside the event loop, and in bounded memory.

Each output has a buffer of its own, so that one that is slow or fails takes nothing from another. What does not fit is lost and counted.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.limits import AUDIT_BATCH_RECORDS_MAX, AUDIT_PENDING_BYTES_MAX
from penstock.meters import Meters

Written = Callable[[str | None], None]
"""Called once with None, or with why the records could not be written."""


class Output(Protocol):
    """Where the audit log goes."""

    name: str
    """For the metric of losses and the log."""

    def write(self, lines: Sequence[bytes], done: Written) -> None:
        """Write these lines in order. Returns at once; ``done`` is called on the event loop, perhaps before this returns."""
        ...


class Writer:
    """One output and its buffer."""

    def __init__(
        self, output: Output, meters: Meters, report: Callable[[str], None], bytes_max: int = AUDIT_PENDING_BYTES_MAX
    ) -> None:
        self.output: Final = output
        self.problem: str | None = None
        """Why the last batch could not be written; None if it was."""
        self._meters = meters
        self._report = report
        self._bytes_max = bytes_max
        self._pending: deque[tuple[bytes, Written | None]] = deque()
        self._pending_bytes = 0
        self._writing: list[tuple[bytes, Written | None]] = []

    @property
    def is_idle(self) -> bool:
        """Whether everything is written or lost."""
        return not self._pending and not self._writing

    def add(self, line: bytes, done: Written | None = None) -> None:
        """Write a line in its turn. ``done`` is called with the outcome."""
        if self._pending_bytes + len(line) > self._bytes_max:
            self._lose(1, "its buffer is full")
            if done is not None:
                done("the buffer of the audit log is full")
            return
        self._pending.append((line, done))
        self._pending_bytes += len(line)
        if not self._writing:
            self._write()

    def _write(self) -> None:
        count = min(len(self._pending), AUDIT_BATCH_RECORDS_MAX)
        self._writing = [self._pending.popleft() for _ in range(count)]
        if self._writing:
            self.output.write([line for line, _ in self._writing], self._written)

    def _written(self, problem: str | None) -> None:
        written, self._writing = self._writing, []
        self._pending_bytes -= sum(len(line) for line, _ in written)
        if problem is not None:
            self._lose(len(written), problem)
        self.problem = problem
        for _, done in written:
            if done is not None:
                done(problem)
        if not self._writing:
            self._write()

    def _lose(self, count: int, why: str) -> None:
        self._meters.audit_lost.add((self.output.name,), count)
        if self.problem != why:
            # Once, not for every record.
            self._report(f"audit records are lost: output={self.output.name} reason={why}")
            self.problem = why
