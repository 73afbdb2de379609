"""Access rules (Kafka's ACLs) and roles: list, create and delete them, and ask which rule decides.

A rule allows or denies a principal an action on the resources that its name covers. A literal name covers one resource, ``*`` every
resource of the kind, and a prefixed name each one that begins with it. Where any rule denies, none can allow.
"""

from enum import Enum
from typing import Final

import msgspec

from penstock.operations.operation import ANY_NODE, Action, Operation, Repeat, Resource, on_cluster

USER: Final = "User:"
ROLE: Final = "Role:"
GROUP: Final = "Group:"
"""What the names of principals begin with."""
PRINCIPAL_TYPES: Final = (USER, ROLE, GROUP)
EVERY_USER: Final = "User:*"
WILDCARD: Final = "*"
"""As the name of a resource: all of the kind. As a host: any."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of the kind CLUSTER."""
RULED: Final = frozenset(Resource) - {Resource.SINK, Resource.DEAD_LETTERS}
"""The resources that rules can name."""


class Permission(Enum):
    """What a rule says."""

    ALLOW = "allow"
    DENY = "deny"


class Pattern(Enum):
    """How the name in a rule covers the names of resources."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class PatternFilter(Enum):
    """The patterns that a filter selects."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    MATCH = "match"
    """Each pattern that covers the name in the filter."""


class Rule(msgspec.Struct, frozen=True):
    """One rule. ``host`` is the address of a client, or ``*``."""

    principal: str
    permission: Permission
    action: Action
    resource: Resource
    name: str
    pattern: Pattern = Pattern.LITERAL
    host: str = WILDCARD

    def __str__(self) -> str:
        where = "" if self.host == WILDCARD else f" from {self.host}"
        return f"{self.permission.value} {self.principal} {self.action.value.replace('_', '-')} {self.covered}{where}"

    @property
    def covered(self) -> str:
        """What it is about, as the command line writes it."""
        if self.resource is Resource.CLUSTER:
            return "cluster"
        return f"{self.resource.value.replace('_', '-')}:{self.name}{'*' if self.pattern is Pattern.PREFIXED else ''}"


class RuleFilter(msgspec.Struct, frozen=True):
    """Selects rules; None matches any."""

    principal: str | None = None
    permission: Permission | None = None
    action: Action | None = None
    resource: Resource | None = None
    name: str | None = None
    pattern: PatternFilter | None = None
    host: str | None = None


class ListRules(Operation[tuple[Rule, ...]], frozen=True):
    """The rules that a filter selects."""

    selected: RuleFilter = RuleFilter()

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class CreateRules(Operation[None], frozen=True):
    """Create rules, all of them or none. One that exists stays as it is."""

    rules: tuple[Rule, ...]

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("rules",)
    repeat = Repeat.ALWAYS


class DeleteRules(Operation[tuple[tuple[Rule, ...], ...]], frozen=True):
    """Delete all rules that at least one filter selects. The result has the rules that each filter selected."""

    selected: tuple[RuleFilter, ...]

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("selected",)


class Cause(Enum):
    """What decided about access."""

    OFF = "off"
    """Authentication is off: everyone may do everything."""
    BROKER = "broker"
    """The broker itself."""
    SUPER_USER = "super_user"
    RULE = "rule"
    NO_RULE = "no_rule"
    NOT_LOADED = "not_loaded"
    """The rules could not be read: only super users may do anything."""


class AccessAnswer(msgspec.Struct, frozen=True):
    """Whether a principal may do something, and what decides."""

    allowed: bool
    cause: Cause
    sentence: str
    rule: Rule | None = None


class CheckAccess(Operation[AccessAnswer], frozen=True):
    """Whether a principal may do something to a resource. ``host`` is the address that it connects from."""

    principal: str
    action: Action
    resource: Resource
    name: str
    host: str = ""
    groups: tuple[str, ...] = ()
    """The groups that its token claims, without ``Group:``."""

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


# Roles.


class RoleDescription(msgspec.Struct, frozen=True):
    """A role: its members have all its rights. In rules it is the principal ``Role:NAME``."""

    name: str
    members: tuple[str, ...]


class Template(Enum):
    """The rules that people usually need together."""

    ADMIN = "admin"
    OPERATOR = "operator"
    READER = "reader"
    WRITER = "writer"
    WORKER = "worker"


class ListRoles(Operation[tuple[RoleDescription, ...]], frozen=True):
    """All roles, by name."""

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class CreateRole(Operation[RoleDescription], frozen=True):
    """Create a role. One that exists with the same members is returned; with others it is a conflict."""

    role: str
    members: tuple[str, ...] = ()

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("role", "members")
    repeat = Repeat.ALWAYS


class AlterRole(Operation[RoleDescription], frozen=True):
    """Add members to a role, and remove others."""

    role: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("role", "add", "remove")
    repeat = Repeat.ALWAYS


class DeleteRole(Operation[None], frozen=True):
    """Delete a role, and all rules about it."""

    role: str

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("role",)


class GrantTemplate(Operation[tuple[Rule, ...]], frozen=True):
    """Create the rules of a template for a role, and return them. ``prefix`` is how the names of its resources begin; empty: all."""

    role: str
    template: Template
    prefix: str = ""

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("role", "template", "prefix")
    repeat = Repeat.ALWAYS
