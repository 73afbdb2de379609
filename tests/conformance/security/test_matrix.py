"""Every operation at every door of a real broker, as nobody, as a user without rights, a reader, a writer and the administrator: the answer, and the effect.

What each operation needs is in one table for each door, and what each caller has is below; the expected answer follows from the two. The
tables hold all that is served: an API, a route, a type of line or a method without a row fails here. A refused operation changes nothing.
"""

import base64
import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest

from penstock.gateways.grpc.service import CALLS as METHODS
from penstock.gateways.grpc.service import Streaming
from penstock.gateways.kafka.handlers import HANDLERS
from penstock.gateways.tcp.requests import FIELDS
from penstock.operations.operation import Action
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.describe_cluster_generated import DescribeClusterRequest
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeRequest
from penstock.wire.mq import mq_generated as mq
from tests.support.access import CLUSTER, Asked
from tests.support.kafka_wire import RawClient
from tests.support.secured import ADMIN, PASSWORD, SecuredProcess, basic
from tests.unit.gateways.http.server import test_access as http_table
from tests.unit.gateways.kafka.test_access import ASKS_NOTHING, CASES, refusals

READ, WRITE, DESCRIBE = Action.READ, Action.WRITE, Action.DESCRIBE
T, G, DLQ, SINK = "topic t", "group g", "topic dlq.t", "transactional id s"
NEW = ((Action.CREATE, CLUSTER), (Action.CREATE, "topic new"))
OPEN_PATHS = {"/livez", "/readyz"}
ENDLESS = {"GET /v1/consume", "GET /topics/{topic}/tail"}
"""Their answers have a head, and no end."""
IMPLIED = {READ: DESCRIBE, WRITE: DESCRIBE, Action.DELETE: DESCRIBE, Action.ALTER: DESCRIBE}

Choice = tuple[Asked, ...]
"""Rights of which one is enough."""


class Caller(NamedTuple):
    """A user, and what the rules allow it."""

    name: str
    rights: frozenset[Asked] = frozenset()

    @property
    def is_admin(self) -> bool:
        return self.name == ADMIN

    @property
    def is_nobody(self) -> bool:
        return not self.name

    def may(self, needs: tuple[Choice, ...]) -> bool:
        """Whether a caller with these rights may do what needs each of these."""
        has = self.rights | {(IMPLIED[action], what) for action, what in self.rights if action in IMPLIED}
        return not self.is_nobody and (self.is_admin or all(has & set(choice) for choice in needs))


CALLERS = (
    Caller(""),
    Caller("stranger"),
    Caller("reader", frozenset({(READ, T), (READ, G)})),
    Caller("writer", frozenset({(WRITE, T), (WRITE, SINK), (Action.IDEMPOTENT_WRITE, CLUSTER)})),
    Caller(ADMIN),
)
HEADERS = {"content-type": "application/json"}


class Stage(NamedTuple):
    """A broker, and the caller whose turn it is."""

    broker: SecuredProcess
    caller: Caller

    def furnish(self) -> None:
        """A topic with records and dead letters, a group and a sink; what the administrator deleted is there again."""
        for name in ("t", "dlq.t"):
            self.broker.ask("POST", "/v1/topics", {"name": name, "partitions": 1})
            self.broker.ask("POST", "/v1/produce", {"topic": name, "value": "v"})
        self.broker.ask("POST", "/consumers/g/offsets", {"topic_name": "t", "partition": 0, "offset": 1})
        self.broker.ask("POST", "/v1/sinks/s/open", {})

    def judge(self, door: str, operations: dict[str, tuple[Choice, ...]], ask: Callable[[str], str]) -> None:
        """Ask for all that the caller may not do, then for the rest. ``ask`` returns ok, refused or unknown caller."""
        refused = [name for name, needs in operations.items() if not self.caller.may(needs)]
        expected = "unknown caller" if self.caller.is_nobody else "refused"
        before = self.broker.state()
        assert {name: ask(name) for name in refused} == dict.fromkeys(refused, expected), door
        after = self.broker.state()
        assert [
            (name, before.get(name), after.get(name)) for name in before | after if before.get(name) != after.get(name)
        ] == [], json.dumps([before, after])
        told = {}
        for name in operations.keys() - set(refused):
            if self.caller.is_admin:
                self.furnish()
            told[name] = ask(name)
        assert told == dict.fromkeys(told, "ok"), door
        assert bool(refused) != self.caller.is_admin
        if self.caller.is_admin:
            assert self.broker.state() != before, (
                "the administrator's operations have effects, which shows that the state has what they change"
            )


@pytest.fixture(scope="module", params=CALLERS, ids=lambda caller: caller.name or "nobody")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with SecuredProcess(tmp_path_factory.mktemp("matrix")) as broker:
        stage = Stage(broker, request.param)
        stage.furnish()
        for caller in CALLERS[1:-1]:
            status, said = broker.ask("POST", "/v1/users", {"user": caller.name, "password": PASSWORD})
            assert status == 204, said
            rules = [_rule(caller.name, *right) for right in caller.rights]
            if rules:
                status, said = broker.ask("POST", "/v1/acls", {"rules": rules})
                assert status == 201, said
        yield stage
        assert "Traceback" not in broker.log_text(), broker.log_text()


