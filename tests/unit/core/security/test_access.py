"""Who may do what: super users, rules, roles and groups; a refusal without rules; and decisions that are remembered until the rules change."""

from typing import Any

import pytest

from penstock.core.security.access import (
    ANONYMOUS,
    INTERNAL,
    Access,
    AccessDenied,
    Caller,
    Principal,
    super_users_in,
)
from penstock.core.security.acls import AclIndex
from penstock.core.security.explaining import explained
from penstock.core.topics.names import staging_topic
from penstock.errors import PenstockError, Reason
from penstock.operations.access import CLUSTER_NAME, Cause, Pattern, Permission, Rule
from penstock.operations.operation import Action, Resource
from penstock.types import Gateway

ANNA = Caller(Principal("User:anna"), Gateway.KAFKA, "10.0.0.1")
ROOT = Caller(Principal("User:root"), Gateway.HTTP, "10.0.0.1")


def rule(principal: str, action: Action, name: str, resource: Resource = Resource.TOPIC, **fields: Any) -> Rule:
    return Rule(principal, fields.pop("permission", Permission.ALLOW), action, resource, name, **fields)


def access_with(*rules: Rule, roles: dict[str, frozenset[str]] | None = None) -> Access:
    access = Access(is_on=True, super_users=frozenset({"User:root"}))
    access.use(AclIndex(rules, roles))
    return access


def test_without_authentication_everyone_may_do_everything() -> None:
    access = Access()
    access.require(Caller(ANONYMOUS, Gateway.TCP), Action.ALTER, Resource.CLUSTER)
    assert access.decide(ANNA, Action.READ, Resource.TOPIC, "t") == (True, Cause.OFF, None)


def test_until_the_rules_are_loaded_only_super_users_and_the_broker_may_do_anything() -> None:
    access = Access(is_on=True, super_users=frozenset({"User:root"}))
    assert access.decide(ANNA, Action.READ, Resource.TOPIC, "t").cause is Cause.NOT_LOADED
    assert not access.decide_any(ANNA, Action.WRITE, Resource.TOPIC).allowed
    assert access.decide(ROOT, Action.READ, Resource.TOPIC, "t").cause is Cause.SUPER_USER
    assert access.decide(INTERNAL, Action.READ, Resource.TOPIC, "t").cause is Cause.BROKER
    access.use(AclIndex([rule("User:anna", Action.READ, "t")]))
    assert access.allows(ANNA, Action.READ, Resource.TOPIC, "t")
    access.use(None)
    assert not access.allows(ANNA, Action.READ, Resource.TOPIC, "t")


def test_no_rule_binds_a_super_user() -> None:
    access = access_with(rule("User:*", Action.ALL, "*", permission=Permission.DENY))
    assert access.allows(ROOT, Action.READ, Resource.TOPIC, "t")
    assert access.decide_any(ROOT, Action.WRITE, Resource.TOPIC).allowed
    access.is_super = lambda principal: principal == "User:anna"
    access.forget()
    assert access.decide(ANNA, Action.DELETE, Resource.TOPIC, "t").cause is Cause.SUPER_USER


