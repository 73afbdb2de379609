"""The bound on what nobody has consumed: counted from the slowest group, off unless configured."""

import pytest

from penstock.errors import RETRY_AFTER_MS, BacklogBound, BacklogFull, Reason
from penstock.operations.groups import OffsetToCommit
from penstock.settings import QueueSettings
from penstock.types import GroupId, PartitionKey
from tests.support.kafka_node import KafkaNode


@pytest.fixture
async def start(tmp_path):
    nodes = []

    async def start(**bounds):
        node = KafkaNode(tmp_path, queues=QueueSettings(**{f"backlog_{name}": bound for name, bound in bounds.items()}))
        nodes.append(node)
        await node.__aenter__()
        await node.create("t", 2)
        return node

    yield start
    for node in nodes:
        await node.__aexit__()


async def commit(node, group, offset, partition=0) -> None:
    answers = []
    node.broker.groups.commit_offset(
        GroupId(group), OffsetToCommit(PartitionKey("t", partition), offset), answers.append
    )
    # Appending waits for a whole turn of the loop, and so for the commit.
    await node.append("t", 1, 1)
    assert answers == [None]


def refused(node, partition=0):
    try:
        node.broker.backlog.check("t", partition)
    except BacklogFull as error:
        assert error.reason is Reason.BACKLOG_FULL
        assert error.retry_after_ms == RETRY_AFTER_MS
        return error.bound
    return None


async def test_without_bounds_nothing_is_refused_nor_looked_at(start) -> None:
    node = await start()
    await node.append("t", 0, 5)
    assert refused(node) is None
    node.broker.backlog.check("no such topic", 7)


async def test_without_a_group_everything_there_is_counts(start) -> None:
    node = await start(records_max=3)
    await node.append("t", 0, 2)
    assert refused(node) is None
    await node.append("t", 0, 1)
    assert refused(node) is BacklogBound.RECORDS
    assert refused(node, 1) is None
    assert node.broker.meters.produce_rejected.get(("partition_buffer_full",)) == 1


async def test_the_text_says_what_the_bound_is(start) -> None:
    node = await start(records_max=3)
    await node.append("t", 0, 3)
    with pytest.raises(BacklogFull, match=r"t/0 has 3 unconsumed records, which is the limit; try again later"):
        node.broker.backlog.check("t", 0)


async def test_records_are_counted_from_the_slowest_group(start) -> None:
    node = await start(records_max=3)
    await node.append("t", 0, 3)
    await commit(node, "quick", 3)
    assert refused(node) is None
    await node.append("t", 0, 2)
    await commit(node, "slow", 1)
    assert refused(node) is BacklogBound.RECORDS
    await commit(node, "slow", 3)
    assert refused(node) is None


async def test_a_commit_that_goes_back_counts_at_once(start) -> None:
    node = await start(records_max=3)
    await node.append("t", 0, 4)
    await commit(node, "g", 4)
    assert refused(node) is None
    await commit(node, "g", 0)
    assert refused(node) is BacklogBound.RECORDS


async def test_a_group_that_is_gone_holds_nobody_up(start) -> None:
    node = await start(records_max=3)
    await node.append("t", 0, 4)
    await commit(node, "slow", 0)
    await commit(node, "quick", 4)
    assert refused(node) is BacklogBound.RECORDS
    node.broker.groups.delete_groups([GroupId("slow")], lambda _: None)
    await node.append("t", 1, 1)
    node.clock.advance(1_000)
    assert refused(node) is None


async def test_bytes_are_bounded_as_they_lie_in_the_log(start) -> None:
    node = await start(bytes_max=200)
    await node.append("t", 0, 1)
    assert refused(node) is None
    await node.append("t", 0, 3)
    assert refused(node) is BacklogBound.BYTES
    await commit(node, "g", 3)
    assert refused(node) is None
    assert node.broker.meters.produce_rejected.get(("partition_buffer_bytes_full",)) == 1


async def test_records_that_retention_took_count_no_more(start) -> None:
    node = await start(records_max=3)
    await node.append("t", 0, 4)
    await commit(node, "g", 0)
    assert refused(node) is BacklogBound.RECORDS
    node.broker.partition("t", 0).log.delete_before(2)
    assert refused(node) is None


async def test_a_topic_of_the_same_name_begins_anew(start) -> None:
    node = await start(records_max=3)
    await node.append("t", 0, 3)
    await commit(node, "g", 3)
    assert refused(node) is None
    await node.broker.topics.delete("t")
    await node.create("t", 2)
    assert refused(node) is None
    await node.append("t", 0, 3)
    assert refused(node) is BacklogBound.RECORDS
