"""Access rules and roles over HTTP."""

from typing import Any

import pytest

from tests.support.access import use_rules
from tests.support.http_node import HttpNode

ADMIN = "User:ANONYMOUS"
RULE = {
    "principal": "User:anna",
    "permission": "allow",
    "action": "read",
    "resource": "topic",
    "name": "orders",
    "pattern": "prefixed",
    "host": "*",
}


@pytest.fixture
async def ruled(node: HttpNode) -> HttpNode:
    await use_rules(node, ADMIN)
    return node


CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/v1/acls", None),
    ("POST", "/v1/acls", {"rules": [RULE]}),
    ("POST", "/v1/acls/delete", {"principal": "User:anna"}),
    ("GET", "/v1/acls/check?principal=User:anna&action=read&resource=topic&name=t", None),
    ("GET", "/v1/roles", None),
    ("POST", "/v1/roles", {"name": "r"}),
    ("POST", "/v1/roles/r/members", {"add": ["User:anna"]}),
    ("POST", "/v1/roles/r/grant", {"template": "reader"}),
    ("DELETE", "/v1/roles/r", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
async def test_without_authentication_every_call_says_so(node: HttpNode, method: str, path: str, body: Any) -> None:
    answer = await node.client.request(method, path, json=body)
    assert answer.status_code == 400
    assert "while authentication is off" in answer.json()["message"]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
async def test_only_those_who_may_describe_or_alter_the_cluster_are_answered(
    node: HttpNode, method: str, path: str, body: Any
) -> None:
    rules = await use_rules(node)
    answer = await node.client.request(method, path, json=body)
    assert answer.status_code == 403
    assert ("alter" if method != "GET" else "describe") + " the cluster" in answer.json()["message"]
    assert (rules._rules, rules._roles) == ({}, {})


async def test_rules_are_created_listed_and_deleted(ruled: HttpNode) -> None:
    other = {**RULE, "name": "*", "pattern": "literal", "permission": "deny", "host": "10.0.0.1"}
    for _ in range(2):
        created = await ruled.client.post("/v1/acls", json={"rules": [RULE, other]})
        assert (created.status_code, created.json()) == (201, {"rules": [RULE, other]})
    assert (await ruled.client.get("/v1/acls")).json() == {"rules": [other, RULE]}
    for query, found in (
        ("permission=deny", [other]),
        ("name=orders.eu&pattern=match&resource=topic&action=read", [other, RULE]),
        ("principal=User:bert", []),
        ("host=10.0.0.1", [other]),
        ("pattern=prefixed", [RULE]),
    ):
        assert (await ruled.client.get(f"/v1/acls?{query}")).json() == {"rules": found}
    deleted = await ruled.client.post("/v1/acls/delete", json={"permission": "deny"})
    assert (deleted.status_code, deleted.json()) == (200, {"rules": [other]})
    assert (await ruled.client.get("/v1/acls")).json() == {"rules": [RULE]}


async def test_a_rule_applies_to_the_next_request(ruled: HttpNode) -> None:
    await ruled.create("orders.eu")
    path = "/v1/acls/check?principal=User:anna&action=read&resource=topic&name=orders.eu"
    assert (await ruled.client.get(path)).json() == {
        "allowed": False,
        "cause": "no_rule",
        "sentence": "User:anna may not read topic orders.eu: no rule allows it.",
        "rule": None,
    }
    await ruled.client.post("/v1/acls", json={"rules": [RULE]})
    answer = (await ruled.client.get(path)).json()
    assert (answer["allowed"], answer["cause"], answer["rule"]) == (True, "rule", RULE)
    assert '"allow User:anna read topic:orders*"' in answer["sentence"]
    cluster = "/v1/acls/check?principal=User:anna&action=alter&resource=cluster"
    assert (await ruled.client.get(cluster)).json()["sentence"].startswith("User:anna may not alter the cluster")


async def test_roles_have_members_and_rules_of_templates(ruled: HttpNode) -> None:
    client = ruled.client
    created = await client.post("/v1/roles", json={"name": "billing", "members": ["User:anna"]})
    assert (created.status_code, created.json()) == (201, {"name": "billing", "members": ["User:anna"]})
    changed = await client.post("/v1/roles/billing/members", json={"add": ["Group:staff"], "remove": ["User:anna"]})
    assert changed.json() == {"name": "billing", "members": ["Group:staff"]}
    assert (await client.get("/v1/roles")).json() == {"roles": [changed.json()]}
    granted = await client.post("/v1/roles/billing/grant", json={"template": "worker", "prefix": "bills"})
    assert granted.status_code == 201
    assert {(rule["action"], rule["resource"], rule["name"]) for rule in granted.json()["rules"]} == {
        ("read", "topic", "bills"),
        ("read", "group", "bills"),
        ("read", "topic", "dlq.bills"),
    }
    path = "/v1/acls/check?principal=User:bert&groups=staff&action=read&resource=topic&name=bills.eu"
    assert (await client.get(path)).json()["allowed"]
    assert (await client.delete("/v1/roles/billing")).status_code == 204
    assert (await client.get("/v1/acls")).json() == {"rules": []}
    assert not (await client.get(path)).json()["allowed"]
    assert (await client.delete("/v1/roles/billing")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "text"),
    [
        ("GET", "/v1/acls?action=fly", None, "invalid action: use one of read, write"),
        ("GET", "/v1/acls?colour=red", None, "colour"),
        ("POST", "/v1/acls", None, "send the request as a JSON body"),
        ("POST", "/v1/acls", {"rules": [{**RULE, "resource": "sink"}]}, "no rules about"),
        ("POST", "/v1/acls", {"rules": [{**RULE, "name": ""}]}, "0 characters"),
        ("POST", "/v1/acls", {"rules": [RULE, {**RULE, "principal": "anna"}]}, "is not a principal"),
        ("GET", "/v1/acls/check?principal=User:anna", None, "are required"),
        ("GET", "/v1/acls/check?principal=Role:r&action=read&resource=topic", None, "Only users"),
        ("GET", "/v1/acls/check?principal=User:a&action=read&resource=sink", None, "no rules about"),
        ("POST", "/v1/roles", {"name": "a/b"}, "is not a name for a role"),
        ("POST", "/v1/roles/r/grant", {"template": "king"}, "template"),
    ],
)
async def test_what_is_wrong_is_said_and_nothing_is_changed(
    ruled: HttpNode, method: str, path: str, body: Any, text: str
) -> None:
    answer = await ruled.client.request(method, path, json=body)
    assert answer.status_code == 400
    assert text in answer.json()["message"]
    assert (await ruled.client.get("/v1/acls")).json() == {"rules": []}
    assert (await ruled.client.get("/v1/roles")).json() == {"roles": []}


async def test_why_says_when_rights_are_the_reason(ruled: HttpNode) -> None:
    await ruled.create("orders")
    await ruled.append("orders", 0, 1)
    path = "/v1/why?topic=orders&partition=0&offset=0&group=g&principal=User:anna"
    answer = (await ruled.client.get(path)).json()
    assert answer["state"] == "not_allowed"
    assert answer["sentence"] == (
        "orders/0@0 is not delivered to User:anna: User:anna may not read topic orders: no rule allows it. "
        "Allow it with: penstock acl allow User:anna read topic:orders"
    )
    await ruled.client.post("/v1/acls", json={"rules": [RULE]})
    assert "read group:g" in (await ruled.client.get(path)).json()["sentence"]
    rule = {**RULE, "resource": "group", "name": "g", "pattern": "literal"}
    await ruled.client.post("/v1/acls", json={"rules": [rule]})
    assert (await ruled.client.get(path)).json()["state"] == "no_such_group"
