"""Access rules and roles under ``/v1``: list, create and delete them, and ask which rule decides."""

from enum import Enum
from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct, field

from penstock.gateways.http.server.answers import NO_CONTENT, Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall
from penstock.gateways.http.v1.models import NoFields, StrictRequest
from penstock.gateways.http.v1.requests import decode, parameters_of, read, refuse
from penstock.operations.access import (
    WILDCARD,
    AccessAnswer,
    AlterRole,
    CheckAccess,
    CreateRole,
    CreateRules,
    DeleteRole,
    DeleteRules,
    GrantTemplate,
    ListRoles,
    ListRules,
    Pattern,
    PatternFilter,
    Permission,
    RoleDescription,
    Rule,
    RuleFilter,
    Template,
)
from penstock.operations.operation import Action, Resource

CALLS: Final = ApiCalls("v1: access rules and roles")

PrincipalText = Annotated[str, Meta(description="User:NAME, Role:NAME or Group:NAME; User:* is every user")]
Members = Annotated[list[str], Meta(description="User:NAME or Group:NAME")]
Word = TypeVar("Word", bound=Enum)
R = TypeVar("R", bound=StrictRequest)


class RuleFields(StrictRequest, frozen=True):
    """A rule to create."""

    principal: PrincipalText
    permission: Permission
    action: Action
    resource: Resource
    name: Annotated[str, Meta(description="the name of the resource; kafka-cluster for the cluster, * for all")]
    pattern: Pattern = Pattern.LITERAL
    host: Annotated[str, Meta(description="the address of clients, or * for any")] = WILDCARD

    def rule(self) -> Rule:
        """The rule of the core."""
        return Rule(self.principal, self.permission, self.action, self.resource, self.name, self.pattern, self.host)


class CreateRulesRequest(StrictRequest, frozen=True):
    """POST /v1/acls."""

    rules: list[RuleFields]


class FilterRequest(StrictRequest, frozen=True):
    """Selects rules. What is left out matches any."""

    principal: PrincipalText | None = None
    permission: Annotated[str, Meta(description="allow or deny")] | None = None
    action: Annotated[str, Meta(description="the action in the rule, for example read")] | None = None
    resource: Annotated[str, Meta(description="the kind of resource, for example topic")] | None = None
    name: Annotated[str, Meta(description="the name in the rule")] | None = None
    pattern: Annotated[str, Meta(description="literal or prefixed; match: every rule that covers the name")] | None = (
        None
    )
    host: Annotated[str, Meta(description="the address in the rule")] | None = None

    def filter(self) -> RuleFilter:
        """The filter of the core; INVALID_REQUEST if a word has no meaning."""
        return RuleFilter(
            self.principal,
            _word(Permission, "permission", self.permission),
            _word(Action, "action", self.action),
            _word(Resource, "resource", self.resource),
            self.name,
            _word(PatternFilter, "pattern", self.pattern),
            self.host,
        )


class CheckRequest(StrictRequest, frozen=True):
    """GET /v1/acls/check."""

    principal: Annotated[str, Meta(description="the user, for example User:anna")] = ""
    action: Annotated[str, Meta(description="what it wants to do, for example read")] = ""
    resource: Annotated[str, Meta(description="the kind of resource, for example topic")] = ""
    name: Annotated[str, Meta(description="the name of the resource; not needed for the cluster")] = ""
    host: Annotated[str, Meta(description="the address that it connects from")] = ""
    groups: Annotated[str, Meta(description="the groups in its token, separated by commas")] = ""


class RuleList(Struct, frozen=True):
    """Rules, by resource, name and principal."""

    rules: tuple[Rule, ...]


class CreateRoleRequest(StrictRequest, frozen=True):
    """POST /v1/roles."""

    name: Annotated[str, Meta(description="the name of the role, without Role:")]
    members: Members = field(default_factory=list)


class MembersRequest(StrictRequest, frozen=True):
    """POST /v1/roles/{role}/members."""

    add: Members = field(default_factory=list)
    remove: Members = field(default_factory=list)


class GrantRequest(StrictRequest, frozen=True):
    """POST /v1/roles/{role}/grant."""

    template: Template
    prefix: Annotated[str, Meta(description="how the names of its resources begin; empty: all of them")] = ""


