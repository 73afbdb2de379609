"""InitProducerId: an id that nobody had before."""

import asyncio

import pytest

from penstock.errors import Reason
from penstock.limits import PRODUCER_ID_BLOCK
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.init_producer_id_generated import InitProducerIdRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions

KEY = ApiKey.INIT_PRODUCER_ID


@pytest.mark.parametrize("version", versions(KEY))
async def test_every_call_gets_a_new_id(node: KafkaNode, version: int) -> None:
    answers = [await node.ask(KEY, InitProducerIdRequest(None, 1000), version) for _ in range(3)]
    assert [(each.error_code, each.producer_epoch) for each in answers] == [(0, 0)] * 3
    assert len({each.producer_id for each in answers}) == 3
    assert min(each.producer_id for each in answers) >= 0


async def test_calls_at_the_same_time_get_different_ids(node: KafkaNode) -> None:
    request = InitProducerIdRequest(None, 1000)
    answers = await asyncio.gather(*(node.ask(KEY, request, 5) for _ in range(PRODUCER_ID_BLOCK + 100)))
    assert len({each.producer_id for each in answers}) == len(answers)


async def test_a_client_that_goes_away_meanwhile_keeps_nobody_from_an_id(node: KafkaNode) -> None:
    request = InitProducerIdRequest(None, 1000)
    gone = [asyncio.create_task(node.ask(KEY, request, 5)) for _ in range(3)]
    stays = asyncio.create_task(node.ask(KEY, request, 5))
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.wait(gone)
    first, second = await stays, await node.ask(KEY, request, 5)
    assert first.producer_id != second.producer_id


async def test_a_producer_that_has_an_id_gets_a_new_one(node: KafkaNode) -> None:
    old = await node.ask(KEY, InitProducerIdRequest(None, 1000), 5)
    new = await node.ask(KEY, InitProducerIdRequest(None, 1000, old.producer_id, old.producer_epoch), 5)
    assert (new.error_code, new.producer_epoch) == (0, 0)
    assert new.producer_id != old.producer_id


@pytest.mark.parametrize("version", versions(KEY))
async def test_transactions_are_refused(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, InitProducerIdRequest("me", 1000), version)
    assert reason_of(answer.error_code) is Reason.TRANSACTIONS_NOT_SUPPORTED
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
