"""DescribeClientQuotas and AlterClientQuotas."""

from typing import Any

import pytest

from penstock.errors import Reason
from penstock.wire.kafka.alter_client_quotas_generated import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
)
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_client_quotas_generated import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponent,
)
from tests.support.kafka_node import KafkaNode, reason_of

ALTER, DESCRIBE = ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_CLIENT_QUOTAS
EXACT, DEFAULT, ANY = 0, 1, 2
VERSIONS = [0, 1]


def entry(*entity: tuple[str, str | None], **quotas: float | None) -> AlterClientQuotasRequestEntry:
    """None removes a quota."""
    return AlterClientQuotasRequestEntry(
        [AlterClientQuotasRequestEntity(kind, name) for kind, name in entity],
        [AlterClientQuotasRequestOp(key, value or 0.0, value is None) for key, value in quotas.items()],
    )


async def alter(node: KafkaNode, *entries: AlterClientQuotasRequestEntry, version: int = 1, **fields: Any) -> Any:
    return (await node.ask(ALTER, AlterClientQuotasRequest(list(entries), **fields), version)).entries


async def found(
    node: KafkaNode, *parts: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> list[tuple[list[tuple[str, str | None]], dict[str, float]]]:
    components = [DescribeClientQuotasRequestComponent(*part) for part in parts]
    answer = await node.ask(DESCRIBE, DescribeClientQuotasRequest(components, strict), version)
    assert (answer.error_code, answer.error_message) == (0, None)
    return [
        (
            [(part.entity_type, part.entity_name) for part in each.entity],
            {value.key: value.value for value in each.values},
        )
        for each in answer.entries
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_was_set_is_described_and_what_was_removed_is_not(node: KafkaNode, version: int) -> None:
    user, both = ("user", "anna"), (("user", "anna"), ("client-id", None))
    altered = await alter(
        node,
        entry(user, producer_byte_rate=1000.0, request_percentage=12.5),
        entry(*both, consumer_byte_rate=2000.0),
        entry(("ip", None), connection_creation_rate=5.0),
        version=version,
    )
    assert [(each.error_code, each.error_message) for each in altered] == [(0, None)] * 3
    assert [(part.entity_type, part.entity_name) for part in altered[1].entity] == list(both)
    assert await found(node, version=version) == [
        ([("ip", None)], {"connection_creation_rate": 5.0}),
        ([user], {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
        (list(both), {"consumer_byte_rate": 2000.0}),
    ]
    assert await found(node, ("user", EXACT, "anna"), strict=True, version=version) == [
        ([user], {"producer_byte_rate": 1000.0, "request_percentage": 12.5})
    ]
    assert await found(node, ("client-id", DEFAULT, None), version=version) == [
        (list(both), {"consumer_byte_rate": 2000.0})
    ]
    assert await found(node, ("ip", ANY, None), version=version) == [
        ([("ip", None)], {"connection_creation_rate": 5.0})
    ]
    assert await found(node, ("user", EXACT, "bert"), version=version) == []
    await alter(node, entry(user, producer_byte_rate=None, request_percentage=None), version=version)
    assert await found(node, ("user", ANY, None), strict=True, version=version) == []


async def test_only_validating_changes_nothing(node: KafkaNode) -> None:
    [answer] = await alter(node, entry(("user", "anna"), producer_byte_rate=1.0), validate_only=True)
    assert answer.error_code == 0
    [answer] = await alter(node, entry(("user", "anna"), producer_byte_rate=-1.0), validate_only=True)
    assert reason_of(answer.error_code) is Reason.INVALID_REQUEST
    assert await found(node) == []


async def test_each_entity_is_changed_by_itself(node: KafkaNode) -> None:
    good, bad = entry(("user", "a"), producer_byte_rate=1.0), entry(("user", "b"), unknown=1.0)
    answers = await alter(node, bad, good)
    assert [reason_of(each.error_code) for each in answers] == [Reason.INVALID_REQUEST, None]
    assert "no quota 'unknown'" in answers[0].error_message
    assert await found(node) == [([("user", "a")], {"producer_byte_rate": 1.0})]


async def test_what_is_listed_twice_is_refused(node: KafkaNode) -> None:
    same = entry(("user", "a"), ("client-id", "c"), producer_byte_rate=1.0)
    turned = entry(("client-id", "c"), ("user", "a"), producer_byte_rate=2.0)
    answers = await alter(node, same, turned)
    assert [reason_of(each.error_code) for each in answers] == [Reason.INVALID_REQUEST] * 2
    twice = entry(("user", "a"), producer_byte_rate=1.0)
    twice.ops *= 2
    [answer] = await alter(node, twice)
    assert reason_of(answer.error_code) is Reason.INVALID_REQUEST
    assert await found(node) == []


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([("user", 3, None)], Reason.INVALID_REQUEST),
        ([("user", EXACT, None)], Reason.INVALID_REQUEST),
        ([("user", ANY, "anna")], Reason.INVALID_REQUEST),
        ([("user", DEFAULT, "anna")], Reason.INVALID_REQUEST),
        ([("user", ANY, None), ("user", ANY, None)], Reason.INVALID_REQUEST),
        ([("user", ANY, None), ("ip", ANY, None)], Reason.INVALID_REQUEST),
        ([("", ANY, None)], Reason.INVALID_REQUEST),
        ([("topic", ANY, None)], Reason.UNSUPPORTED_VERSION),
    ],
)
async def test_filters_that_make_no_sense_are_refused(node: KafkaNode, parts: Any, reason: Reason) -> None:
    components = [DescribeClientQuotasRequestComponent(*part) for part in parts]
    answer = await node.ask(DESCRIBE, DescribeClientQuotasRequest(components), 1)
    assert (reason_of(answer.error_code), answer.entries) == (reason, None)
    assert answer.error_message
