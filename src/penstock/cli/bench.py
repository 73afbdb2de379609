"""`penstock bench`: drive any Kafka-protocol broker and say what it gives and what it costs.

The load generator is imported only when the command runs, so that the other commands start without it.
Exit codes: 0 all rows measured, 1 a row or the whole run failed, 2 wrong usage.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console


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
    from penstock.bench import report, run
    from penstock.bench.admin import Address, Admin
    from penstock.bench.faults import BenchError
    from penstock.bench.frames import Acks
    from penstock.bench.rows import Row
    from penstock.bench.workloads import WORKLOADS, Options, select_workloads

    if list_workloads:
        for workload in WORKLOADS:
            typer.echo(f"{workload.name:16} {workload.title}")
        return
    errors = Console(stderr=True)
    names = [name.strip() for item in only or [] for name in item.split(",") if name.strip()]
    levels = {AcksChoice.LEADER: [Acks.LEADER], AcksChoice.ALL: [Acks.ALL], AcksChoice.BOTH: [Acks.LEADER, Acks.ALL]}[
        acks
    ]
    rows: list[Row] = []
    failed = 0
    try:
        cases = run.cases_of(select_workloads(names), levels)
        address = Address.parse(bootstrap)
        with Admin(address) as admin:
            brokers = len(admin.brokers())
        pid = pid or run.find_pid(address)
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
        with errors.status("starting") as status:

            def on_case(index: int, case: run.Case) -> None:
                status.update(f"[{index + 1}/{len(cases)}] {case.id}: {case.workload.title}")

            for result in run.run_cases(cases, address, pid, options, on_case):
                if isinstance(result, Row):
                    rows.append(result)
                else:
                    failed += 1
                    errors.print(f"{result[0].id}: {result[1]}", style="red", markup=False)
    except BenchError as error:
        errors.print(f"bench: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    if pid is None:
        errors.print(
            "CPU and memory are not shown: the broker's process was not found; give --pid when it runs on this machine"
        )
    about: dict[str, str | int | float | None] = {
        "bootstrap": bootstrap,
        "brokers": brokers,
        "pid": pid,
        "partitions": partitions,
        "value_bytes": value_bytes,
    }
    if output is Output.JSON:
        typer.echo(report.as_json(rows, about))
    elif rows:
        Console(width=None).print(
            report.as_table(rows, f"{bootstrap}, {partitions} partition(s), {value_bytes} B records")
        )
    if failed:
        raise typer.Exit(1)
