"""Where partitions stand, asked of whoever leads them; the other nodes are what this test says."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.core.remote import Peers, Stood
from penstock.core.standing import Standing
from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.standing import standing
from tests.support.kafka_cluster import NODE, OTHER, THIRD, ClusterNode
from tests.support.kafka_node import KafkaNode


class Leaders(Peers):
    """The leaders elsewhere."""

    def __init__(self, answer: Standing | PenstockError) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int]] = []

    def standing(self, topic: Topic, index: int, done: Stood, *_: object) -> None:  # type: ignore[override]
        self.asked.append((topic.name, index))
        done(self.answer)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClusterNode]:
    async with ClusterNode(tmp_path) as made:
        yield made


@pytest.fixture
def leaders(node: ClusterNode) -> Leaders:
    found = Leaders(Standing(3, 9))  # type: ignore[abstract]
    node.broker.peers = found
    return found


async def test_what_is_led_here_is_known_here(node: ClusterNode, leaders: Leaders) -> None:
    topic = await node.place("t", (NODE, OTHER, THIRD))
    assert await standing(node.broker, topic, 0) == Standing(0, 0)
    assert leaders.asked == []


async def test_who_leads_it_elsewhere_is_asked(node: ClusterNode, leaders: Leaders) -> None:
    topic = await node.place("t", (NODE, OTHER, THIRD), (OTHER, NODE, THIRD))
    assert await standing(node.broker, topic, 1) == Standing(3, 9)
    assert leaders.asked == [("t", 1)]


async def test_an_answer_that_was_lost_did_nothing(node: ClusterNode, leaders: Leaders) -> None:
    topic = await node.place("t", (OTHER, NODE, THIRD))
    leaders.answer = PenstockError(Reason.LINK_LOST, "gone")
    with pytest.raises(PenstockError) as caught:
        await standing(node.broker, topic, 0)
    assert caught.value.reason is Reason.LEADER_NOT_AVAILABLE


async def test_a_partition_that_is_not_there_is_asked_of_nobody(node: ClusterNode, leaders: Leaders) -> None:
    topic = await node.place("t", (OTHER, NODE, THIRD))
    with pytest.raises(PenstockError) as caught:
        await standing(node.broker, topic, 1)
    assert caught.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert leaders.asked == []


async def test_a_broker_that_is_alone_leads_everything(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as alone:
        topic = await alone.create("t")
        assert await standing(alone.broker, topic, 0) == Standing(0, 0)
        with pytest.raises(PenstockError) as caught:
            await standing(alone.broker, topic, 7)
        assert caught.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
