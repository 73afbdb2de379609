"""Quotas of clients that send lines: nothing is read for a while, and far over a quota a line is refused."""

import json

from penstock.core.quotas.names import Place
from tests.unit.gateways.tcp.pipe import Client, TcpNode

USER = Place("ANONYMOUS")


async def ask(client: Client, line: dict[str, object]) -> dict[str, object]:
    """The answer to one line."""
    count = len(client.answers)
    client.send(line)
    return (await client.answered(count + 1))[count]


def line(size: int) -> dict[str, object]:
    return {"type": "produce", "topic": "t", "partition": 0, "value": "v" * size}


async def test_a_publisher_over_its_quota_is_not_read_for_a_while(node: TcpNode) -> None:
    await node.broker.quotas.store.alter(USER, {"producer_byte_rate": 1000.0})
    client = node.connect()
    answer = await ask(client, line(15_000))
    assert answer["ok"]
    assert not client.pipe.reading
    # What had arrived already waits, too.
    client.connection.data_received(json.dumps(line(1)).encode() + b"\n")
    assert node.broker.partition("t", 0).log.next_offset == 1
    timer = client.connection._muted
    assert timer is not None
    timer.cancel()
    client.connection.unmute()
    assert (await client.answered(2))[1]["ok"]
    assert node.broker.partition("t", 0).log.next_offset == 2


async def test_a_publisher_far_over_its_quota_is_refused(node: TcpNode) -> None:
    await node.broker.quotas.store.alter(USER, {"producer_byte_rate": 1000.0})
    await ask(node.connect(), line(60_000))
    answer = await ask(node.connect(), line(1))
    assert not answer["ok"]
    assert "producer_byte_rate is exceeded" in answer["error"]


async def test_a_reader_over_its_quota_is_not_read_for_a_while(node: TcpNode) -> None:
    client = node.connect()
    await ask(client, line(15_000))
    await node.broker.quotas.store.alter(USER, {"consumer_byte_rate": 1000.0})
    answer = await ask(client, {"type": "fetch", "topic": "t", "partition": 0, "offset": 0})
    assert answer["ok"]
    assert not client.pipe.reading


async def test_a_client_that_leaves_while_it_is_muted_leaves_nothing_behind(node: TcpNode) -> None:
    await node.broker.quotas.store.alter(USER, {"producer_byte_rate": 1000.0})
    client = node.connect()
    await ask(client, line(15_000))
    timer = client.connection._muted
    assert timer is not None
    client.gone()
    assert timer.cancelled()
