"""``penstock config``: the effective configuration, and where each value comes from."""

import os
from typing import Annotated

import typer

from penstock.cli.options import Output
from penstock.cli.output import Format, Row, emit
from penstock.cli.serve_command import Config, flags_given, with_flags

app = typer.Typer(help="Show the configuration.", no_args_is_help=True)


@app.command("show")
@with_flags
def show(
    *,
    config: Config = None,
    changed: Annotated[bool, typer.Option("--changed", help="Show only values that are not defaults.")] = False,
    output: Output = Format.TABLE,
    **flags: object,
) -> None:
    """Show each value and where it comes from.

    Accepts the flags of penstock serve, and reads the same environment variables.
    """
    from penstock.config import load
    from penstock.config.describe import describe
    from penstock.config.loading import show as as_toml
    from penstock.settings import SourceKind

    rows: list[Row] = [
        {
            "name": setting.path,
            "value": setting.plain,
            "source": str(setting.source),
            "layer": setting.source.kind.value,
            "default": setting.default,
            "description": setting.description,
        }
        for setting in describe(load(config, os.environ, flags_given(**flags)))
        if not changed or setting.source.kind is not SourceKind.DEFAULT
    ]
    if output is Format.TABLE:
        # As they are written in a configuration file, to be copied from here.
        rows = [{**row, "value": as_toml(row["value"])} for row in rows]
    emit(rows, ["name", "value", "source"], output, nothing="All values are defaults")


@app.command("example")
def example() -> None:
    """Print a configuration file with every setting.

    Each setting is commented out, with its default and a description.
    """
    from penstock.config.describe import example_toml

    print(example_toml(), end="")
