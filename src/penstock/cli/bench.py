"""`penstock bench`: drive a broker, and show how fast it is and what that costs.

Any broker that speaks the Kafka protocol; with --gateways, Penstock's other APIs.

The load generator is imported only when the command runs, so that the other commands start without it.
Exit code 1 when a row could not be measured; the others are printed all the same.
"""

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.connecting import client_security
from penstock.cli.failures import Exit, Failure, complain, note
from penstock.cli.options import BOOTSTRAP_DEFAULT, TIMEOUT_S_DEFAULT, Bootstrap, Output, connected
from penstock.cli.output import Format

if TYPE_CHECKING:
    from penstock.address import Address
    from penstock.bench.context import Case, Endpoints, Options, Workload
    from penstock.bench.rows import Row

WIDE_COLUMNS: Final = 200
"""Room for every column; a narrower terminal wraps the lines and loses nothing."""


HttpPlace = Annotated[
    str,
    typer.Option(
        envvar="PENSTOCK_HTTP",
        metavar="HOST:PORT",
        help="With --gateways, use this HTTP listener, or the first of several that answers; or off.",
    ),
]


class AcksChoice(StrEnum):
    """Which acknowledgements to measure."""

    LEADER = "1"
    ALL = "all"
    BOTH = "both"


def bench(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    only: Annotated[list[str] | None, typer.Option(help="Run only these workloads, separated by commas.")] = None,
    gateways: Annotated[
        bool,
        typer.Option("--gateways", help="Measure HTTP, JSON lines over TCP and gRPC instead of the Kafka protocol."),
    ] = False,
    http: HttpPlace = "127.0.0.1:8080",
    tcp: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --gateways, use this JSON lines listener, or off.")
    ] = "127.0.0.1:4040",
    grpc: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --gateways, use this gRPC listener, or off.")
    ] = "127.0.0.1:50051",
    acks: Annotated[
        AcksChoice, typer.Option(help="Wait for these acknowledgements in workloads that write (Kafka protocol only).")
    ] = AcksChoice.BOTH,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Measure each row for this many seconds.")] = 5.0,
    warmup: Annotated[float, typer.Option(min=0, max=600, help="Warm up for this many seconds first.")] = 1.0,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Use topics with this many partitions.")] = 1,
    value_bytes: Annotated[int, typer.Option(min=8, max=1_000_000, help="Use record values of this many bytes.")] = 100,
    connections: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Use this many connections in raw rows.")
    ] = None,
    pipeline: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Keep this many requests in flight per connection.")
    ] = None,
    records_max: Annotated[int, typer.Option(min=100, help="Write at most this many records per row.")] = 100_000_000,
    bytes_max: Annotated[int, typer.Option(min=1 << 20, help="Write at most this many bytes per row.")] = 4 << 30,
    pid: Annotated[
        int | None, typer.Option(help="Read CPU and memory of this process.  [default: found by its port]")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", "-w", help="Show all columns (wider than 80 characters).")] = False,
    output: Output = Format.TABLE,
    list_workloads: Annotated[bool, typer.Option("--list", help="List the workloads and exit.")] = False,
) -> None:
    """Measure a broker.

    Shows records/s, MB/s, latency, CPU and memory. Uses topics of its own, which it deletes afterwards.
    """
    from penstock.bench import report, run
    from penstock.bench.context import Options
    from penstock.bench.gateways.workloads import GATEWAY_WORKLOADS
    from penstock.bench.workloads import WORKLOADS

    among = GATEWAY_WORKLOADS if gateways else WORKLOADS
    if list_workloads:
        _print_list(among)
        return
    chosen = _chosen(only or [], among)
    places = _places(http=http, tcp=tcp, grpc=grpc) if gateways else {}
    # The client that every command has goes first: it reports best what is wrong with an address.
    if client_security().uses_tls or client_security().sasl_mechanism is not None:
        raise Failure(
            "The workloads use plain connections without a login: measure a listener on loopback without TLS and authentication",
            Exit.USAGE,
        )
    with connected(bootstrap, TIMEOUT_S_DEFAULT) as cluster:
        about: dict[str, str | int | None] = {"bootstrap": bootstrap, "brokers": len(cluster.describe().nodes)}
        address = cluster.any_connection().address
    endpoints, chosen = _possible(address, places, chosen)
    pid = pid or _found_pid(address)
    about |= {"pid": pid, "partitions": partitions, "value_bytes": value_bytes}
    options = Options(seconds, warmup, partitions, value_bytes, records_max, bytes_max, connections, pipeline)
    rows: list[Row] = []
    cases = run.cases_of(chosen, ["1", "all"] if acks is AcksChoice.BOTH else [acks.value])
    for row in _measured(cases, endpoints, pid, options):
        rows.append(row)
        if output is Format.NDJSON:
            print(report.as_json_line(row), flush=True)
    if output is Format.JSON:
        print(report.as_json(rows, about))
    elif output is Format.TABLE and rows:
        _print_table(rows, f"{address}, {partitions} partition(s), {value_bytes} B records", wide=wide)
    if len(rows) < len(cases):
        raise typer.Exit(Exit.FAILED)


