"""Over a quota: the answer comes at once and says for how long, and then nothing is read from the connection (KIP-219).

Throttle times are computed by the node's clock, which stands still. Whether a connection is muted is seen by a request that is not answered while
another connection is served; ``unmute`` is what the event loop calls when the time is over.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.core.quotas.names import Place
from penstock.core.security.access import Principal
from penstock.errors import Reason
from penstock.gateways.kafka.connection import KafkaConnection
from penstock.gateways.kafka.errors import CODES
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_partitions_generated import CreatePartitionsRequest, CreatePartitionsRequestTopic
from penstock.wire.kafka.delete_topics_generated import DeleteTopicsRequest
from tests.support.kafka_wire import (
    FETCH,
    PRODUCE,
    WireClient,
    WireNode,
    batch,
    create,
    fetch,
    fetched,
    produce,
    until,
    values,
)

USER = Place("ANONYMOUS")
VERSIONS = ApiKey.API_VERSIONS
VALUE = b"v" * 1000
PRODUCE_VERSIONS = [3, 5, 6, 9, 12]


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[WireNode]:
    async with WireNode(tmp_path) as node:
        await node.create("t", 2)
        yield node


async def set_quota(node: WireNode, place: Place = USER, **quotas: float | None) -> None:
    await node.broker.quotas.store.alter(place, quotas)


async def served_elsewhere(node: WireNode) -> None:
    """Other connections are served; whatever is due on the first ones has happened by then."""
    other = await node.connect()
    for _ in range(3):
        await other.ask(VERSIONS, ApiVersionsRequest("test", "1"), 3)


def muted(node: WireNode) -> list[KafkaConnection]:
    return [connection for connection in node.connections() if connection._muted is not None]


async def is_silent(node: WireNode, client: WireClient) -> bool:
    """Whether a request of the client is not taken."""
    sent = client.send(VERSIONS, ApiVersionsRequest("test", "1"), 3)
    await served_elsewhere(node)
    silent = not client.reader._buffer  # type: ignore[attr-defined]
    for connection in muted(node):
        connection.unmute()
    assert (await client.answer(VERSIONS, 3))[0] == sent
    return silent


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
async def test_a_producer_over_its_quota_is_answered_at_once_and_then_not_read(node: WireNode, version: int) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    client = await node.connect()
    for _ in range(8):
        answer = await client.ask(PRODUCE, produce("t", batch(VALUE)), version)
        assert answer.throttle_time_ms == 0
    assert not muted(node)
    answer = await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), version)
    assert 15_000 < answer.throttle_time_ms < 30_000
    assert answer.responses[0].partition_responses[0].base_offset == 8
    assert await is_silent(node, client)
    assert not await is_silent(node, client)


async def test_requests_that_have_arrived_already_wait_too_and_keep_their_order(node: WireNode) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    client = await node.connect()
    sent = client.send_all([(PRODUCE, produce("t", batch(VALUE * 5)), 9) for _ in range(10)])
    delays: list[int] = []
    for correlation_id in sent:
        answered, response = await client.answer(PRODUCE, 9)
        assert answered == correlation_id
        delays.append(response.throttle_time_ms)
        if response.throttle_time_ms:
            [connection] = muted(node)
            connection.unmute()
    assert delays == sorted(delays)
    assert delays[0] == 0
    assert delays[-1] > 35_000


async def test_a_producer_without_answers_is_muted(node: WireNode) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    client = await node.connect()
    client.send(PRODUCE, produce("t", batch(VALUE * 20), acks=0), 9)
    await until(lambda: muted(node))
    assert await is_silent(node, client)


async def test_the_lanes_count(node: WireNode) -> None:
    """The first request teaches the lane; the others are counted all the same, each with its whole size."""
    await set_quota(node, producer_byte_rate=1_000_000.0, consumer_byte_rate=1_000_000.0)
    client = await node.connect()
    for _ in range(50):
        await client.ask(PRODUCE, produce("t", batch(VALUE)), 9)
    for offset in range(50):
        await client.ask(FETCH, fetch("t", offset, partition_max_bytes=1, session_epoch=-1), 11)
    allowance = node.broker.quotas.of(node.connections()[0].caller)
    assert allowance.produce is not None
    assert allowance.consume is not None
    size = len(batch(VALUE))
    assert 50 * size < allowance.produce.total < 50 * (size + 100)
    assert allowance.consume.total == 50 * size


@pytest.mark.parametrize("version", [5, 7, 8, 11, 12])
async def test_a_consumer_over_its_quota_gets_nothing_until_it_has_waited(node: WireNode, version: int) -> None:
    client = await node.connect()
    for _ in range(30):
        await client.ask(PRODUCE, produce("t", batch(VALUE)), 9)
    size = len(batch(VALUE))
    await set_quota(node, consumer_byte_rate=float(size))
    offset, empty = 0, None
    while empty is None:
        answer = await client.ask(FETCH, fetch("t", offset, partition_max_bytes=1, session_epoch=-1), version)
        if answer.throttle_time_ms:
            empty = answer
        else:
            offset += len(values(fetched(answer).records))
    assert (offset, empty.responses, empty.error_code, empty.session_id) == (10, [], 0, 0)
    assert 0 < empty.throttle_time_ms <= 1100
    assert await is_silent(node, client)
    node.clock.advance(11_000)
    answer = await client.ask(FETCH, fetch("t", offset, partition_max_bytes=1, session_epoch=-1), version)
    assert values(fetched(answer).records) == [VALUE]


async def test_a_fetch_returns_no_more_than_ten_seconds_of_the_quota(node: WireNode) -> None:
    client = await node.connect()
    for _ in range(30):
        await client.ask(PRODUCE, produce("t", batch(VALUE)), 9)
    size = len(batch(VALUE))
    await set_quota(node, consumer_byte_rate=float(size))
    answer = await client.ask(FETCH, fetch("t", 0, session_epoch=-1), 11)
    assert len(values(fetched(answer).records)) == 10
    assert answer.throttle_time_ms == 0


async def test_a_batch_that_is_larger_than_the_quota_arrives(node: WireNode) -> None:
    client = await node.connect()
    await client.ask(PRODUCE, produce("t", batch(VALUE * 100)), 9)
    await set_quota(node, consumer_byte_rate=1000.0)
    answer = await client.ask(FETCH, fetch("t", 0, session_epoch=-1), 11)
    assert values(fetched(answer).records) == [VALUE * 100]
    answer = await client.ask(FETCH, fetch("t", 0, session_epoch=-1), 11)
    assert answer.throttle_time_ms > 80_000


async def test_a_fetch_session_survives_an_empty_answer(node: WireNode) -> None:
    client = await node.connect()
    for _ in range(2):
        await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), 9)
    begun = await client.ask(FETCH, fetch("t", 0, 0, session_epoch=0), 11)
    session = begun.session_id
    assert session
    await set_quota(node, consumer_byte_rate=1000.0)
    read = await client.ask(FETCH, fetch("t", 1, session_id=session, session_epoch=1), 11)
    assert read.throttle_time_ms == 0
    assert values(read.responses[0].partitions[0].records) == [VALUE * 20]
    empty = await client.ask(FETCH, fetch("t", session_id=session, session_epoch=2), 11)
    assert (empty.session_id, empty.responses) == (session, [])
    assert empty.throttle_time_ms > 0
    for connection in muted(node):
        connection.unmute()
    node.clock.advance(60_000)
    again = await client.ask(FETCH, fetch("t", 1, session_id=session, session_epoch=3), 11)
    assert values(again.responses[0].partitions[0].records) == [VALUE * 20]


async def test_a_session_that_would_begin_with_an_empty_answer_does_not_begin(node: WireNode) -> None:
    client = await node.connect()
    await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), 9)
    await set_quota(node, consumer_byte_rate=1000.0)
    await client.ask(FETCH, fetch("t", 0, session_epoch=-1), 11)
    refused = await client.ask(FETCH, fetch("t", 0, session_epoch=0), 11)
    assert (refused.session_id, refused.responses) == (0, [])
    assert refused.throttle_time_ms > 0
    assert len(node.gateway.fetch_sessions) == 0


async def test_the_quota_is_that_of_the_client_id_in_each_request(node: WireNode) -> None:
    """A lane compares client ids as bytes; another id on the same connection is another client."""
    await set_quota(node, Place(None, "slow"), producer_byte_rate=1000.0)
    client = await node.connect()
    for _ in range(3):
        client.send(PRODUCE, produce("t", batch(VALUE * 20)), 9, client_id="fast")
        assert (await client.answer(PRODUCE, 9))[1].throttle_time_ms == 0
    client.send(PRODUCE, produce("t", batch(VALUE * 20)), 9, client_id="slow")
    assert (await client.answer(PRODUCE, 9))[1].throttle_time_ms > 0


async def test_a_client_without_an_id_has_the_quota_of_its_user(node: WireNode) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    client = await node.connect()
    client.send(PRODUCE, produce("t", batch(VALUE * 20)), 9, client_id=None)
    assert (await client.answer(PRODUCE, 9))[1].throttle_time_ms > 0


async def test_a_connection_that_becomes_another_user_has_the_quota_of_that_user(node: WireNode) -> None:
    await set_quota(node, Place("anna"), producer_byte_rate=1000.0)
    client = await node.connect()
    assert (await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), 9)).throttle_time_ms == 0
    [connection] = node.connections()
    connection.caller = connection.caller._replace(principal=Principal("User:anna"))
    assert (await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), 9)).throttle_time_ms > 0


async def test_two_connections_of_a_user_share_its_quota(node: WireNode) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    one, other = await node.connect(), await node.connect()
    assert (await one.ask(PRODUCE, produce("t", batch(VALUE * 9)), 9)).throttle_time_ms == 0
    assert (await other.ask(PRODUCE, produce("t", batch(VALUE * 9)), 9)).throttle_time_ms > 0


async def test_time_counts_and_throttles_at_most_a_second(node: WireNode) -> None:
    """Any request takes more than none of a second."""
    await set_quota(node, request_percentage=0.000001)
    client = await node.connect()
    answer = await client.ask(VERSIONS, ApiVersionsRequest("test", "1"), 3)
    assert answer.throttle_time_ms == 1000
    assert muted(node)


async def test_the_time_of_a_lane_counts_for_the_next_request(node: WireNode) -> None:
    client = await node.connect()
    for _ in range(2):
        await client.ask(PRODUCE, produce("t", batch(VALUE)), 9)
    await set_quota(node, request_percentage=0.000001)
    assert (await client.ask(PRODUCE, produce("t", batch(VALUE)), 9)).throttle_time_ms == 0
    assert (await client.ask(PRODUCE, produce("t", batch(VALUE)), 9)).throttle_time_ms == 1000


async def test_a_producer_without_answers_is_exempt_from_the_quota_of_time(node: WireNode) -> None:
    await set_quota(node, request_percentage=0.000001)
    client = await node.connect()
    for _ in range(5):
        client.send(PRODUCE, produce("t", batch(VALUE), acks=0), 9)
    await until(lambda: node.broker.partition("t", 0).log.next_offset == 5)
    assert not muted(node)


async def test_handlers_that_wait_are_charged_for_their_time_and_not_for_the_wait(node: WireNode) -> None:
    """Creating a topic waits for the metadata store."""
    await set_quota(node, request_percentage=1.0)
    client = await node.connect()
    await client.ask(ApiKey.CREATE_TOPICS, create("u"), 7)
    rate = node.broker.quotas.of(node.connections()[0].caller).request
    assert rate is not None
    assert rate.total > 0


# Changes of partitions.


async def test_a_new_client_is_refused_changes_over_its_quota_and_told_for_how_long(node: WireNode) -> None:
    await set_quota(node, controller_mutation_rate=1.0)
    client = await node.connect()
    answer = await client.ask(ApiKey.CREATE_TOPICS, create("u", 20), 7)
    assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 9000)
    node.connections()[0].unmute()
    answer = await client.ask(ApiKey.CREATE_TOPICS, create("v", 1), 6)
    assert (answer.topics[0].error_code, answer.throttle_time_ms) == (CODES[Reason.QUOTA_EXCEEDED], 9000)
    assert "v" not in node.broker.topics
    node.connections()[0].unmute()
    grow = CreatePartitionsRequest([CreatePartitionsRequestTopic("t", 4, None)], 10_000)
    answer = await client.ask(ApiKey.CREATE_PARTITIONS, grow, 3)
    assert (answer.results[0].error_code, answer.throttle_time_ms) == (89, 9000)
    node.connections()[0].unmute()
    answer = await client.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 5)
    assert (answer.responses[0].error_code, answer.throttle_time_ms) == (89, 9000)
    assert "t" in node.broker.topics
    node.clock.advance(9000)
    node.connections()[0].unmute()
    answer = await client.ask(ApiKey.CREATE_TOPICS, create("v", 1), 7)
    assert answer.topics[0].error_code == 0


async def test_an_old_client_is_only_slowed_down(node: WireNode) -> None:
    await set_quota(node, controller_mutation_rate=1.0)
    client = await node.connect()

    async def throttled(key: ApiKey, request: Any, version: int) -> int:
        answer = await client.ask(key, request, version)
        for connection in muted(node):
            connection.unmute()
        return int(answer.throttle_time_ms)

    assert await throttled(ApiKey.CREATE_TOPICS, create("u", 20), 5) == 9000
    assert await throttled(ApiKey.CREATE_TOPICS, create("v", 1), 5) == 10_000
    grow = CreatePartitionsRequest([CreatePartitionsRequestTopic("t", 4, None)], 10_000)
    assert await throttled(ApiKey.CREATE_PARTITIONS, grow, 2) == 12_000
    assert await throttled(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=["v"], timeout_ms=10_000), 4) == 13_000
    assert {"u", "t"} <= {topic.name for topic in node.broker.topics}
    assert "v" not in node.broker.topics
    assert node.broker.topics.require("t").partition_count == 4


async def test_only_checking_a_topic_costs_nothing(node: WireNode) -> None:
    await set_quota(node, controller_mutation_rate=1.0)
    client = await node.connect()
    request = create("u", 20)
    request.validate_only = True
    for _ in range(3):
        assert (await client.ask(ApiKey.CREATE_TOPICS, request, 7)).throttle_time_ms == 0


# Around it.


async def test_a_client_that_leaves_while_it_is_muted_leaves_nothing_behind(node: WireNode) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    client = await node.connect()
    await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), 9)
    [connection] = node.connections()
    timer = connection._muted
    assert timer is not None
    connection.abort()
    await until(lambda: not node.connections())
    assert timer.cancelled()


async def test_a_muted_connection_is_not_idle(node: WireNode) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    client = await node.connect()
    await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), 9)
    [connection] = node.connections()
    idle_ms = node.settings.limits.connection_idle_ms_max
    for round_ in range(1, 4):
        connection.look_after(round_ * (idle_ms + 1))
    assert not connection._transport.is_closing()  # type: ignore[union-attr]


async def test_a_gateway_that_stops_does_not_wait_for_muted_connections(node: WireNode) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    client = await node.connect()
    await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), 9)
    assert muted(node)
    await node.gateway.stop(30.0)
    assert await client.closed_by_peer()


async def test_what_a_client_was_slowed_down_by_is_counted(node: WireNode) -> None:
    await set_quota(node, producer_byte_rate=1000.0)
    client = await node.connect()
    answer = await client.ask(PRODUCE, produce("t", batch(VALUE * 20)), 9)
    counted = node.broker.meters.throttled_ms.get(("producer_byte_rate", "ANONYMOUS", "raw"))
    assert counted == answer.throttle_time_ms > 0


async def test_without_quotas_nothing_is_throttled(node: WireNode) -> None:
    client = await node.connect()
    for _ in range(3):
        assert (await client.ask(PRODUCE, produce("t", batch(VALUE * 900)), 9)).throttle_time_ms == 0
    assert not muted(node)
    assert node.broker.quotas._rates._found == {}
