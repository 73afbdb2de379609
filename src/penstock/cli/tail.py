"""``penstock tail``: :mod:`penstock.cli.consume` that starts at the end and follows the topic."""

import typer

from penstock.cli.consume import tail


def mount(root: typer.Typer) -> None:
    """Add the command."""
    root.command("tail")(tail)
