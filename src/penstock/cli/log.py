"""``penstock log``."""

import typer


def mount(root: typer.Typer) -> None:
    """Add."""
