"""What is written to the audit log: through the door, the lanes and the logins, into the topic."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.core.audit.audit import is_wanted
from penstock.core.audit.limiter import PERIOD_MS
from penstock.core.audit.outputs import TopicOutput
from penstock.core.audit.record import Effect, concerned, effect_of
from penstock.core.audit.writer import Written
from penstock.core.operations.handling import HANDLERS, HandlerKind
from penstock.core.security.access import INTERNAL, Access, Caller, Principal
from penstock.core.security.identity import Password, Secret
from penstock.core.topics.names import AUDIT_TOPIC
from penstock.errors import PenstockError, Reason
from penstock.limits import AUDIT_NAMES_MAX
from penstock.operations.access import CreateRules, Permission, Rule
from penstock.operations.catalogue import CATALOGUE
from penstock.operations.groups import DeleteGroups
from penstock.operations.operation import Action, Resource
from penstock.operations.topics import CreateTopic, DeleteTopic, DescribeTopic
from penstock.operations.users import CreateUser
from penstock.settings import AuditMode, AuditSettings, Authentication, SecuritySettings, Settings
from penstock.types import Gateway
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import FETCH, PRODUCE, WireNode, batch, fetch, produce, until

ANNA = Caller(Principal("User:anna"), Gateway.HTTP, "192.0.2.1", (), "http", "scram-sha-256", "app", "r-1")


class Memory:
    """An output that keeps everything, and fails when told to."""

    name = "memory"

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.problem: str | None = None

    def write(self, lines: Sequence[bytes], done: Written) -> None:
        if self.problem is None:
            self.records += [json.loads(line) for line in lines]
        done(self.problem)

    def take(self) -> list[dict[str, Any]]:
        found, self.records = self.records, []
        return found


class Audited(WireNode):
    """A node with an audit log in memory."""

    def __init__(self, data_dir: Path, **audit: Any) -> None:
        super().__init__(data_dir, audit=AuditSettings(mode=AuditMode.ON, **audit))
        self.log = Memory()

    async def __aenter__(self) -> "Audited":
        await super().__aenter__()
        self.broker.audit.start([self.log])
        assert [(each["event"], each["operation"]) for each in self.log.take()] == [("application_lifecycle", "Start")]
        return self

    def deny(self) -> None:
        """Only super users may do anything from now on."""
        self.broker.access = Access(is_on=True, super_users=frozenset({"User:root"}))


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Audited]:
    async with Audited(tmp_path) as node:
        yield node


@pytest_asyncio.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Audited]:
    async with Audited(tmp_path, required=True) as node:
        yield node


async def test_a_change_is_written_with_who_and_what_and_nothing_else(node: Audited) -> None:
    await node.broker.do(CreateTopic("orders", 2, configs={"retention.ms": "12345678"}), ANNA)
    [written] = node.log.take()
    assert written == {
        "time": node.clock.now_ms(),
        "event": "api_activity",
        "class_uid": 6003,
        "result": "success",
        "node": node.broker.node_id,
        "operation": "CreateTopic",
        "principal": "User:anna",
        "method": "scram-sha-256",
        "client": "192.0.2.1",
        "client_id": "app",
        "gateway": "http",
        "listener": "http",
        "resource_type": "topic",
        "resources": ["orders"],
        "request_id": "r-1",
    }


async def test_a_change_that_fails_is_written_with_the_reason(node: Audited) -> None:
    with pytest.raises(PenstockError):
        await node.broker.do(DeleteTopic("absent"), ANNA)
    [written] = node.log.take()
    assert (written["result"], written["reason"]) == ("failure", "unknown_topic_or_partition")


async def test_a_change_that_is_begun_is_written_when_it_ends(node: Audited) -> None:
    outcomes: list[object] = []
    node.broker.begin(CreateTopic("orders"), ANNA, outcomes.append)
    await until(lambda: outcomes)
    [written] = node.log.take()
    assert (written["operation"], written["result"]) == ("CreateTopic", "success")


async def test_items_that_fail_make_a_failure(node: Audited) -> None:
    await node.broker.do(DeleteGroups(("absent",)), ANNA)
    [written] = node.log.take()
    assert (written["result"], written["reason"], written["resources"]) == ("failure", "group_id_not_found", ["absent"])


async def test_what_only_looks_and_what_the_broker_does_itself_is_not_written(node: Audited) -> None:
    await node.create("t")
    await node.broker.do(DescribeTopic("t"), ANNA)
    await node.broker.do(DeleteTopic("t"), INTERNAL)
    assert node.log.take() == []


async def test_many_names_are_cut(node: Audited) -> None:
    await node.broker.do(DeleteGroups(tuple(f"g{number}" for number in range(100))), ANNA)
    [written] = node.log.take()
    assert (len(written["resources"]), written["resource_count"]) == (20, 100)


async def test_a_hostile_name_is_bounded_and_can_be_read(node: Audited) -> None:
    with pytest.raises(PenstockError):
        await node.broker.do(CreateTopic("\ud800\n" * 5000), ANNA._replace(client_id="\udfff" * 10))
    [written] = node.log.take()
    assert len(written["resources"][0]) <= 249
    assert written["client_id"] == "?" * 10


# Refusals.


async def test_a_refusal_is_written_with_the_rule_that_decided(node: Audited) -> None:
    node.deny()
    with pytest.raises(PenstockError):
        await node.broker.do(DeleteTopic("orders"), ANNA)
    [written] = node.log.take()
    assert (written["result"], written["operation"], written["resources"]) == ("denied", "DeleteTopic", ["orders"])
    assert (written["reason"], written["rule"]) == ("topic_authorization_failed", "not_loaded")


async def test_refusals_that_repeat_are_counted(node: Audited) -> None:
    node.deny()
    for _ in range(1000):
        with pytest.raises(PenstockError):
            await node.broker.do(DescribeTopic("orders"), ANNA)
    with pytest.raises(PenstockError):
        await node.broker.do(DescribeTopic("other"), ANNA)
    assert [each["resources"] for each in node.log.take()] == [["orders"]] * 5 + [["other"]]
    node.clock.advance(PERIOD_MS)
    assert node.broker.audit.next_deadline_ms() == node.clock.monotonic_ms()
    node.broker.audit.tick(node.clock.monotonic_ms())
    [summary] = node.log.take()
    assert (summary["resources"], summary["result"], summary["count"]) == (["orders"], "denied", 995)
    assert summary["time"] == node.clock.now_ms()
    assert node.broker.audit.next_deadline_ms() is None


async def test_items_that_are_refused_are_written_by_name(node: Audited) -> None:
    node.deny()
    await node.broker.do(DeleteGroups(("a", "b")), ANNA)
    denied = [each for each in node.log.take() if each["result"] == "denied"]
    assert [(each["resources"], each["reason"]) for each in denied] == [
        (["a"], "group_authorization_failed"),
        (["b"], "group_authorization_failed"),
    ]


async def test_refusals_of_kafkas_produce_and_fetch_are_written(node: Audited) -> None:
    await node.create("t")
    node.deny()
    client = await node.connect()
    await client.ask(PRODUCE, produce("t", batch(b"v")), 9)
    await client.ask(FETCH, fetch("t", 0, session_epoch=-1), 11)
    found = [(each["operation"], each["result"], each["resources"], each["gateway"]) for each in node.log.take()]
    assert ("Produce", "denied", ["t"], "kafka") in found
    assert ("Fetch", "denied", ["t"], "kafka") in found


async def test_a_check_before_an_operation_is_written_too(node: Audited) -> None:
    node.deny()
    with pytest.raises(PenstockError):
        node.broker.door.check(DeleteTopic("orders"), ANNA)
    assert [each["result"] for each in node.log.take()] == ["denied"]


# Logins.


async def test_logins_are_written_and_failed_ones_are_counted(node: Audited) -> None:
    audit = node.broker.audit
    audit.login("User:anna", "192.0.2.1", "plain")
    for _ in range(100):
        audit.login("User:anna", "198.51.100.7", "plain", "wrong-password")
    written = node.log.take()
    assert written[0]["event"] == "authentication"
    assert (written[0]["result"], written[0]["principal"]) == ("success", "User:anna")
    assert [(each["result"], each["reason"]) for each in written[1:]] == [("denied", "wrong-password")] * 5
    node.clock.advance(PERIOD_MS)
    audit.tick(node.clock.monotonic_ms())
    assert [(each["count"], each["client"]) for each in node.log.take()] == [(95, "198.51.100.7")]


# Required.


async def test_a_required_log_is_written_before_the_change(strict: Audited) -> None:
    await strict.broker.do(CreateTopic("orders"), ANNA)
    assert [(each["operation"], each["result"]) for each in strict.log.take()] == [
        ("CreateTopic", "attempt"),
        ("CreateTopic", "success"),
    ]


@pytest.mark.parametrize("way", ["do", "do_here", "begin", "begin_here"])
async def test_nothing_is_changed_that_cannot_be_recorded_first(strict: Audited, way: str) -> None:
    strict.log.problem = "No space left on device"
    operation = CreateTopic("orders")
    if way.startswith("do"):
        do = strict.broker.do if way == "do" else strict.broker.door.do_here
        with pytest.raises(PenstockError) as refusal:
            await do(operation, ANNA)
        error: object = refusal.value
    else:
        outcomes: list[object] = []
        begin = strict.broker.begin if way == "begin" else strict.broker.door.begin_here
        begin(operation, ANNA, outcomes.append)
        await until(lambda: outcomes)
        [error] = outcomes
    assert isinstance(error, PenstockError)
    assert error.reason is Reason.AUDIT_UNAVAILABLE
    assert "orders" not in strict.broker.topics
    strict.log.problem = None
    await strict.broker.do(operation, ANNA)
    assert "orders" in strict.broker.topics


async def test_reads_need_no_record(strict: Audited) -> None:
    await strict.create("t")
    strict.log.problem = "No space left on device"
    await strict.broker.do(DescribeTopic("t"), ANNA)


async def test_a_log_that_is_not_required_stops_nothing(node: Audited) -> None:
    node.log.problem = "No space left on device"
    await node.broker.do(CreateTopic("orders"), ANNA)
    assert "orders" in node.broker.topics
    assert node.broker.meters.audit_lost.get(("memory",)) == 1


# Data.


async def test_data_is_written_once_a_minute_for_each_user_and_topic(tmp_path: Path) -> None:
    async with Audited(tmp_path, data=True) as node:
        await node.create("t")
        client = await node.connect()
        for _ in range(20):
            await client.ask(PRODUCE, produce("t", batch(b"v")), 9)
            await client.ask(FETCH, fetch("t", 0, session_epoch=-1), 11)
        assert [(each["operation"], each["resources"]) for each in node.log.take()] == [
            ("Produce", ["t"]),
            ("Fetch", ["t"]),
        ]
        node.clock.advance(PERIOD_MS)
        node.broker.audit.tick(node.clock.monotonic_ms())
        summaries = {each["operation"]: each["count"] for each in node.log.take()}
        assert summaries.keys() == {"Produce", "Fetch"}
        assert min(summaries.values()) >= 19


async def test_data_is_not_written_unless_asked_for(node: Audited) -> None:
    await node.create("t")
    client = await node.connect()
    await client.ask(PRODUCE, produce("t", batch(b"v")), 9)
    assert node.log.take() == []


# The topic.


async def test_the_topic_is_created_when_needed_and_belongs_to_the_broker(node: Audited) -> None:
    broker = node.broker
    broker.audit.start([TopicOutput(broker, 30)])
    await until(lambda: broker.audit.is_idle)
    topic = broker.topics.require(AUDIT_TOPIC)
    assert topic.internal
    assert topic.config.retention_ms == 30 * 24 * 3_600_000
    await broker.do(CreateTopic("orders"), ANNA)
    await until(lambda: broker.audit.is_idle)
    assert broker.partition(AUDIT_TOPIC, 0).high_watermark == 2
    with pytest.raises(PenstockError):
        await broker.do(DeleteTopic(AUDIT_TOPIC), ANNA)
    await until(lambda: broker.audit.is_idle)
    end = broker.partition(AUDIT_TOPIC, 0).high_watermark
    client = await node.connect()
    answer = await client.ask(PRODUCE, produce(AUDIT_TOPIC, batch(b"forged")), 9)
    assert answer.responses[0].partition_responses[0].error_code != 0
    assert broker.partition(AUDIT_TOPIC, 0).high_watermark == end


async def test_a_stop_is_the_last_record(node: Audited) -> None:
    await node.broker.audit.stop()
    assert [(each["event"], each["operation"]) for each in node.log.take()] == [("application_lifecycle", "Stop")]
    await node.broker.do(CreateTopic("orders"), ANNA)
    assert node.log.take() == []


# Which operations, and when it is on.


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_change_is_answered_without_a_chance_to_wait_for_its_record(name: str) -> None:
    kind = CATALOGUE[name]
    if effect_of(kind) is Effect.CHANGE:
        assert HANDLERS[kind].kind is not HandlerKind.ANSWERS


def test_every_operation_that_makes_or_removes_something_is_a_change() -> None:
    verbs = ("Create", "Delete", "Alter", "Replace", "Add", "Drain", "Undrain", "Elect", "Reassign", "Purge", "Grant")
    named = {name for name in CATALOGUE if name.startswith(verbs)}
    assert {name for name in named if effect_of(CATALOGUE[name]) is not Effect.CHANGE} == set()
    assert len(named) > 15


@pytest.mark.parametrize(
    ("mode", "authentication", "wanted"),
    [
        (AuditMode.AUTO, Authentication.OFF, False),
        (AuditMode.AUTO, Authentication.REQUIRED, True),
        (AuditMode.ON, Authentication.OFF, True),
        (AuditMode.OFF, Authentication.REQUIRED, False),
    ],
)
def test_it_is_on_with_authentication_unless_set(mode: AuditMode, authentication: Authentication, wanted: bool) -> None:
    settings = Settings(audit=AuditSettings(mode=mode), security=SecuritySettings(authentication=authentication))
    assert is_wanted(settings) is wanted


async def test_without_it_nothing_is_done(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        node.broker.audit.start([Memory()])
        assert not node.broker.audit.is_on
        await node.broker.do(CreateTopic("orders"), ANNA)


async def test_the_authenticator_reports_logins_that_succeed_and_that_fail(tmp_path: Path) -> None:
    required = SecuritySettings(authentication=Authentication.REQUIRED)
    async with KafkaNode(tmp_path, security=required) as node:
        log = Memory()
        node.broker.audit.start([log])
        log.take()
        authenticator = node.broker.authenticator
        keys = await authenticator.hashed("correct horse")
        await authenticator.users.create("anna", keys, 0)
        good = Password("anna", Secret(b"correct horse"))
        for credential in (good, good, Password("anna", Secret(b"battery")), Password("who", Secret(b"staple"))):
            with contextlib.suppress(PenstockError):
                await authenticator.authenticate(credential, "192.0.2.1", is_private=True)
        written = log.take()
        # The second one is remembered: it is the same login.
        assert [(each["result"], each["principal"], each["method"]) for each in written] == [
            ("success", "User:anna", "plain"),
            ("denied", "User:anna", "plain"),
            ("denied", "User:?", "plain"),
        ]
        assert [each.get("reason") for each in written] == [None, "wrong-password", "unknown-user"]
        assert {each["client"] for each in written} == {"192.0.2.1"}
        text = json.dumps(written)
        assert not any(secret in text for secret in ("correct horse", "battery", "staple", "who"))


def test_a_change_of_rules_and_users_shows_what_was_asked_for_and_no_password() -> None:
    rule = Rule("User:paul", Permission.ALLOW, Action.WRITE, Resource.TOPIC, "cartons")
    details = concerned(CreateRules((rule,)))["details"]
    assert details["rules"][0]["principal"] == "User:paul"
    assert details["rules"][0]["name"] == "cartons"
    assert concerned(CreateUser("paul", "secret", admin=True))["details"] == {"user": "paul", "admin": True}
    many = concerned(CreateRules((rule,) * 100))["details"]["rules"]
    assert len(many) == AUDIT_NAMES_MAX


def test_no_operation_shows_a_field_with_a_secret() -> None:
    shown = {f"{name}.{field}" for name, kind in CATALOGUE.items() for field in kind.audited}
    assert not {field for field in shown if field.split(".")[1] in ("password", "key", "credentials", "value")}
