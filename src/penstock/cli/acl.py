"""``penstock acl``: access rules, and which of them decides."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import (
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Http,
    Output,
    Timeout,
    Yes,
    access_admin,
    ask_first,
)
from penstock.cli.output import Format, Row, emit, emit_one

if TYPE_CHECKING:
    from penstock.operations.access import Pattern, Permission, Rule
    from penstock.operations.operation import Action, Resource

app = typer.Typer(help="List, create and delete access rules (ACLs).", no_args_is_help=True)

Principal = Annotated[
    str,
    typer.Argument(metavar="PRINCIPAL", help="User:NAME, Role:NAME or Group:NAME; User:* is every user."),
]
Actions = Annotated[
    str,
    typer.Argument(
        metavar="ACTION[,...]",
        help="read, write, create, delete, alter, describe, describe-configs, alter-configs, cluster-action, idempotent-write or all.",
    ),
]
On = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="topic:NAME, group:NAME, transactional-id:NAME, sink:NAME, user:NAME or cluster. A name that ends in * covers all that begin with it.",
    ),
]
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Only for clients at this address.  [default: any]")
]


@app.command("allow")
def allow(
    principal: Principal,
    action: Actions,
    resource: On,
    host: Host = None,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Allow a principal to do something.

    Everything that no rule allows is refused. Read, write, delete and alter include describe.
    """
    from penstock.operations.access import Permission

    _create(Permission.ALLOW, principal, action, resource, host, http, timeout)


@app.command("deny")
def deny(
    principal: Principal,
    action: Actions,
    resource: On,
    host: Host = None,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Deny a principal something, whatever other rules allow."""
    from penstock.operations.access import Permission

    _create(Permission.DENY, principal, action, resource, host, http, timeout)


@app.command("ls")
def ls(
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only rules of this principal.")
    ] = None,
    resource: Annotated[
        str | None, typer.Option("--resource", metavar="RESOURCE", help="Only rules that cover this resource.")
    ] = None,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """List access rules."""
    from penstock.operations.access import PatternFilter, RuleFilter

    selected = RuleFilter(principal=principal)
    if resource is not None:
        kind, name, _ = _resource(resource)
        selected = RuleFilter(principal=principal, resource=kind, name=name, pattern=PatternFilter.MATCH)
    with access_admin(http, timeout) as admin:
        rows = [_row(rule) for rule in admin.rules(selected)]
    columns = ["principal", "permission", "action", "resource", "host"]
    emit(rows, columns, output, nothing="No access rules: only super users may do anything")


@app.command("rm")
def rm(
    principal: Principal,
    action: Annotated[str | None, typer.Argument(metavar="[ACTION]", help="Only rules about this action.")] = None,
    resource: Annotated[str | None, typer.Argument(metavar="[RESOURCE]", help="Only rules about this.")] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Only rules about this address.")
    ] = None,
    yes: Yes = False,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete access rules of a principal, those that allow and those that deny."""
    from penstock.operations.access import PatternFilter, RuleFilter

    selected = RuleFilter(principal=principal, host=host)
    actions = [None] if action is None else _actions(action)
    if resource is not None:
        kind, name, pattern = _resource(resource)
        selected = RuleFilter(
            principal=principal, host=host, resource=kind, name=name, pattern=PatternFilter(pattern.value)
        )
    from msgspec.structs import replace

    filters = [replace(selected, action=each) for each in actions]
    with access_admin(http, timeout) as admin:
        found = [rule for each in filters for rule in admin.rules(each)]
        if not found:
            raise Failure("No such access rule exists; see penstock acl ls", Exit.NOT_FOUND)
        ask_first(f"Delete {len(found)} access rules of {principal}?", "Nothing was deleted", yes=yes)
        for each in filters:
            for rule in admin.delete(each):
                note(f"Deleted: {rule}")


@app.command("check")
def check(
    principal: Annotated[str, typer.Argument(metavar="User:NAME", help="The user.")],
    action: Annotated[str, typer.Argument(metavar="ACTION", help="What it wants to do.")],
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="To what, for example topic:orders.")],
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address that it connects from.")] = "",
    groups: Annotated[
        list[str] | None, typer.Option("--token-group", metavar="NAME", help="A group that its token claims.")
    ] = None,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Explain whether a user may do something, and which rule decides.

    The exit code is 1 if it may not.
    """
    (wanted,) = _actions(action)
    kind, name, _ = _resource(resource)
    with access_admin(http, timeout) as admin:
        answer = admin.check(principal, wanted, kind, name, host=host, groups=groups or ())
    if output is Format.TABLE:
        print(answer.sentence)
    else:
        emit_one(answer, output)
    if not answer.allowed:
        raise typer.Exit(Exit.FAILED)


def _create(
    permission: "Permission",
    principal: str,
    actions: str,
    resource: str,
    host: str | None,
    http: str,
    timeout_s: float,
) -> None:
    from penstock.operations.access import WILDCARD, Rule

    kind, name, pattern = _resource(resource)
    rules = [
        Rule(principal, permission, action, kind, name, pattern, WILDCARD if host is None else host)
        for action in _actions(actions)
    ]
    with access_admin(http, timeout_s) as admin:
        admin.create(rules)
    for rule in rules:
        note(f"Created: {rule}")


def _actions(text: str) -> "list[Action]":
    from penstock.operations.operation import Action

    try:
        return [Action(word.strip().replace("-", "_")) for word in text.split(",")]
    except ValueError:
        known = ", ".join(action.value.replace("_", "-") for action in Action)
        raise Failure(f"{text!r} is not an action; use one of {known}", Exit.USAGE) from None


def _resource(text: str) -> "tuple[Resource, str, Pattern]":
    """The kind, the name and how the name covers others."""
    from penstock.operations.access import CLUSTER_NAME, RULED, WILDCARD, Pattern
    from penstock.operations.operation import Resource

    kind, colon, name = text.partition(":")
    if text == Resource.CLUSTER.value:
        return Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL
    kinds = {each.value.replace("_", "-"): each for each in RULED - {Resource.CLUSTER}}
    # A sink is the transactional id of its name.
    kinds["sink"] = Resource.TRANSACTIONAL_ID
    found = kinds.get(kind.replace("_", "-"))
    if found is None or not colon or not name:
        known = ", ".join(f"{each}:NAME" for each in sorted(kinds))
        raise Failure(f"{text!r} is not a resource; write cluster, or one of {known}", Exit.USAGE)
    if name != WILDCARD and name.endswith(WILDCARD):
        return found, name.removesuffix(WILDCARD), Pattern.PREFIXED
    return found, name, Pattern.LITERAL


def _row(rule: "Rule") -> Row:
    return {
        "principal": rule.principal,
        "permission": rule.permission.value,
        "action": rule.action.value.replace("_", "-"),
        "resource": rule.covered,
        "host": "any" if rule.host == "*" else rule.host,
    }
