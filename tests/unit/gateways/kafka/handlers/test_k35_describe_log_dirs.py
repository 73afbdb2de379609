import pytest

from penstock.core.topics.names import INTERNAL_TOPICS
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_log_dirs_generated import DescribeLogDirsRequest, DescribeLogDirsRequestTopic
from tests.support.kafka_node import KafkaNode, versions

KEY = ApiKey.DESCRIBE_LOG_DIRS


@pytest.mark.parametrize("version", versions(KEY))
async def test_sizes_are_those_of_the_logs_in_every_version(node: KafkaNode, version: int) -> None:
    await node.create("t", 2)
    partition = await node.append("t", 1, 10)
    wanted = [DescribeLogDirsRequestTopic("t", [0, 1, 2]), DescribeLogDirsRequestTopic("nobody", [0])]
    answer = await node.ask(KEY, DescribeLogDirsRequest(wanted), version)
    assert answer.error_code == 0
    [result] = answer.results
    assert (result.error_code, result.log_dir) == (0, node.broker.logs.data_dir)
    [topic] = result.topics
    assert topic.name == "t"
    sizes = {told.partition_index: told.partition_size for told in topic.partitions}
    assert sizes == {0: 0, 1: partition.log.size_bytes}
    assert partition.log.size_bytes > 0
    assert not any(told.offset_lag or told.is_future_key for told in topic.partitions)
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes


async def test_null_asks_for_everything_and_an_empty_list_for_the_disk_alone(node: KafkaNode) -> None:
    await node.create("t", 3)
    [result] = (await node.ask(KEY, DescribeLogDirsRequest(None), 4)).results
    assert {topic.name: len(topic.partitions) for topic in result.topics} == {
        **dict.fromkeys(INTERNAL_TOPICS, 1),
        "t": 3,
    }
    [result] = (await node.ask(KEY, DescribeLogDirsRequest([]), 4)).results
    assert result.topics == []