def test_what_the_broker_does_is_not_remembered_for_a_user_of_its_name() -> None:
    access = access_with()
    assert access.allows(INTERNAL, Action.READ, Resource.TOPIC, "t")
    forged = Caller(INTERNAL.principal, Gateway.KAFKA)
    assert not access.allows(forged, Action.READ, Resource.TOPIC, "t")


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        (Resource.TOPIC, Reason.TOPIC_AUTHORIZATION_FAILED),
        (Resource.GROUP, Reason.GROUP_AUTHORIZATION_FAILED),
        (Resource.TRANSACTIONAL_ID, Reason.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (Resource.CLUSTER, Reason.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_a_refusal_has_the_reason_of_its_resource_and_keeps_the_rule_to_itself(
    resource: Resource, reason: Reason
) -> None:
    name = CLUSTER_NAME if resource is Resource.CLUSTER else "secret"
    denying = rule("Role:strangers", Action.ALL, name, resource, permission=Permission.DENY)
    access = access_with(denying, roles={"strangers": frozenset({"User:anna"})})
    with pytest.raises(AccessDenied) as refused:
        access.require(ANNA, Action.DESCRIBE, resource, name)
    assert refused.value.reason is reason
    assert refused.value.decision == (False, Cause.RULE, denying)
    assert "User:anna has no right to describe" in refused.value.text
    assert "strangers" not in refused.value.text


def test_roles_groups_and_everyone_are_principals() -> None:
    access = access_with(
        rule("Role:readers", Action.READ, "by-role"),
        rule("Group:staff", Action.READ, "by-group"),
        rule("Role:crew", Action.READ, "by-role-of-group"),
        rule("User:*", Action.READ, "by-all"),
        roles={"readers": frozenset({"User:anna"}), "crew": frozenset({"Group:staff"})},
    )
    plain, with_group = ANNA, ANNA._replace(groups=("staff",))
    names = ("by-role", "by-group", "by-role-of-group", "by-all", "by-none")
    may = {name for name in names if access.allows(plain, Action.READ, Resource.TOPIC, name)}
    assert may == {"by-role", "by-all"}
    may = {name for name in names if access.allows(with_group, Action.READ, Resource.TOPIC, name)}
    assert may == {*names} - {"by-none"}


def test_an_address_is_compared_whole() -> None:
    access = access_with(rule("User:anna", Action.READ, "t", host="10.0.0.1"))
    assert access.allows(ANNA, Action.READ, Resource.TOPIC, "t")
    assert not access.allows(ANNA._replace(client="10.0.0.10"), Action.READ, Resource.TOPIC, "t")


def test_a_sink_is_staged_by_whoever_owns_it() -> None:
    topic = staging_topic("nightly")
    access = access_with(
        rule("User:anna", Action.WRITE, "nightly", Resource.TRANSACTIONAL_ID),
        rule("User:bert", Action.ALL, "*", Resource.TOPIC),
    )
    bert = ANNA._replace(principal=Principal("User:bert"))
    assert access.allows(ANNA, Action.WRITE, Resource.TOPIC, topic)
    assert access.allows(ANNA, Action.DESCRIBE, Resource.TOPIC, topic)
    assert not access.allows(ANNA, Action.READ, Resource.TOPIC, topic)
    assert not access.allows(bert, Action.WRITE, Resource.TOPIC, topic)


def test_a_decision_is_made_once_for_each_version() -> None:
    class Counted(AclIndex):
        asked = 0

        def deciding(self, *arguments: Any) -> Rule | None:
            Counted.asked += 1
            return super().deciding(*arguments)

    access = Access(is_on=True)
    index = Counted([rule("User:anna", Action.READ, "t")])
    access.use(index)
    for _ in range(3):
        access.require_topic(ANNA, Action.READ, "t")
    assert Counted.asked == 1
    before, told = access.version, []
    access.on_changed.append(lambda: told.append(access.version))
    access.use(index)
    assert told == [access.version]
    assert access.version != before
    access.require_topic(ANNA, Action.READ, "t")
    assert Counted.asked == 2


def test_no_two_accesses_have_the_same_version() -> None:
    assert Access().version != Access().version


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.security.access.ACCESS_DECISIONS_MAX", 10)
    access = access_with(rule("User:anna", Action.READ, "t5"))
    for n in range(100):
        assert access.allows(ANNA, Action.READ, Resource.TOPIC, f"t{n}") == (n == 5)
        assert len(access._decisions) <= 10


def test_super_users_are_users() -> None:
    assert super_users_in("") == frozenset()
    assert super_users_in(" User:a, User:b,") == {"User:a", "User:b"}
    for text in ("anna", "User:", "User:*", "Role:admin"):
        with pytest.raises(PenstockError, match="not a user") as refused:
            super_users_in(text)
        assert refused.value.reason is Reason.INVALID_CONFIG


def test_the_sentence_says_which_rule_decides() -> None:
    access = access_with(
        rule("User:anna", Action.READ, "orders", pattern=Pattern.PREFIXED),
        rule("Role:ops", Action.ALL, "*", Resource.GROUP),
        rule("User:*", Action.ALTER, CLUSTER_NAME, Resource.CLUSTER, permission=Permission.DENY, host="10.0.0.1"),
        rule("Group:staff", Action.WRITE, "x"),
        roles={"ops": frozenset({"User:anna"})},
    )

    def sentence(caller: Caller, action: Action, resource: Resource, name: str) -> str:
        return explained(access, caller, action, resource, name).sentence

    topic, group = Resource.TOPIC, Resource.GROUP
    assert sentence(ANNA, Action.READ, topic, "orders.eu") == (
        'User:anna may read topic orders.eu: the rule "allow User:anna read topic:orders*" '
        "allows read on every topic whose name begins with orders."
    )
    assert "which includes describe" in sentence(ANNA, Action.DESCRIBE, topic, "orders")
    assert sentence(ANNA, Action.DELETE, group, "g").endswith(
        'the rule "allow Role:ops all group:*" allows everything on every group, and User:anna has this role.'
    )
    assert sentence(ANNA, Action.ALTER, Resource.CLUSTER, CLUSTER_NAME) == (
        'User:anna may not alter the cluster: the rule "deny User:* alter cluster from 10.0.0.1" '
        "denies alter on the cluster from 10.0.0.1 to every user."
    )
    assert sentence(ANNA._replace(groups=("staff",)), Action.WRITE, topic, "x").endswith(
        "and User:anna is in this group."
    )
    assert sentence(ANNA, Action.WRITE, topic, "y") == "User:anna may not write topic y: no rule allows it."
    assert sentence(ROOT, Action.WRITE, topic, "y").endswith("it is a super user.")
