"""Access rules decide as Kafka's authorizer does, which is written here a second time, without an index."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.security.acls import AclIndex, checked_rule, selects
from penstock.errors import PenstockError, Reason
from penstock.limits import ACL_NAME_CHARS_MAX, PRINCIPAL_CHARS_MAX
from penstock.operations.access import (
    CLUSTER_NAME,
    EVERY_USER,
    Pattern,
    PatternFilter,
    Permission,
    Rule,
    RuleFilter,
)
from penstock.operations.operation import Action, Resource

NAMES = ["a", "ab", "abc", "b", "*"]
HOSTS = ["10.0.0.1", "10.0.0.2"]
PRINCIPALS = ["User:anna", "User:bert", EVERY_USER, "Group:staff", "Role:reader"]
ALL = Action.ALL
SOME = [ALL, Action.READ, Action.WRITE, Action.DESCRIBE, Action.ALTER, Action.ALTER_CONFIGS, Action.DESCRIBE_CONFIGS]

rules = st.builds(
    Rule,
    st.sampled_from(PRINCIPALS),
    st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
    st.sampled_from(SOME),
    st.sampled_from([Resource.TOPIC, Resource.GROUP]),
    st.sampled_from(NAMES),
    st.sampled_from(Pattern),
    st.sampled_from([*HOSTS, "*"]),
)
members = st.fixed_dictionaries(
    {"reader": st.frozensets(st.sampled_from(["User:anna", "User:bert", "Group:staff"]), max_size=2)}
)
questions = st.tuples(
    st.sampled_from([action for action in SOME if action is not ALL]),
    st.sampled_from([Resource.TOPIC, Resource.GROUP]),
    st.sampled_from(["a", "ab", "abcd", "b", "c"]),
)


def principals_of(principal: str, groups: Sequence[str], roles: dict[str, frozenset[str]]) -> set[str]:
    own = {principal, *(f"Group:{group}" for group in groups)}
    return own | {EVERY_USER} | {f"Role:{role}" for role, found in roles.items() if found & own}


def matches(rule: Rule, name: str) -> bool:
    if rule.pattern is Pattern.PREFIXED:
        return name.startswith(rule.name)
    return rule.name in (name, "*")


def says(rule: Rule, action: Action) -> bool:
    """StandardAuthorizerData.findResult."""
    if rule.action is ALL:
        return True
    if rule.permission is Permission.ALLOW and action is Action.DESCRIBE:
        return rule.action in {Action.DESCRIBE, Action.READ, Action.WRITE, Action.DELETE, Action.ALTER}
    if rule.permission is Permission.ALLOW and action is Action.DESCRIBE_CONFIGS:
        return rule.action in {Action.DESCRIBE_CONFIGS, Action.ALTER_CONFIGS}
    return rule.action is action


def naive(
    all_rules: Sequence[Rule], principals: set[str], host: str, action: Action, resource: Resource, name: str
) -> bool:
    said = {
        rule.permission
        for rule in all_rules
        if rule.resource is resource
        and rule.principal in principals
        and rule.host in ("*", host)
        and matches(rule, name)
        and says(rule, action)
    }
    return said == {Permission.ALLOW}


def naive_any(all_rules: Sequence[Rule], principals: set[str], host: str, action: Action, resource: Resource) -> bool:
    """Authorizer.authorizeByResourceType."""
    deny: dict[Pattern, set[str]] = {Pattern.LITERAL: set(), Pattern.PREFIXED: set()}
    allow: dict[Pattern, set[str]] = {Pattern.LITERAL: set(), Pattern.PREFIXED: set()}
    has_wildcard = False
    for rule in all_rules:
        if rule.resource is not resource or rule.host not in ("*", host) or rule.principal not in principals:
            continue
        if rule.action not in (action, ALL):
            continue
        if rule.permission is Permission.DENY:
            if rule.pattern is Pattern.LITERAL and rule.name == "*":
                return False
            deny[rule.pattern].add(rule.name)
        elif rule.pattern is Pattern.LITERAL and rule.name == "*":
            has_wildcard = True
        else:
            allow[rule.pattern].add(rule.name)
    if has_wildcard:
        return True
    for pattern, names in allow.items():
        for name in names:
            if pattern is Pattern.LITERAL and name in deny[Pattern.LITERAL]:
                continue
            if not any(name[:length] in deny[Pattern.PREFIXED] for length in range(1, len(name) + 1)):
                return True
    return False


@settings(max_examples=500)
@given(
    all_rules=st.lists(rules, max_size=12),
    roles=members,
    principal=st.sampled_from(["User:anna", "User:bert", "User:*x"]),
    groups=st.lists(st.sampled_from(["staff"]), max_size=1),
    host=st.sampled_from([*HOSTS, ""]),
    asked=st.lists(questions, min_size=1, max_size=12),
)
def test_the_index_decides_as_kafka_does(all_rules, roles, principal, groups, host, asked) -> None:
    index = AclIndex(all_rules, roles)
    principals = index.principals_of(principal, groups)
    assert set(principals) == principals_of(principal, groups, roles)
    for action, resource, name in asked:
        rule = index.deciding(principals, host, action, resource, name)
        allowed = rule is not None and rule.permission is Permission.ALLOW
        assert allowed == naive(all_rules, set(principals), host, action, resource, name)
        if rule is not None:
            assert rule in all_rules
            assert matches(rule, name)
            assert says(rule, action)
        found = index.deciding_for_any(principals, host, action, resource)
        assert (found is not None) == naive_any(all_rules, set(principals), host, action, resource)


@settings(max_examples=200)
@given(all_rules=st.lists(rules, max_size=8), roles=members, asked=st.lists(questions, min_size=1, max_size=6))
def test_the_order_in_which_rules_came_does_not_matter(all_rules, roles, asked) -> None:
    one, other = AclIndex(all_rules, roles), AclIndex(reversed(all_rules), roles)
    principals = one.principals_of("User:anna", ["staff"])
    for action, resource, name in asked:
        assert one.deciding(principals, "", action, resource, name) == other.deciding(
            principals, "", action, resource, name
        )


def naive_selects(selected: RuleFilter, rule: Rule) -> bool:
    """ResourcePatternFilter.matches and AccessControlEntryFilter.matches."""
    if selected.resource is not None and selected.resource is not rule.resource:
        return False
    for field in ("principal", "permission", "action", "host"):
        if getattr(selected, field) not in (None, getattr(rule, field)):
            return False
    kind = selected.pattern
    if kind not in (None, PatternFilter.MATCH) and kind.value != rule.pattern.value:
        return False
    if selected.name is None:
        return True
    if kind is None or kind.value == rule.pattern.value:
        return selected.name == rule.name
    if rule.pattern is Pattern.LITERAL:
        return selected.name == rule.name or rule.name == "*"
    return selected.name.startswith(rule.name)


@settings(max_examples=500)
@given(
    rule=rules,
    selected=st.builds(
        RuleFilter,
        st.none() | st.sampled_from(PRINCIPALS),
        st.none() | st.sampled_from(Permission),
        st.none() | st.sampled_from(SOME),
        st.none() | st.sampled_from([Resource.TOPIC, Resource.GROUP]),
        st.none() | st.sampled_from([*NAMES, "abcd"]),
        st.none() | st.sampled_from(PatternFilter),
        st.none() | st.sampled_from([*HOSTS, "*"]),
    ),
)
def test_filters_select_as_kafkas_do(rule, selected) -> None:
    assert selects(selected, rule) == naive_selects(selected, rule)


def allow(principal: str, name: str, **fields: object) -> Rule:
    return Rule(principal, Permission.ALLOW, Action.READ, Resource.TOPIC, name, **fields)


def test_a_decision_looks_at_the_callers_rules_alone() -> None:
    """However many rules there are about others."""

    class Counted(dict):
        looked_up = 0

        def get(self, *arguments):
            Counted.looked_up += 1
            return super().get(*arguments)

    def look_ups(count: int) -> int:
        others = [allow(f"User:u{n}", f"t{n}", pattern=Pattern.PREFIXED) for n in range(count)]
        index = AclIndex([*others, allow("User:anna", "orders", pattern=Pattern.PREFIXED)])
        index._covering = Counted(index._covering)
        for covering in index._covering.values():
            covering.exact, covering.prefixed = Counted(covering.exact), Counted(covering.prefixed)
        Counted.looked_up = 0
        rule = index.deciding(
            index.principals_of("User:anna", ()), "10.0.0.1", Action.READ, Resource.TOPIC, "orders.eu"
        )
        assert rule is not None
        return Counted.looked_up

    assert look_ups(10) == look_ups(5_000)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (allow("anna", "t"), "is not a principal"),
        (allow("User:", "t"), "is not a principal"),
        (allow("Team:x", "t"), "is not a principal"),
        (allow("User:" + "x" * PRINCIPAL_CHARS_MAX, "t"), "characters"),
        (allow("User:anna", ""), "0 characters"),
        (allow("User:anna", "t" * (ACL_NAME_CHARS_MAX + 1)), "250 characters"),
        (allow("User:anna", "t", host="localhost"), "is not an address"),
        (allow("User:anna", "t", host=""), "is not an address"),
        (Rule("User:anna", Permission.ALLOW, ALL, Resource.CLUSTER, "mine"), CLUSTER_NAME),
        (Rule("User:anna", Permission.ALLOW, ALL, Resource.CLUSTER, CLUSTER_NAME, Pattern.PREFIXED), CLUSTER_NAME),
        (Rule("User:anna", Permission.ALLOW, ALL, Resource.SINK, "s"), "sink"),
        (Rule("User:anna", Permission.ALLOW, ALL, Resource.DEAD_LETTERS, "s"), "dead_letters"),
    ],
)
def test_a_rule_that_could_never_apply_is_refused(rule: Rule, text: str) -> None:
    with pytest.raises(PenstockError, match=text) as refused:
        checked_rule(rule)
    assert refused.value.reason is Reason.INVALID_REQUEST


def test_addresses_have_one_form() -> None:
    assert checked_rule(allow("User:anna", "t", host="2001:DB8::0:1")).host == "2001:db8::1"
    assert checked_rule(allow("Group:a/b c", "*")) == allow("Group:a/b c", "*")