class RoleList(Struct, frozen=True):
    """GET /v1/roles."""

    roles: tuple[RoleDescription, ...]


@CALLS.get(
    "/v1/acls",
    CallDoc("List access rules", {200: RuleList}, errors=(400,), parameters=parameters_of(FilterRequest)),
)
async def _list(call: HttpCall) -> Answer:
    selected = read(FilterRequest, call.query, b"").filter()
    return json_answer(RuleList(await call.do(ListRules(selected))))


@CALLS.post(
    "/v1/acls",
    CallDoc(
        "Create access rules, all of them or none",
        {201: RuleList},
        errors=(400, 429),
        description="A rule that exists stays as it is.",
        body=CreateRulesRequest,
    ),
)
async def _create(call: HttpCall) -> Answer:
    rules = tuple(each.rule() for each in _body(CreateRulesRequest, call).rules)
    await call.do(CreateRules(rules))
    return json_answer(RuleList(rules), 201)


@CALLS.post(
    "/v1/acls/delete",
    CallDoc(
        "Delete the access rules that a filter selects, and return them",
        {200: RuleList},
        errors=(400,),
        body=FilterRequest,
    ),
)
async def _delete(call: HttpCall) -> Answer:
    (deleted,) = await call.do(DeleteRules((_body(FilterRequest, call).filter(),)))
    return json_answer(RuleList(deleted))


@CALLS.get(
    "/v1/acls/check",
    CallDoc(
        "Explain whether a user may do something, and which rule decides",
        {200: AccessAnswer},
        errors=(400,),
        parameters=parameters_of(CheckRequest, required=("principal", "action", "resource")),
    ),
)
async def _check(call: HttpCall) -> Answer:
    asked = read(CheckRequest, call.query, b"")
    action, resource = _word(Action, "action", asked.action), _word(Resource, "resource", asked.resource)
    if not asked.principal or action is None or resource is None:
        raise refuse("principal, action and resource are required")
    groups = tuple(group.strip() for group in asked.groups.split(",") if group.strip())
    return json_answer(await call.do(CheckAccess(asked.principal, action, resource, asked.name, asked.host, groups)))


@CALLS.get("/v1/roles", CallDoc("List roles and their members", {200: RoleList}, errors=(400,)))
async def _roles(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(RoleList(await call.do(ListRoles())))


@CALLS.post("/v1/roles", CallDoc("Create a role", {201: RoleDescription}, errors=(400, 429), body=CreateRoleRequest))
async def _create_role(call: HttpCall) -> Answer:
    asked = _body(CreateRoleRequest, call)
    return json_answer(await call.do(CreateRole(asked.name, tuple(asked.members))), 201)


@CALLS.post(
    "/v1/roles/{role}/members",
    CallDoc(
        "Add members to a role, and remove others", {200: RoleDescription}, errors=(400, 404, 429), body=MembersRequest
    ),
)
async def _members(call: HttpCall) -> Answer:
    asked = _body(MembersRequest, call)
    return json_answer(await call.do(AlterRole(call.params["role"], tuple(asked.add), tuple(asked.remove))))


@CALLS.post(
    "/v1/roles/{role}/grant",
    CallDoc(
        "Create the access rules of a template for a role", {201: RuleList}, errors=(400, 404, 429), body=GrantRequest
    ),
)
async def _grant(call: HttpCall) -> Answer:
    asked = _body(GrantRequest, call)
    return json_answer(RuleList(await call.do(GrantTemplate(call.params["role"], asked.template, asked.prefix))), 201)


@CALLS.delete("/v1/roles/{role}", CallDoc("Delete a role and its access rules", {204: None}, errors=(400, 404)))
async def _delete_role(call: HttpCall) -> Answer:
    read(NoFields, call.query, call.body)
    await call.do(DeleteRole(call.params["role"]))
    return NO_CONTENT


def _word(words: type[Word], name: str, text: str | None) -> Word | None:
    if not text:
        return None
    try:
        return words(text)
    except ValueError:
        known = ", ".join(str(each.value) for each in words)
        raise refuse(f"invalid {name}: use one of {known}") from None


def _body(model: type[R], call: HttpCall) -> R:
    if call.query or not call.body:
        raise refuse("send the request as a JSON body")
    return decode(model, call.body)