def _found_pid(address: "Address") -> int | None:
    from penstock.bench.run import find_pid

    pid = find_pid(address)
    if pid is None:
        note(
            "CPU and memory are not shown, since the broker's process was not found; specify --pid if it runs on this machine"
        )
    return pid


def _print_list(workloads: Sequence["Workload"]) -> None:
    width = max(len(workload.name) for workload in workloads) + 2
    for workload in workloads:
        print(f"{workload.name:{width}}{workload.title}")


def _print_table(rows: list["Row"], title: str, *, wide: bool) -> None:
    from rich.console import Console

    from penstock.bench import report

    Console(file=sys.stdout, width=WIDE_COLUMNS if wide else None).print(report.as_table(rows, title, wide=wide))


def _chosen(only: list[str], among: Sequence["Workload"]) -> list["Workload"]:
    from penstock.bench import run
    from penstock.bench.faults import BenchError

    try:
        return run.select([name.strip() for item in only for name in item.split(",") if name.strip()], among)
    except BenchError as error:
        raise Failure(f"--only: {error}", Exit.USAGE) from error


def _places(**texts: str) -> dict[str, "Address | None"]:
    """The listeners of the gateways, by the names of their options."""
    from penstock.address import parse_address

    found: dict[str, Address | None] = {}
    for name, text in texts.items():
        try:
            found[name] = None if text == "off" else _one_of(text) if name == "http" else parse_address(text)
        except ValueError as error:
            raise Failure(f"--{name}: {error}", Exit.USAGE) from error
    return found


def _one_of(http: str) -> "Address":
    """The node that is measured: of several, the first that answers."""
    from penstock.client.http import HttpSession

    nodes = HttpSession(http, security=client_security())
    if len(nodes.addresses) > 1:
        nodes.connect()
        nodes.close()
    return nodes.address


def _possible(
    kafka: "Address", places: dict[str, "Address | None"], workloads: list["Workload"]
) -> tuple["Endpoints", list["Workload"]]:
    """The endpoints, and the workloads that can run there."""
    from penstock.bench.context import Endpoints

    endpoints = Endpoints(kafka, **places)
    possible = []
    for workload in workloads:
        if reason := workload.why_not(endpoints):
            note(f"Leaving out {workload.name}: {reason}")
        else:
            possible.append(workload)
    if not possible:
        raise Failure("None of the workloads can run here", Exit.USAGE)
    return endpoints, possible


def _measured(cases: list["Case"], endpoints: "Endpoints", pid: int | None, options: "Options") -> Iterator["Row"]:
    """The rows that could be measured; why the others could not is reported."""
    from rich.console import Console

    from penstock.bench import run
    from penstock.bench.rows import Row

    with Console(stderr=True, soft_wrap=True).status("starting") as status:

        def on_case(index: int, case: "Case") -> None:
            status.update(f"{index + 1} of {len(cases)}: {case.id}, {case.workload.title}")

        for result in run.run_cases(cases, endpoints, pid, options, on_case):
            if isinstance(result, Row):
                yield result
            else:
                complain(f"{result[0].id}: {result[1]}")
