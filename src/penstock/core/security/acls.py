"""Access rules in one immutable index, which answers with the rule that decides.

The semantics are Kafka's: a rule that denies wins over all that allow; what no rule allows is refused. A rule that allows also allows what
its action implies (Read, Write, Delete and Alter imply Describe; AlterConfigs implies DescribeConfigs), one that denies does not.

Invariant: a question costs a look-up for each principal of the caller, and for each length of that principal's prefixes, however many
rules there are. The index is always built from all rules at once, so that no sequence of changes can lose one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.errors import PenstockError, Reason
from penstock.limits import ACL_NAME_CHARS_MAX, PRINCIPAL_CHARS_MAX
from penstock.operations.access import (
    CLUSTER_NAME,
    EVERY_USER,
    GROUP,
    PRINCIPAL_TYPES,
    ROLE,
    RULED,
    USER,
    WILDCARD,
    Pattern,
    PatternFilter,
    Permission,
    Rule,
    RuleFilter,
)
from penstock.operations.operation import Action, Resource

_DESCRIBING: Final = frozenset({Action.READ, Action.WRITE, Action.DELETE, Action.ALTER, Action.DESCRIBE})
_ALLOWED: Final[Mapping[Action, frozenset[Action]]] = {
    **{action: frozenset({action}) for action in Action},
    **{action: frozenset({action, Action.DESCRIBE}) for action in _DESCRIBING},
    Action.ALTER_CONFIGS: frozenset({Action.ALTER_CONFIGS, Action.DESCRIBE_CONFIGS}),
    Action.ALL: frozenset(Action),
}
"""What a rule that allows an action allows."""
_DENIED: Final[Mapping[Action, frozenset[Action]]] = {
    **{action: frozenset({action}) for action in Action},
    Action.ALL: frozenset(Action),
}


class _Granted(NamedTuple):
    """What one rule says, ready to be looked up."""

    rule: Rule
    actions: frozenset[Action]
    is_denied: bool


class _Covering:
    """The rules of one principal about one kind of resource."""

    __slots__ = ("exact", "lengths", "prefixed")

    def __init__(self) -> None:
        self.exact: dict[tuple[str, str], tuple[_Granted, ...]] = {}
        """By name and host."""
        self.prefixed: dict[tuple[str, str], tuple[_Granted, ...]] = {}
        """By prefix and host."""
        self.lengths: tuple[int, ...] = ()
        """The lengths of the prefixes, longest first."""

    def add(self, granted: _Granted) -> None:
        """Only while the index is built."""
        rule = granted.rule
        of_pattern = self.exact if rule.pattern is Pattern.LITERAL else self.prefixed
        key = rule.name, rule.host
        of_pattern[key] = (*of_pattern.get(key, ()), granted)
        if rule.pattern is Pattern.PREFIXED and len(rule.name) not in self.lengths:
            self.lengths = tuple(sorted((*self.lengths, len(rule.name)), reverse=True))

    def over(self, name: str, host: str) -> Iterator[_Granted]:
        """All that covers a name for a client at an address, the most specific first."""
        exact, prefixed = self.exact, self.prefixed
        for where in (host, WILDCARD):
            yield from exact.get((name, where), ())
            for length in self.lengths:
                if length <= len(name):
                    yield from prefixed.get((name[:length], where), ())
            yield from exact.get((WILDCARD, where), ())

    def at(self, host: str) -> Iterator[_Granted]:
        """All that is said to a client at an address, whatever the name."""
        for of_pattern in (self.exact, self.prefixed):
            for (_, where), found in of_pattern.items():
                if where in (host, WILDCARD):
                    yield from found


class AclIndex:
    """All rules and roles at one time."""

    __slots__ = ("_covering", "_roles_of", "roles", "rules")

    def __init__(self, rules: Iterable[Rule] = (), roles: Mapping[str, frozenset[str]] | None = None) -> None:
        self.rules: Final = frozenset(rules)
        self.roles: Final[Mapping[str, frozenset[str]]] = roles or {}
        """The members of each role, which are principals."""
        self._covering: dict[tuple[str, Resource], _Covering] = {}
        for rule in sorted(self.rules, key=sort_key):
            covering = self._covering.setdefault((rule.principal, rule.resource), _Covering())
            is_denied = rule.permission is Permission.DENY
            covering.add(_Granted(rule, (_DENIED if is_denied else _ALLOWED)[rule.action], is_denied))
        self._roles_of: dict[str, tuple[str, ...]] = {}
        for role, members in sorted(self.roles.items()):
            for member in members:
                self._roles_of[member] = (*self._roles_of.get(member, ()), f"{ROLE}{role}")

    def principals_of(self, principal: str, groups: Sequence[str]) -> tuple[str, ...]:
        """All principals that a caller is: itself, every user, the groups that its token claims, and the roles of these."""
        own = (principal, *(f"{GROUP}{group}" for group in groups))
        roles = dict.fromkeys(role for each in own for role in self._roles_of.get(each, ()))
        return (*own, *roles, EVERY_USER) if principal.startswith(USER) else (*own, *roles)

    def deciding(
        self, principals: Sequence[str], host: str, action: Action, resource: Resource, name: str
    ) -> Rule | None:
        """The rule that allows or denies this; None if no rule is about it, which denies it."""
        allowing: Rule | None = None
        for principal in principals:
            covering = self._covering.get((principal, resource))
            if covering is None:
                continue
            for rule, actions, is_denied in covering.over(name, host):
                if action in actions:
                    if is_denied:
                        return rule
                    allowing = allowing or rule
        return allowing

    def deciding_for_any(self, principals: Sequence[str], host: str, action: Action, resource: Resource) -> Rule | None:
        """A rule that allows this for at least one resource, whatever its name; None if there is none.

        As Kafka: not if it is denied for all, and not by a rule whose whole pattern is denied. Only the action itself counts.
        """
        allowing: list[Rule] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for principal in principals:
            covering = self._covering.get((principal, resource))
            for rule, _, is_denied in () if covering is None else covering.at(host):
                if rule.action not in (action, Action.ALL):
                    continue
                if not is_denied:
                    allowing.append(rule)
                elif rule.pattern is Pattern.PREFIXED:
                    denied_prefixes.add(rule.name)
                else:
                    denied_names.add(rule.name)
        if WILDCARD in denied_names:
            return None
        for rule in allowing:
            is_literal = rule.pattern is Pattern.LITERAL
            if is_literal and rule.name == WILDCARD:
                return rule
            is_denied = is_literal and rule.name in denied_names
            if not is_denied and not any(rule.name.startswith(prefix) for prefix in denied_prefixes):
                return rule
        return None


def sort_key(rule: Rule) -> tuple[str, ...]:
    """The order in which rules are shown."""
    return (
        rule.resource.value,
        rule.pattern.value,
        rule.name,
        rule.principal,
        rule.host,
        rule.permission.value,
        rule.action.value,
    )


def selects(selected: RuleFilter, rule: Rule) -> bool:
    """Whether a filter selects a rule."""
    return (
        selected.principal in (None, rule.principal)
        and selected.permission in (None, rule.permission)
        and selected.action in (None, rule.action)
        and selected.resource in (None, rule.resource)
        and selected.host in (None, rule.host)
        and _selects_name(selected, rule)
    )


def _selects_name(selected: RuleFilter, rule: Rule) -> bool:
    name, pattern = selected.name, selected.pattern
    if pattern is not None and pattern is not PatternFilter.MATCH and pattern.value != rule.pattern.value:
        return False
    if name is None:
        return True
    if pattern is not PatternFilter.MATCH:
        return name == rule.name
    return name.startswith(rule.name) if rule.pattern is Pattern.PREFIXED else rule.name in (name, WILDCARD)


def checked_rule(rule: Rule) -> Rule:
    """The rule in its usual form; INVALID_REQUEST if it could never apply."""
    check_principal(rule.principal)
    if rule.resource not in RULED:
        raise _invalid(f"There are no rules about resources of the kind {rule.resource.value}")
    if not 0 < len(rule.name) <= ACL_NAME_CHARS_MAX:
        raise _invalid(f"The name of the resource has {len(rule.name)} characters; write 1 to {ACL_NAME_CHARS_MAX}")
    is_cluster = rule.resource is Resource.CLUSTER
    if is_cluster and (rule.name != CLUSTER_NAME or rule.pattern is not Pattern.LITERAL):
        raise _invalid(f"The only resource of the kind cluster is the literal {CLUSTER_NAME}")
    if rule.host == WILDCARD:
        return rule
    # Few rules have an address, and the import takes time at the start.
    from ipaddress import ip_address

    try:
        if "%" in rule.host:
            # Clients are known without their interface.
            raise ValueError(rule.host)
        address = ip_address(rule.host)
        # As clients of IPv4 are known, whatever the listener.
        host = str(getattr(address, "ipv4_mapped", None) or address)
    except ValueError:
        raise _invalid(f"{rule.host[:64]!a} is not an address; write an IP address, or * for any") from None
    return msgspec.structs.replace(rule, host=host)


def check_principal(principal: str) -> None:
    """INVALID_REQUEST unless this can be the principal of a rule."""
    kind, colon, name = principal.partition(":")
    if f"{kind}{colon}" not in PRINCIPAL_TYPES or not name:
        raise _invalid(f"{principal[:64]!a} is not a principal; write User:NAME, Role:NAME or Group:NAME")
    if len(principal) > PRINCIPAL_CHARS_MAX:
        raise _invalid(f"A principal has at most {PRINCIPAL_CHARS_MAX} characters, not {len(principal)}")


def _invalid(text: str) -> PenstockError:
    return PenstockError(Reason.INVALID_REQUEST, text)
