"""`penstock bench`: drive any Kafka-protocol broker and say what it gives and what it costs.

The load generator is imported only when the command runs, so that the other commands start without it.
Exit codes: 0 all rows measured, 1 a row or the whole run failed, 2 wrong usage.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from penstock.bench.workloads import Options


class Output(StrEnum):
    """How to print the result."""

    TABLE = "table"
    JSON = "json"


class AcksChoice(StrEnum):
    """Which acknowledgements to measure."""

    LEADER = "1"
    ALL = "all"
    BOTH = "both"


app = typer.Typer(add_completion=False)


@app.command()
def bench(
    bootstrap: Annotated[str, typer.Option(help="Broker to drive, HOST:PORT.")] = "127.0.0.1:9092",
    only: Annotated[
        list[str] | None, typer.Option(help="Workloads to run (repeat, or separate by commas); all by default.")
    ] = None,
    acks: Annotated[AcksChoice, typer.Option(help="Acknowledgements for rows that write.")] = AcksChoice.BOTH,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Measured seconds a row.")] = 5.0,
    warmup: Annotated[float, typer.Option(min=0, max=600, help="Seconds before that, not measured.")] = 1.0,
    partitions: Annotated[
        int, typer.Option(min=1, max=1000, help="Partitions of each topic; connections are spread over them.")
    ] = 1,
    value_bytes: Annotated[int, typer.Option(min=8, max=1_000_000, help="Bytes of a record's value.")] = 100,
    connections: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Override the connections of raw rows.")
    ] = None,
    pipeline: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Override the requests under way per connection.")
    ] = None,
    records_max: Annotated[int, typer.Option(min=100, help="Most records written by one row.")] = 100_000_000,
    bytes_max: Annotated[int, typer.Option(min=1 << 20, help="Most bytes written by one row.")] = 4 << 30,
    pid: Annotated[
        int | None, typer.Option(help="The broker's process; found by its port when on this machine.")
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Table for people, JSON for programs.")
    ] = Output.TABLE,
    list_workloads: Annotated[bool, typer.Option("--list", help="Name the workloads and stop.")] = False,
) -> None:
    """Measure a broker: records/s, MB/s, latency, CPU and memory, on topics of its own that are removed afterwards."""
    from penstock.bench.workloads import WORKLOADS, Options

    if list_workloads:
        for workload in WORKLOADS:
            typer.echo(f"{workload.name:16} {workload.title}")
        return
    names = [name.strip() for item in only or [] for name in item.split(",") if name.strip()]
    options = Options(
        seconds=seconds,
        warmup_s=warmup,
        partitions=partitions,
        value_bytes=value_bytes,
        records_max=records_max,
        bytes_max=bytes_max,
        connections=connections,
        window=pipeline,
    )
    if not _measure(bootstrap, names, acks, pid, options, output):
        raise typer.Exit(1)


def _measure(
    bootstrap: str, names: list[str], acks: AcksChoice, pid: int | None, options: Options, output: Output
) -> bool:
    """Run and print; whether every row could be measured."""
    from penstock.bench import report, run
    from penstock.bench.admin import Admin, first_address
    from penstock.bench.faults import BenchError
    from penstock.bench.frames import Acks
    from penstock.bench.rows import Row
    from penstock.bench.workloads import select_workloads

    levels = {AcksChoice.LEADER: [Acks.LEADER], AcksChoice.ALL: [Acks.ALL]}.get(acks, [Acks.LEADER, Acks.ALL])
    errors = Console(stderr=True, soft_wrap=True)
    rows: list[Row] = []
    try:
        cases = run.cases_of(select_workloads(names), levels)
        address = first_address(bootstrap)
        with Admin(address) as admin:
            brokers = len(admin.brokers())
        pid = pid or run.find_pid(address)
        with errors.status("starting") as status:

            def on_case(index: int, case: run.Case) -> None:
                status.update(f"{index + 1} of {len(cases)}: {case.id}, {case.workload.title}")

            for result in run.run_cases(cases, address, pid, options, on_case):
                if isinstance(result, Row):
                    rows.append(result)
                else:
                    errors.print(f"{result[0].id}: {result[1]}", style="red", markup=False)
    except BenchError as error:
        errors.print(f"bench: {error}", style="red", markup=False)
        return False
    if pid is None:
        errors.print("no CPU and memory: the broker's process was not found; give --pid when it runs on this machine")
    if output is Output.JSON:
        about: dict[str, str | int | float | None] = {
            "bootstrap": bootstrap,
            "brokers": brokers,
            "pid": pid,
            "partitions": options.partitions,
            "value_bytes": options.value_bytes,
        }
        typer.echo(report.as_json(rows, about))
    elif rows:
        title = f"{bootstrap}, {options.partitions} partition(s), {options.value_bytes} B records"
        Console().print(report.as_table(rows, title))
    return len(rows) == len(cases)
