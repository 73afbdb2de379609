"""Access rules and roles, over HTTP.

Fields that a later broker adds to its answers are ignored.
"""

from collections.abc import Iterable, Sequence

import msgspec

from penstock.client.http import Fields, HttpClient, v1_path
from penstock.operations.access import (
    AccessAnswer,
    RoleDescription,
    Rule,
    RuleFilter,
    Template,
)
from penstock.operations.operation import Action, Resource

__all__ = ["AccessAdmin", "AccessAnswer", "RoleDescription", "Rule", "RuleFilter", "Template"]

EVERY_RULE = RuleFilter()


class _Rules(msgspec.Struct):
    rules: list[Rule]


class _Roles(msgspec.Struct):
    roles: list[RoleDescription]


class AccessAdmin(HttpClient):
    """Administers access rules and roles."""

    def rules(self, selected: RuleFilter = EVERY_RULE) -> list[Rule]:
        """The rules that a filter selects."""
        return self._http.get(v1_path("acls"), _Rules, _fields(selected)).rules

    def create(self, rules: Iterable[Rule]) -> None:
        """Create rules, all of them or none. One that exists stays as it is."""
        self._http.post(v1_path("acls"), {"rules": list(rules)}, _Rules)

    def delete(self, selected: RuleFilter) -> list[Rule]:
        """Delete the rules that a filter selects, and return them."""
        return self._http.post(v1_path("acls", "delete"), _fields(selected), _Rules).rules

    def check(
        self,
        principal: str,
        action: Action,
        resource: Resource,
        name: str,
        *,
        host: str = "",
        groups: Sequence[str] = (),
    ) -> AccessAnswer:
        """Whether a user may do something, and which rule decides."""
        query = {
            "principal": principal,
            "action": action.value,
            "resource": resource.value,
            "name": name,
            "host": host,
            "groups": ",".join(groups),
        }
        return self._http.get(v1_path("acls", "check"), AccessAnswer, query)

    def roles(self) -> list[RoleDescription]:
        """All roles, by name."""
        return self._http.get(v1_path("roles"), _Roles).roles

    def create_role(self, name: str, members: Sequence[str] = ()) -> RoleDescription:
        """Create a role."""
        return self._http.post(v1_path("roles"), {"name": name, "members": list(members)}, RoleDescription)

    def alter_role(self, name: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> RoleDescription:
        """Add members to a role, and remove others."""
        body = {"add": list(add), "remove": list(remove)}
        return self._http.post(v1_path("roles", name, "members"), body, RoleDescription)

    def grant(self, name: str, template: Template, prefix: str = "") -> list[Rule]:
        """Create the rules of a template for a role, and return them."""
        body = {"template": template, "prefix": prefix}
        return self._http.post(v1_path("roles", name, "grant"), body, _Rules).rules

    def delete_role(self, name: str) -> None:
        """Delete a role and its rules."""
        self._http.delete(v1_path("roles", name))


def _fields(selected: RuleFilter) -> Fields:
    """Without what matches any; words for the query string."""
    fields: Fields = msgspec.to_builtins(selected)
    return fields
