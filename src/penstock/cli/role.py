"""``penstock role``: roles, their members, and the rules of templates."""

from collections.abc import Iterator
from contextlib import contextmanager
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
    Yes,
    access_admin,
    ask_first,
    remove_each,
)
from penstock.cli.output import Format, emit

app = typer.Typer(help="Manage roles, whose members share access rules.", no_args_is_help=True)

RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="Name of the role, without Role:.")]
Members = Annotated[list[str], typer.Argument(metavar="MEMBER...", help="User:NAME or Group:NAME.")]
_TEMPLATES = "admin, operator, reader, writer or worker"


@app.command("create")
def create(
    role: RoleName,
    members: Annotated[
        list[str] | None, typer.Option("--member", "-m", metavar="MEMBER", help="Add User:NAME or Group:NAME.")
    ] = None,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Create a role.

    Give it rights with "penstock role grant", or with "penstock acl allow Role:NAME".
    """
    with access_admin(http, timeout) as admin:
        admin.create_role(role, members or ())
    note(f"Created role {role}")


@app.command("add")
def add(role: RoleName, members: Members, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """Add members to a role."""
    with access_admin(http, timeout) as admin, _found(role):
        admin.alter_role(role, add=members)
    note(f"Added {', '.join(members)} to role {role}")


@app.command("remove")
def remove(role: RoleName, members: Members, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """Remove members from a role."""
    with access_admin(http, timeout) as admin, _found(role):
        admin.alter_role(role, remove=members)
    note(f"Removed {', '.join(members)} from role {role}")


@app.command("ls")
def ls(output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """List roles and their members."""
    with access_admin(http, timeout) as admin:
        roles = admin.roles()
    if output is Format.TABLE:
        emit(
            [{"role": role.name, "members": ", ".join(role.members)} for role in roles],
            ["role", "members"],
            output,
            nothing="No roles; create one with penstock role create",
        )
    else:
        emit([{"role": role.name, "members": list(role.members)} for role in roles], [], output)


@app.command("rm")
def rm(
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...", help="Names of one or more roles.")],
    yes: Yes = False,
    if_exists: IfExists = False,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete roles with their access rules.

    Their members lose these rights at once.
    """
    ask_first(f"Delete {', '.join(roles)}? Their members lose the rights.", "Nothing was deleted", yes=yes)
    with access_admin(http, timeout) as admin:

        def delete_one(role: str) -> None:
            with _found(role):
                admin.delete_role(role)

        remove_each(roles, "role", delete_one, if_exists=if_exists, done="Deleted")


@app.command("grant")
def grant(
    role: RoleName,
    template: Annotated[str, typer.Argument(metavar="TEMPLATE", help=f"{_TEMPLATES.capitalize()}.")],
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="How the names of topics and groups begin.  [default: all]")
    ] = "",
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Give a role the access rules of a template.

    reader: read topics, in groups. writer: write to topics, also in sinks. worker: as reader, with dead letters.
    operator: manage topics, groups and configs, without reading records. admin: everything.
    """
    from penstock.operations.access import Template

    try:
        wanted = Template(template)
    except ValueError:
        raise Failure(f"{template!r} is not a template; use {_TEMPLATES}", Exit.USAGE) from None
    with access_admin(http, timeout) as admin, _found(role):
        rules = admin.grant(role, wanted, prefix.removesuffix("*"))
    for rule in rules:
        note(f"Created: {rule}")


@contextmanager
def _found(role: str) -> Iterator[None]:
    """Report a role that does not exist."""
    from penstock.client.errors import RequestRefused

    try:
        yield
    except RequestRefused as error:
        if not error.is_not_found:
            raise
        raise Failure(f"Role {role} does not exist; see penstock role ls", Exit.NOT_FOUND) from error
