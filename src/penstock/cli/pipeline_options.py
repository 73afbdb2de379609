"""Options that the commands of ``penstock pipeline`` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from penstock.cli.output import Format

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        metavar="HOST:PORT[,...]",
        help="Brokers to ask first.  [default: the file's, or 127.0.0.1:9092]",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="PENSTOCK_SPARK_MASTER",
        metavar="URL",
        help="Where Spark runs: local[*], spark://, k8s://, yarn, sc://.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="What ls, status and stop call it.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeat it.")]
StateDir = Annotated[
    str | None,
    typer.Option("--state-dir", envvar="PENSTOCK_STATE_DIR", metavar="DIR", help="Where runs are remembered."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="DIR", help="Where Spark keeps how far it is.  [default: in the state folder]"
    ),
]
Trigger = Annotated[str | None, typer.Option("--trigger", metavar="TIME", help='A batch every so often, as "10s".')]
Once = Annotated[bool, typer.Option("--once", help="Do all there is, then end.")]
Rate = Annotated[int | None, typer.Option("--rate", min=1, metavar="N", help="Records a batch reads at most.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Run in the background; a log is in the state folder.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="A table for people, JSON for programs.")]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was typed of these."""

    bootstrap: str | None = None
    master: str = "local[*]"
    name: str | None = None
    conf: list[str] | None = None
    state_dir: str | None = None
    yes: bool = False
    output: Format = Format.TABLE
    checkpoint: str | None = None
    trigger: str | None = None
    once: bool = False
    rate: int | None = None
    detach: bool = False
