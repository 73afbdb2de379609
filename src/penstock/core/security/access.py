"""The rights of callers. The door checks them for every operation, before anything is done.

With ``security.authentication = "off"`` everyone may do everything. Otherwise only super users and what a rule allows pass; until the rules
are loaded, only super users do. The same question is answered from memory until the rules change, which gives :attr:`Access.version` a new
value: lanes compare it instead of asking for each request.
"""

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, NewType

from penstock.core.topics.names import STAGING_PREFIX
from penstock.errors import PenstockError, Reason
from penstock.limits import ACCESS_DECISIONS_MAX
from penstock.operations.access import CLUSTER_NAME, EVERY_USER, USER, Cause, Permission, Rule
from penstock.operations.operation import Action, Resource
from penstock.settings import Authentication, SecuritySettings
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.core.security.acls import AclIndex

Principal = NewType("Principal", str)

ANONYMOUS: Final = Principal("User:ANONYMOUS")


class Caller(NamedTuple):
    """Who sends a request, and how: the principal, the gateway, and the address of the client.

    It travels with the operation to other nodes, so it has everything that a decision needs. Roles are not part of it: every node
    knows the members of all roles.
    """

    principal: Principal
    gateway: Gateway
    client: str = ""
    groups: tuple[str, ...] = ()
    """The names of groups that the caller's token claims, without ``Group:``."""
    listener: str = ""
    """The name of the listener."""
    method: str = ""
    """How the caller authenticated, in the words of the audit log; empty if it did not."""
    client_id: str = ""
    """What the client calls itself, which nothing proves: for quotas and the audit log."""
    request_id: str = ""
    """The id of the request, if its API has one, for the audit log."""


INTERNAL: Final = Caller(Principal("penstock"), Gateway.INTERNAL)
"""The broker itself."""


class Decision(NamedTuple):
    """Whether something is allowed, and what decided. Without a rule that decided, ``rule`` is None."""

    allowed: bool
    cause: Cause
    rule: Rule | None = None


class AccessDenied(PenstockError):
    """A refusal because of missing rights. ``decision`` says what decided, which callers are not told."""

    def __init__(
        self, reason: Reason, text: str, action: Action, resource: Resource, name: str, decision: Decision
    ) -> None:
        super().__init__(reason, text)
        self.action: Final = action
        self.resource: Final = resource
        self.name: Final = name
        self.decision: Final = decision


_OFF: Final = Decision(True, Cause.OFF)
_BROKER: Final = Decision(True, Cause.BROKER)
_SUPER_USER: Final = Decision(True, Cause.SUPER_USER)
_NO_RULE: Final = Decision(False, Cause.NO_RULE)
_NOT_LOADED: Final = Decision(False, Cause.NOT_LOADED)
REASONS: Final[dict[Resource, Reason]] = {
    Resource.TOPIC: Reason.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: Reason.GROUP_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: Reason.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.CLUSTER: Reason.CLUSTER_AUTHORIZATION_FAILED,
    Resource.USER: Reason.CLUSTER_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: Reason.CLUSTER_AUTHORIZATION_FAILED,
}
_BY_SINK: Final = frozenset({Action.WRITE, Action.DESCRIBE})
"""What the owner of a sink may do to the topic that its records are staged in."""
_versions: Final = count(1)
"""Of all indexes in the process, so that a version never means two of them."""

_Question = tuple[str, str, tuple[str, ...], Action, Resource, str]


