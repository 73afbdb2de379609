"""``penstock context``: names for brokers, each with addresses and how to connect to them."""

import inspect
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.connecting import connection_options
from penstock.cli.contexts import FIELDS, PATHS, Contexts, contexts_file, load, save
from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import IfExists, Output, with_parameters
from penstock.cli.output import Format, Row, emit

if TYPE_CHECKING:
    from penstock.cli.contexts import Values

app = typer.Typer(help="Name brokers and how to connect to them.", no_args_is_help=True)


def _complete(incomplete: str) -> list[str]:
    try:
        return [name for name in load(contexts_file(os.environ)).known if name.startswith(incomplete)]
    except Failure:
        return []


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=_complete)]


def _addresses(
    *,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap", "-b", metavar="HOST:PORT[,...]", help="Connect to the cluster through these brokers."
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT[,...]", help="Use the HTTP API at these addresses; https://... for TLS."
        ),
    ] = None,
) -> None:
    """The addresses of a context, as a signature."""


def _parameters() -> list[inspect.Parameter]:
    options = inspect.signature(connection_options, eval_str=True).parameters.values()
    addresses = inspect.signature(_addresses, eval_str=True).parameters.values()
    return [*addresses, *(each for each in options if each.name != "context")]


_WITH_VALUES: Final = with_parameters(_parameters())


@app.command("add")
@_WITH_VALUES
def add(name: Name, **values: Any) -> None:
    """Add a context.

    The files of certificates, passwords and tokens are stored by their paths, and are read when a command connects.
    The first context becomes the current one.
    """
    file, contexts = _opened()
    if name in contexts.known:
        raise Failure(f"The context {name!r} exists: change it with penstock context set, or choose another name")
    if not name.strip():
        raise Failure("The name of a context must not be empty", Exit.USAGE)
    given = _given(values)
    if "bootstrap" not in given and "http" not in given:
        raise Failure("A context needs an address: specify --bootstrap, --http or both", Exit.USAGE)
    _check(given)
    is_first = not contexts.known
    save(file, Contexts(name if is_first else contexts.current, {**contexts.known, name: given}))
    note(f"Added context {name}{' and made it the current one' if is_first else ''}")


@app.command("set")
@_WITH_VALUES
def change(
    name: Name,
    *,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="NAME", help="Remove this value.")] = None,
    **values: Any,
) -> None:
    """Change values of a context."""
    file, contexts = _opened()
    removed = [each.removeprefix("--").replace("-", "_") for each in unset or []]
    for each in removed:
        if each not in FIELDS:
            raise Failure(f"--unset {each!r}: write one of {', '.join(FIELDS)}", Exit.USAGE)
    kept = {key: value for key, value in contexts.get(name).items() if key not in removed}
    merged = {**kept, **_given(values)}
    _check(merged)
    save(file, replace(contexts, known={**contexts.known, name: merged}))
    note(f"Changed context {name}")


@app.command("use")
def use(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the context.", autocompletion=_complete)
    ] = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="Use no context.")] = False,
) -> None:
    """Make a context the current one.

    Commands without an address use it.
    """
    if (name is None) is not none:
        raise Failure("Write the name of a context, or --none", Exit.USAGE)
    file, contexts = _opened()
    if name is not None:
        contexts.get(name)
    save(file, replace(contexts, current=name))
    note("There is no current context now" if name is None else f"The current context is {name}")


@app.command("ls")
def ls(output: Output = Format.TABLE) -> None:
    """List the contexts."""
    contexts = _opened()[1]
    rows: list[Row] = [
        {
            "current": name == contexts.current,
            "name": name,
            "bootstrap": str(values.get("bootstrap", "")),
            "http": str(values.get("http", "")),
            "user": str(values.get("user", "")),
        }
        for name, values in sorted(contexts.known.items())
    ]
    if output is Format.TABLE:
        rows = [{**row, "current": "*" if row["current"] else ""} for row in rows]
    emit(rows, ["current", "name", "bootstrap", "http", "user"], output, nothing="There are no contexts")


@app.command("show")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Name of the context.  [default: the current one]", autocompletion=_complete
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the values of a context."""
    contexts = _opened()[1]
    chosen = name or contexts.current
    if chosen is None:
        raise Failure("There is no current context: write the name of one", Exit.USAGE)
    values = contexts.get(chosen)
    rows: list[Row] = [{"name": key, "value": values[key]} for key in FIELDS if key in values]
    emit(rows, ["name", "value"], output, nothing=f"The context {chosen} has no values")


@app.command("rm")
def rm(name: Name, if_exists: IfExists = False) -> None:
    """Remove a context. Files that it names stay."""
    file, contexts = _opened()
    if name not in contexts.known and if_exists:
        note(f"Context {name} does not exist")
        return
    contexts.get(name)
    known = {each: values for each, values in contexts.known.items() if each != name}
    save(file, Contexts(None if contexts.current == name else contexts.current, known))
    note(f"Removed context {name}")


def _opened() -> tuple[Path, Contexts]:
    file = contexts_file(os.environ)
    return file, load(file)


def _given(values: "dict[str, Any]") -> "Values":
    return {
        key: str(Path(value).expanduser().absolute()) if key in PATHS else value
        for key, value in values.items()
        if value is not None
    }


def _check(values: "Values") -> None:
    """A Failure if a command could not connect with these values. A password may be missing: it is asked for on a terminal."""
    from penstock.cli.connecting import Connecting

    has_password = "user" not in values or "password_file" in values
    Connecting(values if has_password else {**values, "password": "asked for"}).security()
