"""`penstock bench`: drive a broker and say what it gives and what it costs.

Any one that speaks the Kafka protocol; with --gateways, Penstock's other APIs.

The load generator is imported only when the command runs, so that the other commands start without it.
Exit code 1 when a row could not be measured; the others are printed all the same.
"""

import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.failures import Exit, Failure, complain, note
from penstock.cli.options import BOOTSTRAP_DEFAULT, TIMEOUT_S_DEFAULT, Bootstrap, Output, connected
from penstock.cli.output import Format

if TYPE_CHECKING:
    from penstock.address import Address
    from penstock.bench.rows import Row
    from penstock.bench.run import Job
    from penstock.bench.workloads import Options

WIDE_COLUMNS: Final = 200
"""Room for every column; a narrower terminal wraps the lines and loses nothing."""


HttpPlace = Annotated[
    str,
    typer.Option(
        envvar="PENSTOCK_HTTP",
        metavar="HOST:PORT",
        help="With --gateways: where HTTP is, or off; of several with commas, the first that answers.",
    ),
]


class AcksChoice(StrEnum):
    """Which acknowledgements to measure."""

    LEADER = "1"
    ALL = "all"
    BOTH = "both"


def mount(root: typer.Typer) -> None:
    """Add the command."""
    root.command("bench")(bench)


def bench(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    only: Annotated[
        list[str] | None, typer.Option(help="Workloads to run (repeat, or separate by commas); all by default.")
    ] = None,
    gateways: Annotated[
        bool,
        typer.Option("--gateways", help="Measure HTTP, JSON lines over TCP and gRPC instead of the Kafka protocol."),
    ] = False,
    http: HttpPlace = "127.0.0.1:8080",
    tcp: Annotated[str, typer.Option(metavar="HOST:PORT", help="The same for JSON lines over TCP.")] = "127.0.0.1:4040",
    grpc: Annotated[str, typer.Option(metavar="HOST:PORT", help="The same for gRPC.")] = "127.0.0.1:50051",
    acks: Annotated[
        AcksChoice, typer.Option(help="Acknowledgements for rows that write; gateways have one kind.")
    ] = AcksChoice.BOTH,
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
    wide: Annotated[
        bool, typer.Option("--wide", "-w", help="Every number in the table; 80 columns do not hold it.")
    ] = False,
    output: Output = Format.TABLE,
    list_workloads: Annotated[bool, typer.Option("--list", help="Name the workloads and stop.")] = False,
) -> None:
    """Measure a broker.

    Records/s, MB/s, latency, CPU and memory, on topics of its own that are removed afterwards.
    """
    from penstock.bench import report, run
    from penstock.bench.workloads import Options

    if list_workloads:
        _print_list(gateways=gateways)
        return
    names = [name.strip() for item in only or [] for name in item.split(",") if name.strip()]
    jobs_for = _jobs(names, acks, {"http": http, "tcp": tcp, "grpc": grpc} if gateways else None)
    # Asked first with the client that every command has: it says best what is wrong with an address.
    with connected(bootstrap, TIMEOUT_S_DEFAULT) as cluster:
        brokers = len(cluster.describe().nodes)
        address = cluster.any_connection().address
    options = Options(seconds, warmup, partitions, value_bytes, records_max, bytes_max, connections, pipeline)
    pid = pid or run.find_pid(address)
    if pid is None:
        note("no CPU and memory: the broker's process was not found; give --pid when it runs on this machine")
    rows: list[Row] = []
    jobs = jobs_for(address, pid, options)
    for row in _measured(jobs):
        rows.append(row)
        if output is Format.NDJSON:
            print(report.as_json_line(row), flush=True)
    if output is Format.JSON:
        about: dict[str, str | int | float | None] = {
            "bootstrap": bootstrap,
            "brokers": brokers,
            "pid": pid,
            "partitions": partitions,
            "value_bytes": value_bytes,
        }
        print(report.as_json(rows, about))
    elif output is Format.TABLE and rows:
        _print_table(rows, f"{address}, {partitions} partition(s), {value_bytes} B records", wide=wide)
    if len(rows) < len(jobs):
        raise typer.Exit(Exit.FAILED)


def _print_list(*, gateways: bool) -> None:
    from penstock.bench.gateways.rows import GATEWAY_ROWS
    from penstock.bench.workloads import WORKLOADS

    rows = [(row.name, row.title) for row in GATEWAY_ROWS] if gateways else [(one.name, one.title) for one in WORKLOADS]
    width = max(len(name) for name, _ in rows) + 2
    for name, title in rows:
        print(f"{name:{width}}{title}")


def _jobs(
    names: list[str], acks: AcksChoice, places: dict[str, str] | None
) -> Callable[["Address", int | None, "Options"], list["Job"]]:
    """Look at all that was asked for before anything is measured; what to run is then made with the broker's address."""
    from penstock.address import parse_address
    from penstock.bench import run
    from penstock.bench.faults import BenchError
    from penstock.bench.frames import Acks
    from penstock.bench.gateways.context import Endpoints
    from penstock.bench.gateways.rows import gateway_jobs, select_rows
    from penstock.bench.workloads import select_workloads

    levels = {AcksChoice.LEADER: [Acks.LEADER], AcksChoice.ALL: [Acks.ALL]}.get(acks, [Acks.LEADER, Acks.ALL])
    try:
        if places is None:
            cases = run.cases_of(select_workloads(names), levels)
            return lambda address, pid, options: run.kafka_jobs(cases, address, pid, options)
        rows = select_rows(names)
    except BenchError as error:
        raise Failure(f"--only: {error}", Exit.USAGE) from error
    addresses: dict[str, Address | None] = {}
    for name, text in places.items():
        try:
            addresses[name] = None if text == "off" else _one_of(text) if name == "http" else parse_address(text)
        except ValueError as error:
            raise Failure(f"--{name}: {error}", Exit.USAGE) from error

    def of_gateways(address: "Address", pid: int | None, options: "Options") -> list["Job"]:
        endpoints = Endpoints(address, **addresses)
        possible = []
        for row in rows:
            if reason := row.why_not(endpoints):
                note(f"{row.name} is left out: {reason}")
            else:
                possible.append(row)
        if not possible:
            raise Failure("none of the rows can be run here", Exit.USAGE)
        return gateway_jobs(possible, endpoints, pid, options)

    return of_gateways


def _one_of(http: str) -> "Address":
    """The one that is measured: of several nodes the first that answers."""
    from penstock.client.http import HttpConnection

    nodes = HttpConnection(http)
    if len(nodes.addresses) > 1:
        nodes.connect()
        nodes.close()
    return nodes.address


def _measured(jobs: list["Job"]) -> Iterator["Row"]:
    """The rows that could be measured; of the others it is said why not."""
    from rich.console import Console

    from penstock.bench import run
    from penstock.bench.faults import BenchError
    from penstock.bench.rows import Row

    with Console(stderr=True, soft_wrap=True).status("starting") as status:

        def on_job(index: int, job: run.Job) -> None:
            status.update(f"{index + 1} of {len(jobs)}: {job.id}, {job.title}")

        try:
            for result in run.run_jobs(jobs, on_job):
                if isinstance(result, Row):
                    yield result
                else:
                    complain(f"{result[0].id}: {result[1]}")
        except BenchError as error:
            raise Failure(str(error)) from error


def _print_table(rows: list["Row"], title: str, *, wide: bool) -> None:
    from rich.console import Console

    from penstock.bench import report

    Console(file=sys.stdout, width=WIDE_COLUMNS if wide else None).print(report.as_table(rows, title, wide=wide))
