"""Runs the chosen workloads one after the other against one broker; how does not matter here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

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


@dataclass(frozen=True, slots=True)
class Job:
    """A row to be, with all that it needs to be run."""

    id: str
    title: str
    run: Callable[[], Row]


def kafka_jobs(cases: list[Case], bootstrap: Address, pid: int | None, options: Options) -> list[Job]:
    """Cases over the Kafka protocol."""
    return [
        Job(case.id, case.workload.title, partial(run_workload, case.workload, case.acks, bootstrap, pid, options))
        for case in cases
    ]


def run_jobs(jobs: list[Job], on_job: Callable[[int, Job], None]) -> Iterator[Row | tuple[Job, BenchError]]:
    """Run the jobs in order; one that fails yields its error, and the next one runs."""
    for index, job in enumerate(jobs):
        on_job(index, job)
        try:
            yield job.run()
        except BenchError as error:
            yield job, error
