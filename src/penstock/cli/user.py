"""``penstock user``: creates, lists and deletes users, and sets passwords."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import (
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    EncryptionKeyFile,
    Http,
    IfExists,
    Output,
    Timeout,
    Yes,
    ask_first,
    remove_each,
    user_admin,
)
from penstock.cli.output import Format, emit
from penstock.cli.places import moment

app = typer.Typer(help="Create, list and delete users, and set passwords.", no_args_is_help=True)

UserName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
UserNames = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of one or more users.")]
NewPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Read the password of this user from a file, or from standard input with '-'.  [default: ask for it]",
        show_default=False,
    ),
]


@app.command("create")
def create(
    name: UserName,
    admin: Annotated[bool, typer.Option("--admin", help="Let the user do everything.")] = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Give the user no password, only API keys.")
    ] = False,
    new_password_file: NewPasswordFile = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Create it in the data directory of a stopped broker."),
    ] = None,
    encryption_key_file: EncryptionKeyFile = None,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Create a user.

    The first administrator is created while the broker is stopped: penstock user create NAME --admin --data-dir DIR
    """
    if no_password and new_password_file is not None:
        raise Failure("Specify either --no-password or --password-file", Exit.USAGE)
    password = None if no_password else _new_password(name, new_password_file)
    if data_dir is not None:
        _create_stopped(data_dir, name, password, admin=admin, key_file=encryption_key_file)
    else:
        with user_admin(http, timeout) as client:
            client.create(name, password, admin=admin)
    note(f"Created user {name}")


@app.command("ls")
def ls(output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """List users."""
    with user_admin(http, timeout) as client:
        found = client.users()
    rows = [
        {
            "user": each.user,
            "admin": each.admin,
            "created": moment(each.created_ms),
            "keys": each.keys,
            "mechanisms": ",".join(each.mechanisms),
        }
        for each in found
    ]
    emit(rows, ["user", "admin", "created", "keys"], output, nothing="No users")


@app.command("passwd")
def passwd(
    name: UserName,
    new_password_file: NewPasswordFile = None,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Set the password of a user.

    Connections that the old password opened are closed. API keys stay; see penstock key ls.
    """
    password = _new_password(name, new_password_file)
    with user_admin(http, timeout) as client:
        client.set_password(name, password)
    note(f"Set the password of {name}")


@app.command("rm")
def rm(
    users: UserNames,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Delete even the last administrator.")] = False,
    if_exists: IfExists = False,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete users with their API keys, and close their connections. Access rules that name them stay."""
    ask_first(f"Delete {', '.join(users)}?", "Nothing was deleted", yes=yes)
    with user_admin(http, timeout) as client:
        remove_each(users, "user", lambda name: client.delete(name, force=force), if_exists=if_exists, done="Deleted")


def _new_password(user: str, file: Path | None) -> str:
    from penstock.errors import PenstockError
    from penstock.secret_files import read_secret_text

    if file is not None and str(file) != "-":
        try:
            return read_secret_text(str(file))
        except PenstockError as error:
            raise Failure(error.text, Exit.USAGE) from error
    if file is None and sys.stdin.isatty():
        asked: str = typer.prompt(f"New password for {user}", hide_input=True, confirmation_prompt=True, err=True)
        return asked
    found = sys.stdin.readline().rstrip("\r\n")
    if not found:
        raise Failure("There is no password on standard input; specify --password-file", Exit.USAGE)
    return found


def _create_stopped(data_dir: Path, user: str, password: str | None, *, admin: bool, key_file: Path | None) -> None:
    from penstock.cli.data_folder import keys_of
    from penstock.errors import PenstockError
    from penstock.runtime.data_dir import DataDirError
    from penstock.runtime.stopped_users import create_user

    try:
        create_user(str(data_dir), user, password, admin=admin, keys=keys_of(key_file), report=note)
    except (DataDirError, PenstockError) as error:
        raise Failure(str(error)) from error
