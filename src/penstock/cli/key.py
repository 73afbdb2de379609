"""``penstock key``: creates, lists and revokes API keys."""

import time
from typing import Annotated

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import (
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Http,
    IfExists,
    Output,
    Timeout,
    remove_each,
    user_admin,
)
from penstock.cli.output import Format, emit
from penstock.cli.places import moment

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)

_DAY_MS = 24 * 60 * 60 * 1000

Owner = Annotated[str, typer.Argument(metavar="USER", help="The owner, whose rights the key has.")]
KeyIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of one or more keys; see penstock key ls.")]


@app.command("create")
def create(
    owner: Owner,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="What the key is for.")] = "",
    days: Annotated[
        float | None,
        typer.Option("--days", metavar="N", help="Let the key expire after so many days.  [default: never]"),
    ] = None,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Create an API key, and print it on standard output.

    Keep it in a file that only its user can read. It cannot be shown again.
    """
    if days is not None and days <= 0:
        raise Failure("A key must be valid for some time: specify --days above 0", Exit.USAGE)
    expires_ms = None if days is None else int(time.time() * 1000 + days * _DAY_MS)
    with user_admin(http, timeout) as client:
        made = client.create_key(owner, name, expires_ms=expires_ms)
    print(made.key)
    note(f"Created key {made.id}; it is not shown again")


@app.command("ls")
def ls(
    owner: Annotated[str | None, typer.Argument(metavar="USER", help="List only the keys of this user.")] = None,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """List API keys, without their secrets."""
    with user_admin(http, timeout) as client:
        found = client.keys(owner)
    rows = [
        {
            "id": each.id,
            "user": each.user,
            "name": each.name,
            "created": moment(each.created_ms),
            "expires": moment(each.expires_ms),
        }
        for each in found
    ]
    emit(rows, ["id", "user", "name", "created", "expires"], output, nothing="No API keys")


@app.command("revoke")
def revoke(
    keys: KeyIds,
    if_exists: IfExists = False,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Revoke API keys, and close the connections that use them."""
    with user_admin(http, timeout) as client:
        remove_each(keys, "key", client.revoke, if_exists=if_exists, done="Revoked")
