"""Every call of every HTTP resource needs a right, and a refusal tells nothing and leaves nothing behind."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.gateways.http.server.routing import ApiRoute
from penstock.operations.operation import Action
from penstock.types import Gateway
from tests.support.access import Asked, Guard, all_but, only
from tests.support.http_node import HttpNode

T, G, CLUSTER, DLQ, SINK = "topic {t}", "group g", "cluster", "topic dlq.{t}", "transactional id s"
READ, WRITE, DESCRIBE, ALTER = Action.READ, Action.WRITE, Action.DESCRIBE, Action.ALTER
WORK: tuple[Asked, ...] = ((READ, G), (READ, T))
LOOK: tuple[Asked, ...] = ((DESCRIBE, G), (DESCRIBE, T))
WORKER = {"topic": "{t}", "group": "g", "owner": "w"}
RECORD = {**WORKER, "partition": 0, "offset": 0}
RULE = {"principal": "User:a", "permission": "allow", "action": "read", "resource": "topic", "name": "{t}"}

CALLS: dict[str, tuple[str, Any, tuple[Asked, ...]]] = {
    "GET /metrics": ("/metrics", None, ((DESCRIBE, CLUSTER),)),
    "POST /topics": ("/topics", {"name": "new"}, ((Action.CREATE, "topic new"),)),
    "GET /topics/{topic}": ("/topics/{t}", None, ((DESCRIBE, T),)),
    "DELETE /topics/{topic}": ("/topics/{t}", None, ((Action.DELETE, T),)),
    "POST /topics/{topic}/messages": ("/topics/{t}/messages", {"value": "v"}, ((WRITE, T),)),
    "GET /topics/{topic}/partitions/{partition}/messages": (
        "/topics/{t}/partitions/0/messages?offset=0",
        None,
        ((READ, T),),
    ),
    "GET /topics/{topic}/partitions/{partition}/offsets": ("/topics/{t}/partitions/0/offsets", None, ((DESCRIBE, T),)),
    "GET /topics/{topic}/tail": ("/topics/{t}/tail", None, ((READ, T),)),
    "POST /consumers/{group:path}/groups": ("/consumers/g/groups", {"topic_name": "{t}"}, WORK),
    "GET /consumers/{group:path}/offsets": ("/consumers/g/offsets?topic={t}&partition=0", None, LOOK),
    "POST /consumers/{group:path}/offsets": (
        "/consumers/g/offsets",
        {"topic_name": "{t}", "partition": 0, "offset": 1},
        WORK,
    ),
    "POST /consumers/{group:path}/members": ("/consumers/g/members", {"topic_name": "{t}", "consumer_id": "c"}, WORK),
    "PUT /consumers/{group:path}/members/{consumer}": ("/consumers/g/members/c?topic={t}", None, WORK),
    "DELETE /consumers/{group:path}/members/{consumer}": ("/consumers/g/members/c", None, ((READ, G),)),
    "POST /v1/topics": ("/v1/topics", {"name": "new"}, ((Action.CREATE, "topic new"),)),
    "DELETE /v1/topics/{topic}": ("/v1/topics/{t}", None, ((Action.DELETE, T),)),
    "POST /v1/produce": ("/v1/produce", {"topic": "{t}", "value": "v"}, ((WRITE, T),)),
    "GET /v1/consume": ("/v1/consume?topic={t}&group=g&owner=w", None, WORK),
    "POST /v1/ack": ("/v1/ack", RECORD, WORK),
    "POST /v1/nack": ("/v1/nack", RECORD, WORK),
    "POST /v1/ack-cumulative": ("/v1/ack-cumulative", RECORD, WORK),
    "POST /v1/extend": ("/v1/extend", RECORD, WORK),
    "POST /v1/lease": ("/v1/lease", WORKER, WORK),
    "GET /v1/queues/{topic}/{group:path}/peek": ("/v1/queues/{t}/g/peek", None, (*LOOK, (READ, T))),
    "GET /v1/queues/{topic}/{group:path}/states": ("/v1/queues/{t}/g/states?partition=0", None, LOOK),
    "GET /v1/queues/{topic}/{group:path}": ("/v1/queues/{t}/g", None, LOOK),
    "GET /v1/why": (
        "/v1/why?topic={t}&group=g&partition=0&offset=0&principal=User:a",
        None,
        (*LOOK, (DESCRIBE, CLUSTER)),
    ),
    "GET /v1/dlq/{topic}": ("/v1/dlq/{t}", None, ((READ, DLQ),)),
    "POST /v1/dlq/{topic}/plan": ("/v1/dlq/{t}/plan", {}, ((READ, DLQ),)),
    "POST /v1/dlq/{topic}/redrive": (
        "/v1/dlq/{t}/redrive",
        {},
        ((WRITE, DLQ), (READ, "group penstock.redrive"), (WRITE, T)),
    ),
    "POST /v1/dlq/{topic}/purge": ("/v1/dlq/{t}/purge", {}, ((WRITE, DLQ), (READ, "group penstock.redrive"))),
    "GET /v1/topics/{topic}/stats": ("/v1/topics/{t}/stats", None, ((DESCRIBE, T),)),
    "GET /v1/groups/{group:path}": ("/v1/groups/g", None, ((DESCRIBE, G),)),
    "POST /v1/sinks/{sink}/open": ("/v1/sinks/s/open", {}, ((WRITE, SINK),)),
    "POST /v1/sinks/{sink}/commit": ("/v1/sinks/s/commit", {"batch_id": 1, "parts": []}, ((WRITE, SINK),)),
    "POST /v1/sinks/{sink}/abort": ("/v1/sinks/s/abort", {"batch_id": 1}, ((WRITE, SINK),)),
    "GET /v1/sinks/{sink}": ("/v1/sinks/s", None, ((DESCRIBE, SINK),)),
    "DELETE /v1/sinks/{sink}": ("/v1/sinks/s", None, ((WRITE, SINK),)),
    "GET /v1/acls": ("/v1/acls", None, ((DESCRIBE, CLUSTER),)),
    "POST /v1/acls": ("/v1/acls", {"rules": [RULE]}, ((ALTER, CLUSTER),)),
    "POST /v1/acls/delete": ("/v1/acls/delete", {"principal": "User:a"}, ((ALTER, CLUSTER),)),
    "GET /v1/acls/check": (
        "/v1/acls/check?principal=User:a&action=read&resource=topic&name={t}",
        None,
        ((DESCRIBE, CLUSTER),),
    ),
    "GET /v1/roles": ("/v1/roles", None, ((DESCRIBE, CLUSTER),)),
    "POST /v1/roles": ("/v1/roles", {"name": "r"}, ((ALTER, CLUSTER),)),
    "POST /v1/roles/{role}/members": ("/v1/roles/r/members", {"add": []}, ((ALTER, CLUSTER),)),
    "POST /v1/roles/{role}/grant": ("/v1/roles/r/grant", {"template": "reader"}, ((ALTER, CLUSTER),)),
    "DELETE /v1/roles/{role}": ("/v1/roles/r", None, ((ALTER, CLUSTER),)),
    "GET /v1/cluster": ("/v1/cluster", None, ((DESCRIBE, CLUSTER),)),
    "POST /v1/cluster/drain/{node}": ("/v1/cluster/drain/7", None, ((ALTER, CLUSTER),)),
    "DELETE /v1/cluster/drain/{node}": ("/v1/cluster/drain/7", None, ((ALTER, CLUSTER),)),
    "POST /v1/cluster/secret/rotate": ("/v1/cluster/secret/rotate", None, ((ALTER, CLUSTER),)),
    "GET /v1/users": ("/v1/users", None, ((DESCRIBE, CLUSTER),)),
    "POST /v1/users": ("/v1/users", {"user": "u", "password": "long enough to be one"}, ((ALTER, CLUSTER),)),
    "PUT /v1/users/{user}/password": (
        "/v1/users/u/password",
        {"password": "long enough to be one"},
        ((ALTER, "user u"),),
    ),
    "DELETE /v1/users/{user}": ("/v1/users/u", None, ((ALTER, CLUSTER),)),
    "GET /v1/keys": ("/v1/keys?user=u", None, ((DESCRIBE, "user u"),)),
    "POST /v1/keys": ("/v1/keys", {"user": "u", "name": "k"}, ((ALTER, "user u"),)),
    "DELETE /v1/keys/{key}": ("/v1/keys/k", None, ((ALTER, "user "),)),
    "GET /v1/quotas": ("/v1/quotas", None, ((Action.DESCRIBE_CONFIGS, CLUSTER),)),
    "PUT /v1/quotas": (
        "/v1/quotas",
        {"entity": [{"kind": "user", "name": "a"}], "quotas": {"producer_byte_rate": 1}},
        ((Action.ALTER_CONFIGS, CLUSTER),),
    ),
}
"""By method and route: a request, and all that must be allowed for it."""
LISTS = {"GET /topics", "GET /v1/topics", "GET /v1/queues", "GET /v1/dlq", "GET /v1/groups", "GET /v1/sinks"}
"""What the caller may not describe is left out."""
FOR_EVERYONE = {
    *("GET /", "GET /openapi.json", "GET /docs", "GET /health", "GET /livez", "GET /readyz"),
    *("GET /v1/healthz", "GET /v1/version"),
}
"""They tell nothing about topics, groups and records."""


def filled(value: Any, topic: str) -> Any:
    """With the name of the topic."""
    if isinstance(value, str):
        return value.replace("{t}", topic)
    if isinstance(value, dict):
        return {key: filled(each, topic) for key, each in value.items()}
    return [filled(each, topic) for each in value] if isinstance(value, list | tuple) else value


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[HttpNode]:
    async with HttpNode(tmp_path) as node:
        await node.create("t")
        await node.append("t", 0, 2)
        await node.create("dlq.t")
        await node.commit("g", "t", 0, 1)
        assert (await node.client.post("/v1/sinks/s/open", json={})).status_code == 200
        yield node


async def ask(node: HttpNode, call: str, topic: str) -> tuple[int, str]:
    path, body, _ = CALLS[call]
    method = call.partition(" ")[0]
    answer = await node.client.request(method, filled(path, topic), json=filled(body, topic))
    return answer.status_code, answer.text


def snapshot(node: HttpNode) -> object:
    broker = node.broker
    return (
        [(topic, broker.topics.partitions(topic)) for topic in broker.topics],
        [(log.directory, log.start_offset, log.next_offset) for log in broker.open_logs()],
        [(group, broker.groups.describe(group.group_id)) for group in broker.groups.list_groups()],
        [broker.sinks.status(name) for name in broker.sinks.names()],
        [(queue.topic, queue.group, queue.lag) for queue in broker.queues.queues()],
    )


async def test_every_route_is_in_the_table(node: HttpNode) -> None:
    routes = {f"{route.method} {route.path}" for route in node.http.routes if isinstance(route, ApiRoute)}
    assert routes == CALLS.keys() | LISTS | FOR_EVERYONE


@pytest.mark.parametrize("call", CALLS)
async def test_without_rights_nothing_is_done_and_nothing_is_told(node: HttpNode, call: str) -> None:
    before = snapshot(node)
    answers = []
    for topic in ("t", "x"):
        guard = node.broker.access = Guard()
        status, text = await ask(node, call, topic)
        assert guard.asked
        assert {caller.gateway for caller in guard.callers} == {Gateway.HTTP}
        answers.append((status, text.replace(f"topic {topic}", "topic").replace(f"dlq.{topic}", "dlq")))
    # The answer about a topic that does not exist is the same.
    assert answers[0] == answers[1]
    assert answers[0][0] == 403
    assert snapshot(node) == before


@pytest.mark.parametrize("call", CALLS)
async def test_each_right_is_needed(node: HttpNode, call: str) -> None:
    before = snapshot(node)
    for refused in filled(CALLS[call][2], "t"):
        node.broker.access = all_but(tuple(refused), *((action, CLUSTER) for action in Action if refused[1] != CLUSTER))
        assert (await ask(node, call, "t"))[0] == 403, refused
        assert snapshot(node) == before


@pytest.mark.parametrize("call", [call for call in CALLS if "/consume" not in call and "/tail" not in call])
async def test_no_other_right_is_needed(node: HttpNode, call: str) -> None:
    node.broker.access = only(*map(tuple, filled(CALLS[call][2], "t")))
    status, text = await ask(node, call, "t")
    assert status not in (401, 403), text


@pytest.mark.parametrize("call", sorted(LISTS))
async def test_lists_leave_out_what_may_not_be_described(node: HttpNode, call: str) -> None:
    path = call.partition(" ")[2]
    await node.client.post("/v1/lease", json={"topic": "t", "group": "g", "owner": "w", "wait_ms": 0})
    full = (await node.client.get(path)).json()
    guard = node.broker.access = Guard()
    answer = await node.client.get(path)
    assert answer.status_code == 200
    assert guard.asked
    assert [value for value in answer.json().values() if isinstance(value, list)] == [[]]
    assert any(full.values())
