"""Options that the commands of ``penstock pipeline`` share."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, Final, get_type_hints

import typer

from penstock.cli.output import Format

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        metavar="HOST:PORT[,...]",
        help="Connect to the cluster through these brokers.  [default: as the file has, or 127.0.0.1:9092]",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="PENSTOCK_SPARK_MASTER",
        metavar="URL",
        help="Run Spark here: local[*], spark://, k8s://, yarn, sc://.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Use this name for ls, status and stop.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Set a Spark setting; can be repeated.")
]
StateDir = Annotated[
    str | None,
    typer.Option(
        "--state-dir", envvar="PENSTOCK_STATE_DIR", metavar="DIR", help="Store the state of runs in this directory."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="DIR", help="Store the checkpoint of Spark here.  [default: in the state folder]"
    ),
]
Trigger = Annotated[
    str | None, typer.Option("--trigger", metavar="TIME", help='Start a batch at this interval, such as "10s".')
]
Once = Annotated[bool, typer.Option("--once", help="Process all existing records, then end.")]
Rate = Annotated[int | None, typer.Option("--rate", min=1, metavar="N", help="Read at most N records per batch.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Run in the background, with a log in the state folder.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="Print a table, or JSON for programs.")]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a command that runs a pipeline, with their defaults."""

    bootstrap: Bootstrap = None
    master: Master = "local[*]"
    name: Name = None
    conf: Conf = None
    state_dir: StateDir = None
    yes: Yes = False
    output: Output = Format.TABLE
    checkpoint: Checkpoint = None
    trigger: Trigger = None
    once: Once = False
    rate: Rate = None
    detach: Detach = False


_OF_STREAMS: Final = frozenset({"checkpoint", "trigger", "once", "rate", "detach"})


def run_parameters(*, streams: bool = True) -> list[inspect.Parameter]:
    """These options as parameters of a command; those of streaming pipelines only for one that streams."""
    types = get_type_hints(RunOptions, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
        for field in fields(RunOptions)
        if streams or field.name not in _OF_STREAMS
    ]
