"""Selects workloads, and runs them one after the other against one broker, each with its own topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from penstock.address import Address
from penstock.bench.context import Case, Endpoints, Options, RowContext, Workload, WorkloadKind
from penstock.bench.faults import BenchError
from penstock.bench.kafka import CLIENT_ID, create_topic
from penstock.bench.process_stats import is_loopback, pid_listening_on
from penstock.bench.rows import Row
from penstock.bench.workloads import WORKLOADS
from penstock.client import Admin, ClientError, Cluster


def select(only: Sequence[str], among: Sequence[Workload] = WORKLOADS) -> list[Workload]:
    """The workloads named in `only`, in their usual order; all of them when it is empty."""
    known = {workload.name for workload in among}
    if unknown := [name for name in only if name not in known]:
        raise BenchError(f"Unknown workload {', '.join(unknown)}; choose from {', '.join(sorted(known))}")
    return [workload for workload in among if not only or workload.name in only]


def cases_of(workloads: Sequence[Workload], acks: Sequence[str]) -> list[Case]:
    """Every workload with each of its acks settings."""
    return [Case(workload, level) for workload in workloads for level in (acks if workload.has_acks else (None,))]


def find_pid(bootstrap: Address) -> int | None:
    """The broker's process, if it is on this machine and visible."""
    return pid_listening_on(bootstrap.port) if is_loopback(bootstrap.host) else None


def run_case(case: Case, endpoints: Endpoints, pid: int | None, options: Options) -> Row:
    """Run one case on a topic that is created for it and deleted afterwards."""
    workload = case.workload
    name = f"bench-{workload.name}-{time.time_ns() // 1000 % 10**9:09d}"
    # A delivery is measured by one consumer of one partition.
    partitions = 1 if workload.kind is WorkloadKind.DELIVERY else options.partitions
    try:
        with Cluster([endpoints.kafka], client_id=CLIENT_ID) as cluster:
            topic = create_topic(cluster, name, partitions)
            try:
                row = workload.run(RowContext(workload, case.acks, endpoints, cluster, topic, pid, options))
            finally:
                with suppress(ClientError):
                    Admin(cluster).delete_topic(name)
    except ClientError as error:
        raise BenchError(str(error)) from error
    except OSError as error:
        raise BenchError(f"The connection broke during the measurement: {error}; see the broker's log") from error
    if not row.records:
        raise BenchError(f"No request was completed in {row.seconds:.1f} s; see the broker's log")
    return row


def run_cases(
    cases: Sequence[Case],
    endpoints: Endpoints,
    pid: int | None,
    options: Options,
    on_case: Callable[[int, Case], None],
) -> Iterator[Row | tuple[Case, BenchError]]:
    """Run the cases in order; one that fails yields its error, and the next one runs."""
    for index, case in enumerate(cases):
        on_case(index, case)
        try:
            yield run_case(case, endpoints, pid, options)
        except BenchError as error:
            yield case, error