class Access:
    """Decides about every request. A refusal is :class:`AccessDenied`, a PenstockError with the reason for this kind of resource."""

    allows_all: bool
    """Whether everyone may do everything. Saves hot paths a call."""
    version: int
    """A new value whenever a decision may have become another."""

    def __init__(self, *, is_on: bool = False, super_users: frozenset[str] = frozenset()) -> None:
        self.allows_all = not is_on
        self.version = next(_versions)
        self.super_users: Final = super_users
        """From the settings."""
        self.is_super: Callable[[Principal], bool] = lambda _principal: False
        """Whether a user is marked as an administrator. The part that sets this calls :meth:`forget` when the answer changes."""
        self.on_changed: Final[list[Callable[[], None]]] = []
        """Called after each new version."""
        self._index: AclIndex | None = None
        self._decisions: dict[_Question, Decision] = {}
        self.admitted: Final[set[tuple[object, ...]]] = set()
        """Operations that were admitted with this version, with their callers; see ``core/operations/rights.py``."""
        self.writers: Final[set[tuple[str, str, tuple[str, ...], str]]] = set()
        """Principals, addresses and groups, with the topics to which they may write by this version. It saves publishers a call."""

    def use(self, index: "AclIndex | None") -> None:
        """Decide by these rules from now on; with None, only super users may do anything."""
        self._index = index
        self.forget()

    def forget(self) -> None:
        """What was decided may be different now."""
        self._decisions.clear()
        self.admitted.clear()
        self.writers.clear()
        self.version = next(_versions)
        for hook in self.on_changed:
            hook()

    def decide(self, caller: Caller, action: Action, resource: Resource, name: str = CLUSTER_NAME) -> Decision:
        """Whether the caller may do this, and why."""
        if caller.gateway is Gateway.INTERNAL:
            return _BROKER
        question = caller.principal, caller.client, caller.groups, action, resource, name
        found = self._decisions.get(question)
        if found is None:
            found = self._decided(caller, action, resource, name)
            if len(self._decisions) >= ACCESS_DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[question] = found
        return found

    def decide_any(self, caller: Caller, action: Action, resource: Resource) -> Decision:
        """Whether the caller may do this to at least one resource of the kind, whatever its name."""
        privileged = self._privileged(caller)
        if privileged is not None:
            return privileged
        index = self._index
        if index is None:
            return _NOT_LOADED
        principals = index.principals_of(caller.principal, caller.groups)
        rule = index.deciding_for_any(principals, caller.client, action, resource)
        return _NO_RULE if rule is None else Decision(True, Cause.RULE, rule)

    def _decided(self, caller: Caller, action: Action, resource: Resource, name: str) -> Decision:
        privileged = self._privileged(caller)
        if privileged is not None:
            return privileged
        index = self._index
        if index is None:
            return _NOT_LOADED
        if resource is Resource.TOPIC and action in _BY_SINK and name.startswith(STAGING_PREFIX):
            resource, name = Resource.TRANSACTIONAL_ID, name.removeprefix(STAGING_PREFIX)
        principals = index.principals_of(caller.principal, caller.groups)
        rule = index.deciding(principals, caller.client, action, resource, name)
        return _NO_RULE if rule is None else Decision(rule.permission is Permission.ALLOW, Cause.RULE, rule)

    def _privileged(self, caller: Caller) -> Decision | None:
        """The decision about callers for whom there are no rules."""
        if self.allows_all:
            return _OFF
        if caller.gateway is Gateway.INTERNAL:
            return _BROKER
        if caller.principal in self.super_users or self.is_super(caller.principal):
            return _SUPER_USER
        return None

    def allows(self, caller: Caller, action: Action, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Whether the caller may do this."""
        return self.allows_all or self.decide(caller, action, resource, name).allowed

    def require(self, caller: Caller, action: Action, resource: Resource, name: str = CLUSTER_NAME) -> None:
        """AccessDenied unless the caller may do this."""
        if self.allows_all:
            return
        decision = self.decide(caller, action, resource, name)
        if not decision.allowed:
            raise denied(caller, action, resource, name, decision)

    def require_topic(self, caller: Caller, action: Action, topic: str) -> None:
        """``TOPIC_AUTHORIZATION_FAILED`` unless the caller may do this to the topic."""
        self.require(caller, action, Resource.TOPIC, topic)

    def note_writer(self, caller: Caller, topic: str) -> None:
        """The caller may write to the topic, and is found in ``writers`` from now on."""
        if not self.allows_all and caller.gateway is not Gateway.INTERNAL:
            if len(self.writers) >= ACCESS_DECISIONS_MAX:
                self.writers.clear()
            self.writers.add((caller.principal, caller.client, caller.groups, topic))


def access_of(security: SecuritySettings) -> Access:
    """As the settings have it; without rules yet."""
    is_on = security.authentication is Authentication.REQUIRED
    return Access(is_on=is_on, super_users=super_users_in(security.super_users))


def super_users_in(text: str) -> frozenset[str]:
    """The principals in a list with commas; INVALID_CONFIG if one of them is not a user."""
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    for principal in found:
        if not principal.startswith(USER) or principal in (USER, EVERY_USER):
            raise PenstockError(
                Reason.INVALID_CONFIG,
                f"security.super_users has {principal!r}, which is not a user; write User:NAME, separated by commas",
            )
    return found


def denied(caller: Caller, action: Action, resource: Resource, name: str, decision: Decision) -> AccessDenied:
    """The refusal. Its text has nothing that the caller did not send."""
    what = "the cluster" if resource is Resource.CLUSTER else f"{resource.value.replace('_', ' ')} {name}"
    text = f"{caller.principal} has no right to {action.value.replace('_', ' ')} {what}; ask an administrator for it"
    return AccessDenied(REASONS[resource], text, action, resource, name, decision)
