from pathlib import Path

import pytest

from penstock.errors import Reason
from penstock.operations.access import RuleFilter
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_acls_generated import CreateAclsRequest, CreateAclsRequestCreation
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.acls import ANY, EXAMPLES, MATCH, ROOT, SECURED, UNKNOWN

KEY = ApiKey.CREATE_ACLS
GOOD = EXAMPLES[0]


def creating(*rules: tuple) -> CreateAclsRequest:
    return CreateAclsRequest([CreateAclsRequestCreation(*rule) for rule in rules])


@pytest.mark.parametrize("version", versions(KEY))
async def test_without_authentication_none_are_created(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, creating(GOOD, GOOD), version)
    assert [reason_of(each.error_code) for each in answer.results] == [Reason.SECURITY_DISABLED] * 2


@pytest.mark.parametrize("version", versions(KEY))
async def test_rules_are_created_once_and_last(tmp_path: Path, version: int) -> None:
    async with KafkaNode(tmp_path, security=SECURED) as node:
        node.caller = ROOT
        for _ in range(2):
            answer = await node.ask(KEY, creating(*EXAMPLES, GOOD), version)
            assert [(each.error_code, each.error_message) for each in answer.results] == [(0, None)] * 9
        assert len(node.broker.access_rules.rules(RuleFilter())) == len(EXAMPLES)
    async with KafkaNode(tmp_path, security=SECURED) as node:
        assert len(node.broker.access_rules.rules(RuleFilter())) == len(EXAMPLES)


def changed(at: int, value: object) -> tuple:
    return (*GOOD[:at], value, *GOOD[at + 1 :])


INVALID = [
    *(changed(at, number) for at in (0, 2, 5, 6) for number in (UNKNOWN, ANY, 99)),
    changed(2, MATCH),
    changed(1, ""),
    changed(3, "anna"),
    changed(3, ""),
    changed(4, "example.com"),
    (4, "another-cluster", 3, "User:anna", "*", 2, 3),
]


@pytest.mark.parametrize("version", versions(KEY))
@pytest.mark.parametrize("invalid", INVALID)
async def test_an_invalid_rule_is_refused_and_the_others_are_created(
    tmp_path: Path, invalid: tuple, version: int
) -> None:
    async with KafkaNode(tmp_path, security=SECURED) as node:
        node.caller = ROOT
        answer = await node.ask(KEY, creating(GOOD, invalid, EXAMPLES[1]), version)
        assert [reason_of(each.error_code) for each in answer.results] == [None, Reason.INVALID_REQUEST, None]
        assert len(node.broker.access_rules.rules(RuleFilter())) == 2