def _rule(user: str, action: Action, what: str) -> dict[str, str]:
    resource, _, name = what.rpartition(" ") if what != CLUSTER else (CLUSTER, "", "kafka-cluster")
    rule = {
        "principal": f"User:{user}",
        "permission": "allow",
        "action": action.value,
        "resource": resource.replace(" ", "_"),
    }
    return {**rule, "name": name}


# Kafka: the last version of each API; the others are in the unit tests.


def test_every_kafka_api(stage: Stage) -> None:
    operations = {key: tuple(need.any_of for need in CASES[key].needs) for key in CASES}
    assert operations.keys() | ASKS_NOTHING == HANDLERS.keys()
    described = {ApiKey.DESCRIBE_CLUSTER.name: ()}
    named = {ApiKey(key).name: _rights_on_the_way(needs) for key, needs in operations.items()}

    def ask(name: str) -> str:
        return _ask_kafka(stage, ApiKey[name])

    stage.judge("kafka", {**named, **described}, ask)
    with RawClient(stage.broker.bootstrap) as client:
        assert client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("raw", "1"), 4).error_code == 0


def _rights_on_the_way(needs: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Writing to any topic is a right of who may write to one."""
    return tuple((*choice, (WRITE, T)) if (WRITE, "any topic") in choice else choice for choice in needs)


def _ask_kafka(stage: Stage, key: ApiKey) -> str:
    version = API[key].max_version
    with RawClient(stage.broker.bootstrap) as client:
        if not stage.caller.is_nobody:
            _log_in(client, stage.caller.name)
        request = DescribeClusterRequest() if key is ApiKey.DESCRIBE_CLUSTER else _request(stage, key, version)
        try:
            answer = client.ask(key, request, version)
        except EOFError:
            return "unknown caller"
    if key is ApiKey.LIST_GROUPS:
        # What may not be seen is left out.
        return "ok" if any(group.group_id == "g" for group in answer.groups) else "refused"
    return "refused" if refusals(answer) else "ok"


def _request(stage: Stage, key: ApiKey, version: int) -> Any:
    with RawClient(stage.broker.bootstrap) as admin:
        _log_in(admin, ADMIN)
        [topic] = admin.ask(ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12).topics
    return CASES[key].request(version, topic.topic_id)


def _log_in(client: RawClient, user: str) -> None:
    assert client.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    token = SaslAuthenticateRequest(f"\0{user}\0{PASSWORD}".encode())
    assert client.ask(ApiKey.SASL_AUTHENTICATE, token, 2).error_code == 0


# HTTP: every route of the OpenAPI document.


def test_every_http_route(stage: Stage) -> None:
    table: dict[str, tuple[str, Any, tuple[Asked, ...]]] = http_table.filled(http_table.CALLS, "t")
    operations: dict[str, tuple[Choice, ...]] = {
        name: tuple(((action, what),) for action, what in needs) for name, (_, _, needs) in table.items()
    }
    open_to_all = {name for name in http_table.FOR_EVERYONE if name.partition(" ")[2] in OPEN_PATHS}
    operations |= dict.fromkeys(http_table.LISTS | http_table.FOR_EVERYONE - open_to_all, ())
    paths = stage.broker.get("/openapi.json")["paths"]
    documented = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    known = {name.replace(":path}", "}") for name in operations | dict.fromkeys(open_to_all)}
    assert documented <= known
    headers = {} if stage.caller.is_nobody else dict([basic(stage.caller.name)])
    for name in open_to_all:
        assert stage.broker.ask("GET", name.partition(" ")[2], headers={})[0] == 200

    def ask(name: str) -> str:
        path, body, _ = table.get(name, (name.partition(" ")[2], None, ()))
        status = _status(stage, name, path, body, headers)
        return {401: "unknown caller", 403: "refused"}.get(status, "ok")

    stage.judge("http", operations, ask)


def _status(stage: Stage, name: str, path: str, body: Any, headers: dict[str, str]) -> int:
    method = name.partition(" ")[0]
    if name not in ENDLESS:
        return stage.broker.ask(method, path, body, headers)[0]
    connection = http.client.HTTPConnection(*stage.broker.place("http"), timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


# JSON lines.

IN_GROUP = {"groupId": "g", "topic": "t", "consumerId": "c"}
AT = {"topic": "t", "partition": 0, "offset": 0}
WORK: tuple[Choice, ...] = (((READ, G),), ((READ, T),))
LINES: dict[str, tuple[dict[str, Any], tuple[Choice, ...]]] = {
    "createTopic": ({"topic": "new"}, (NEW,)),
    "deleteTopic": ({"topic": "t"}, (((Action.DELETE, T),),)),
    "produce": ({"topic": "t", "value": "v"}, (((WRITE, T),),)),
    "fetch": (AT, (((READ, T),),)),
    "commit": ({**AT, "groupId": "g"}, WORK),
    "metrics": ({**AT, "groupId": "g"}, (((DESCRIBE, T),), ((DESCRIBE, G),))),
    "listTopics": ({}, ()),
    "joinGroup": (IN_GROUP, WORK),
    "leaveGroup": (IN_GROUP, (((READ, G),),)),
    "heartbeat": (IN_GROUP, (((READ, G),),)),
    "auth": ({}, ()),
}


def test_every_type_of_line(stage: Stage) -> None:
    assert LINES.keys() == FIELDS.keys()
    user = stage.caller.name

    def ask(name: str) -> str:
        login = {"type": "auth", "user": user, "password": PASSWORD}
        asked = {"type": name, **LINES[name][0], **(login if name == "auth" and user else {})}
        with stage.broker.connect("tcp") as sock, sock.makefile("rwb") as lines:
            for line in [login, asked] if user else [asked]:
                lines.write(json.dumps(line).encode() + b"\n")
            lines.flush()
            if user:
                assert json.loads(lines.readline())["ok"]
            answer = json.loads(lines.readline())
        if "Authentication is required" in answer.get("error", ""):
            return "unknown caller"
        return "refused" if "has no right" in answer.get("error", "") else "ok"

    stage.judge("tcp", {name: needs for name, (_, needs) in LINES.items()}, ask)


# gRPC.

WORKER = {"topic": "t", "consumer_group": "g", "consumer_id": "c"}
RECORD = {**WORKER, "partition": 0, "offsets": [0]}
RPCS: dict[str, tuple[dict[str, Any], tuple[Choice, ...]]] = {
    "CreateTopic": ({"name": "new", "partitions": 1}, (NEW,)),
    "Publish": ({"topic": "t", "payload": b"v"}, (((WRITE, T),),)),
    "Subscribe": ({"topic": "t", "replay_offset": 0, "max_messages": 1, "partitions": [0]}, (((READ, T),),)),
    "CommitOffset": ({"topic": "t", "consumer_group": "g", "offset": 0}, WORK),
    "PublishStream": ({}, (((WRITE, T),),)),
    "SubscribeBatch": ({"topic": "t", "replay_offset": 0, "max_messages": 1, "partitions": [0]}, (((READ, T),),)),
    "Ack": (RECORD, WORK),
    "Nack": (RECORD, WORK),
    "Extend": ({**WORKER, "partition": 0, "offset": 0, "lease_ms": 1000}, WORK),
    "ListTopics": ({}, ()),
    "DeleteTopic": ({"name": "t"}, (((Action.DELETE, T),),)),
    "TopicStats": ({"topic": "t"}, (((DESCRIBE, T),),)),
    "GroupStatus": ({"consumer_group": "g"}, (((DESCRIBE, G),),)),
    "DeliveryStatus": ({"topic": "t", "consumer_group": "g"}, (((DESCRIBE, T),), ((DESCRIBE, G),))),
}
ANSWERS = {grpc.StatusCode.UNAUTHENTICATED: "unknown caller", grpc.StatusCode.PERMISSION_DENIED: "refused"}


def test_every_grpc_method(stage: Stage) -> None:
    assert RPCS.keys() == METHODS.keys()
    metadata = () if stage.caller.is_nobody else (basic(stage.caller.name),)

    with stage.broker.channel() as channel:
        stage.judge(
            "grpc",
            {name: needs for name, (_, needs) in RPCS.items()},
            lambda name: _call(channel, name, metadata),
        )


def _call(channel: grpc.Channel, name: str, metadata: tuple[tuple[str, str], ...]) -> str:
    path, known = f"/mq.MessageQueueService/{name}", METHODS[name].request.DESCRIPTOR.fields_by_name
    fields = RPCS[name][0]
    assert set(fields) <= set(known), name
    try:
        if name == "PublishStream":
            records = [mq.PublishRequest(payload=b"x")]
            frame = mq.PublishFrame(topic="t", records=records).SerializeToString()
            answers = channel.stream_stream(path, response_deserializer=mq.PublishFrameResponse.FromString)
            [answer] = answers(iter([frame]), timeout=60, metadata=metadata)
            return "refused" if answer.failures else "ok"
        request = METHODS[name].request(**fields).SerializeToString()
        if isinstance(METHODS[name], Streaming):
            next(channel.unary_stream(path)(request, timeout=60, metadata=metadata))
        else:
            channel.unary_unary(path)(request, timeout=60, metadata=metadata)
    except grpc.RpcError as error:
        return ANSWERS.get(error.code(), "ok")
    return "ok"


def test_a_wrong_password_is_that_of_nobody(stage: Stage) -> None:
    wrong = "Basic " + base64.b64encode(f"{stage.caller.name or 'ghost'}:wrong".encode()).decode()
    assert stage.broker.ask("GET", "/v1/topics", headers={"authorization": wrong})[0] == 401
