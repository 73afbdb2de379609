"""Runs the chosen workloads one after the other against one broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.address import Address
from penstock.bench.faults import BenchError
from penstock.bench.frames import Acks
from penstock.bench.process_stats import is_loopback, pid_listening_on
from penstock.bench.rows import Row
from penstock.bench.workloads import Options, Workload, run_workload


@dataclass(frozen=True, slots=True)
class Case:
    """One row to be: a workload with its acks."""

    workload: Workload
    acks: Acks | None

    @property
    def id(self) -> str:
        """The name of the row."""
        return f"{self.workload.name}/acks={self.acks.label}" if self.acks else self.workload.name


def cases_of(workloads: list[Workload], acks: list[Acks]) -> list[Case]:
    """Every workload with each acks that applies to it."""
    return [Case(workload, level) for workload in workloads for level in (acks if workload.has_acks else (None,))]


def find_pid(bootstrap: Address) -> int | None:
    """The broker's process, when it is on this machine and may be seen."""
    return pid_listening_on(bootstrap.port) if is_loopback(bootstrap.host) else None


def run_cases(
    cases: list[Case], bootstrap: Address, pid: int | None, options: Options, on_case: Callable[[int, Case], None]
) -> Iterator[Row | tuple[Case, BenchError]]:
    """Run the cases in order; a case that fails yields its error, and the next one runs."""
    for index, case in enumerate(cases):
        on_case(index, case)
        try:
            yield run_workload(case.workload, case.acks, bootstrap, pid, options)
        except BenchError as error:
            yield case, error
