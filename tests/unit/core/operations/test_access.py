"""Templates give what people usually need, and no more."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.core.security.access import Caller, Principal
from penstock.errors import PenstockError, Reason
from penstock.operations.access import CreateRole, CreateRules, GrantTemplate, ListRules, Rule, Template
from penstock.operations.cluster import DrainNode
from penstock.operations.dead_letters import ALL as EVERYTHING
from penstock.operations.dead_letters import Redrive, ShowDeadLetters
from penstock.operations.groups import CommitOffset
from penstock.operations.operation import AnyOperation
from penstock.operations.queues import Ack
from penstock.operations.records import PublishOnce, ReadRecords, TakeProducerId
from penstock.operations.sinks import OpenSink
from penstock.operations.topics import CreateTopic, DeleteTopic, DescribeTopic
from penstock.types import Gateway
from tests.support.access import use_rules
from tests.support.kafka_node import KafkaNode

ROOT = Caller(Principal("User:root"), Gateway.HTTP)
ANNA = Caller(Principal("User:anna"), Gateway.HTTP)

READ = [ReadRecords("app.t", 0, 0, 1, 1), CommitOffset("app.g", "app.t", 0, 1), Ack("app.t", "app.g", "w", 0, [0])]
WRITE = [PublishOnce("app.t", "k", b"v"), TakeProducerId(), OpenSink("app.s")]
DEAD = [ShowDeadLetters("app.t", EVERYTHING, 10)]
OTHERS = [ReadRecords("other", 0, 0, 1, 1), PublishOnce("other", "k", b"v"), Ack("app.t", "other", "w", 0, [0])]
MANAGE = [CreateTopic("app.new"), DeleteTopic("app.t"), DescribeTopic("other")]
RULE_THE_CLUSTER = [DrainNode(7), CreateRules(()), Redrive(0, "app.t", EVERYTHING)]
ALL = [*READ, *WRITE, *DEAD, *OTHERS, *MANAGE, *RULE_THE_CLUSTER, ListRules()]


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path) as started:
        await use_rules(started, "User:root")
        yield started


@pytest.mark.parametrize(
    ("template", "prefix", "allowed"),
    [
        (Template.READER, "app.", READ),
        (Template.WRITER, "app.", WRITE),
        (Template.WORKER, "app.", [*READ, *DEAD]),
        (Template.OPERATOR, "", [*MANAGE, ListRules()]),
        (Template.ADMIN, "", ALL),
        (Template.READER, "", [*READ, *DEAD, OTHERS[0], OTHERS[2], MANAGE[2]]),
    ],
)
async def test_a_template_allows_its_operations_alone(
    node: KafkaNode, template: Template, prefix: str, allowed: list[AnyOperation]
) -> None:
    door = node.broker.door
    await node.broker.do(CreateRole("r", ("User:anna",)), ROOT)
    created = await node.broker.do(GrantTemplate("r", template, prefix), ROOT)
    assert set(await node.broker.do(ListRules(), ROOT)) == set(created)
    for asked in ALL:
        try:
            door.check(asked, ANNA)
        except PenstockError:
            assert asked not in allowed, asked
        else:
            assert asked in allowed, asked


async def test_a_template_needs_a_role_and_fits_its_prefix(node: KafkaNode) -> None:
    for grant, reason in (
        (GrantTemplate("nobody", Template.READER), Reason.UNKNOWN_ROLE),
        (GrantTemplate("r", Template.ADMIN, "app."), Reason.INVALID_REQUEST),
    ):
        await node.broker.do(CreateRole("r"), ROOT)
        with pytest.raises(PenstockError) as refused:
            await node.broker.do(grant, ROOT)
        assert refused.value.reason is reason
    assert await node.broker.do(ListRules(), ROOT) == ()


def test_a_rule_reads_as_the_command_that_creates_it() -> None:
    from penstock.operations.access import CLUSTER_NAME, Pattern, Permission
    from penstock.operations.operation import Action, Resource

    allow = Permission.ALLOW
    topic = Rule("User:anna", allow, Action.DESCRIBE_CONFIGS, Resource.TOPIC, "orders", Pattern.PREFIXED)
    assert str(topic) == "allow User:anna describe-configs topic:orders*"
    sink = Rule("Role:etl", Permission.DENY, Action.WRITE, Resource.TRANSACTIONAL_ID, "x", host="10.0.0.1")
    assert str(sink) == "deny Role:etl write transactional-id:x from 10.0.0.1"
    assert str(Rule("User:*", allow, Action.ALL, Resource.CLUSTER, CLUSTER_NAME)) == "allow User:* all cluster"
