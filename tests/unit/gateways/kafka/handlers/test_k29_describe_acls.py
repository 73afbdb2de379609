from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_acls_generated import CreateAclsRequest, CreateAclsRequestCreation
from penstock.wire.kafka.describe_acls_generated import DescribeAclsRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.acls import (
    ALLOW,
    ANY,
    DENY,
    EXAMPLES,
    GROUP,
    LITERAL,
    MATCH,
    PREFIXED,
    READ,
    ROOT,
    SECURED,
    TOPIC,
    UNKNOWN,
)

KEY = ApiKey.DESCRIBE_ACLS
EVERYTHING = DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY)


@pytest_asyncio.fixture
async def secured(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path, security=SECURED) as started:
        started.caller = ROOT
        created = [CreateAclsRequestCreation(*example) for example in EXAMPLES]
        await started.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(created), 3)
        yield started


@pytest.mark.parametrize("version", versions(KEY))
async def test_without_authentication_there_are_none_and_the_answer_says_so(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, EVERYTHING, version)
    assert reason_of(answer.error_code) is Reason.SECURITY_DISABLED
    assert "authentication is off" in answer.error_message
    assert answer.resources == []


@pytest.mark.parametrize("version", versions(KEY))
async def test_all_rules_are_described_by_resource(secured: KafkaNode, version: int) -> None:
    answer = await secured.ask(KEY, EVERYTHING, version)
    assert (answer.error_code, answer.error_message) == (0, None)
    found = [
        (
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for each in answer.resources
        for acl in each.acls
    ]
    assert sorted(found) == sorted(EXAMPLES)
    resources = [(each.resource_type, each.resource_name, each.pattern_type) for each in answer.resources]
    assert len(resources) == len(set(resources))


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ((TOPIC, None, ANY, None, None, ANY, ANY), {"orders", "orders.eu", "*"}),
        ((TOPIC, "orders.eu", MATCH, None, None, ANY, ANY), {"orders", "orders.eu", "*"}),
        ((TOPIC, "orders.us", MATCH, None, None, ANY, ANY), {"orders", "*"}),
        ((TOPIC, "orders", ANY, None, None, ANY, ANY), {"orders"}),
        ((TOPIC, "orders", LITERAL, None, None, ANY, ANY), set()),
        ((TOPIC, None, PREFIXED, None, None, ANY, ANY), {"orders"}),
        ((ANY, None, ANY, "User:anna", None, READ, ALLOW), {"orders", "orders.eu"}),
        ((ANY, None, ANY, None, "10.0.0.1", ANY, ANY), {"*"}),
        ((ANY, None, ANY, None, None, ANY, DENY), {"*"}),
        ((GROUP, None, ANY, "User:anna", None, ANY, ANY), set()),
    ],
)
async def test_a_filter_selects(secured: KafkaNode, asked: tuple, names: set[str]) -> None:
    answer = await secured.ask(KEY, DescribeAclsRequest(*asked), 3)
    assert {each.resource_name for each in answer.resources} == names


@pytest.mark.parametrize("at", [0, 2, 5, 6])
@pytest.mark.parametrize("number", [UNKNOWN, 99])
async def test_an_unknown_number_is_refused(secured: KafkaNode, at: int, number: int) -> None:
    fields = [ANY, None, ANY, None, None, ANY, ANY]
    fields[at] = number
    answer = await secured.ask(KEY, DescribeAclsRequest(*fields), 3)
    assert reason_of(answer.error_code) is Reason.INVALID_REQUEST
