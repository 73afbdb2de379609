"""What the types of request do where a running broker is hard to bring: a log that begins later, and access that is refused."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.partitions.delete_records import delete_records
from penstock.gateways.tcp.gateway import TcpBounds
from penstock.gateways.tcp.requests import FIELDS
from tests.support.access import Guard
from tests.unit.gateways.tcp.pipe import FETCH, LIST, TcpNode, produce

METRICS = {"type": "metrics", "topic": "t", "partition": 0}


async def test_before_the_first_record_that_is_left_there_is_nothing_to_fetch(node: TcpNode) -> None:
    partition = await node.append("t", 0, 5)
    delete_records(partition, 3)
    client = node.connect()
    client.send({**FETCH, "offset": 2}, {**FETCH, "offset": 3}, METRICS)
    below, at, metrics = await client.answered(3)
    assert below == {"ok": False, "error": "InvalidOffset: 2"}
    assert [record["offset"] for record in at["data"]["records"]] == [3, 4]
    assert metrics["data"] == {"beginOffset": 3, "endOffset": 5, "size": 2, "committedOffset": None, "lag": 2}


async def test_one_answer_has_so_many_records_and_no_more(tmp_path: Path) -> None:
    async with TcpNode(tmp_path, TcpBounds(fetch_records_max=3)) as node:
        await node.append("t", 0, 5)
        client = node.connect()
        client.send({**FETCH, "max": 2**62})
        assert len((await client.answered(1))[0]["data"]["records"]) == 3


async def test_one_answer_has_so_many_bytes_but_at_least_one_record(tmp_path: Path) -> None:
    async with TcpNode(tmp_path, TcpBounds(fetch_bytes_max=10)) as node:
        client = node.connect()
        client.send(produce("x" * 1_000), produce("y"), FETCH)
        assert len((await client.answered(3))[2]["data"]["records"]) == 1


async def test_the_brokers_own_topics_are_not_for_users(node: TcpNode) -> None:
    client = node.connect()
    client.send(
        {"type": "createTopic", "topic": "__consumer_offsets"},
        {"type": "deleteTopic", "topic": "__consumer_offsets"},
        produce("v", topic="__consumer_offsets"),
        LIST,
    )
    *refused, listed = await client.answered(4)
    assert all("internal topic" in answer["error"] for answer in refused)
    assert listed["data"]["topics"] == ["t"]


@pytest.mark.parametrize("type_", sorted(FIELDS.keys() - {"auth"}))
async def test_every_type_asks_whether_it_may(node: TcpNode, type_: str) -> None:
    node.broker.access = Guard()
    given: dict[str, Any] = {"topic": "t", "value": "v", "partition": 0, "offset": 0, "groupId": "g", "consumerId": "c"}
    client = node.connect()
    client.send({"type": type_, **{name: given[name] for name in FIELDS[type_].needed}})
    (answer,) = await client.answered(1)
    if type_ == "listTopics":
        assert answer["data"]["topics"] == []
    else:
        assert "has no right to" in answer["error"]
    assert "t" in node.broker.topics
    assert node.broker.groups.list_groups() == []
