"""Access rules and roles, and which rule decides. Without authentication there are none: SECURITY_DISABLED."""

from typing import TYPE_CHECKING

from penstock.core.operations.handling import answers, works
from penstock.core.security.access import Caller, Principal
from penstock.core.security.acls import check_principal
from penstock.core.security.explaining import explained
from penstock.core.security.roles import rules_of
from penstock.core.security.rules import AccessRules
from penstock.errors import PenstockError, Reason
from penstock.operations import access
from penstock.operations.operation import Resource
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.core.broker import Broker


def _rules(broker: "Broker") -> AccessRules:
    if broker.access.allows_all:
        raise PenstockError(
            Reason.SECURITY_DISABLED,
            "There are no access rules while authentication is off: every client that reaches a listener may do everything. "
            'Set security.authentication = "required" to use them',
        )
    return broker.access_rules


@answers(access.ListRules)
def list_rules(broker: "Broker", asked: access.ListRules, _: Caller) -> tuple[access.Rule, ...]:
    """By resource, name and principal."""
    return _rules(broker).rules(asked.selected)


@works(access.CreateRules)
async def create_rules(broker: "Broker", asked: access.CreateRules, _: Caller) -> None:
    """Returns when they apply on this node."""
    await _rules(broker).create(asked.rules)


@works(access.DeleteRules)
async def delete_rules(broker: "Broker", asked: access.DeleteRules, _: Caller) -> tuple[tuple[access.Rule, ...], ...]:
    """Returns when they no longer apply on this node."""
    return await _rules(broker).delete(asked.selected)


@answers(access.CheckAccess)
def check_access(broker: "Broker", asked: access.CheckAccess, _: Caller) -> access.AccessAnswer:
    """As a request of this principal would be decided now."""
    _rules(broker)
    check_principal(asked.principal)
    if not asked.principal.startswith(access.USER):
        raise PenstockError(Reason.INVALID_REQUEST, "Only users send requests: check User:NAME, with its groups")
    if asked.resource not in access.RULED:
        raise PenstockError(
            Reason.INVALID_REQUEST, f"There are no rules about resources of the kind {asked.resource.value}"
        )
    name = access.CLUSTER_NAME if asked.resource is Resource.CLUSTER else asked.name
    # Of no gateway: a caller of the broker itself would always be allowed.
    caller = Caller(Principal(asked.principal), Gateway.KAFKA, asked.host, asked.groups)
    return explained(broker.access, caller, asked.action, asked.resource, name)


@answers(access.ListRoles)
def list_roles(broker: "Broker", _: access.ListRoles, __: Caller) -> tuple[access.RoleDescription, ...]:
    """By name."""
    return _rules(broker).roles()


@works(access.CreateRole)
async def create_role(broker: "Broker", asked: access.CreateRole, _: Caller) -> access.RoleDescription:
    """Returns when it is stored."""
    return await _rules(broker).create_role(asked.role, asked.members)


@works(access.AlterRole)
async def alter_role(broker: "Broker", asked: access.AlterRole, _: Caller) -> access.RoleDescription:
    """Returns when it is stored."""
    return await _rules(broker).alter_role(asked.role, asked.add, asked.remove)


@works(access.DeleteRole)
async def delete_role(broker: "Broker", asked: access.DeleteRole, _: Caller) -> None:
    """Its members lose its rights at once."""
    await _rules(broker).delete_role(asked.role)


@works(access.GrantTemplate)
async def grant_template(broker: "Broker", asked: access.GrantTemplate, _: Caller) -> tuple[access.Rule, ...]:
    """Returns when the rules apply on this node."""
    rules = _rules(broker)
    rules.require_role(asked.role)
    if asked.prefix and asked.template in (access.Template.ADMIN, access.Template.OPERATOR):
        raise PenstockError(
            Reason.INVALID_REQUEST, f"The template {asked.template.value} is about everything: specify no prefix"
        )
    created = rules_of(f"{access.ROLE}{asked.role}", asked.template, asked.prefix)
    await rules.create(created)
    return created
