import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_quorum_generated import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from tests.support.kafka_node import KafkaNode, reason_of, versions

KEY = ApiKey.DESCRIBE_QUORUM
QUESTION = DescribeQuorumRequest(
    [DescribeQuorumRequestTopic("__cluster_metadata", [DescribeQuorumRequestPartition(0)])]
)


@pytest.mark.parametrize("version", versions(KEY))
async def test_there_is_no_quorum_and_no_voter_is_invented(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, QUESTION, version)
    assert reason_of(answer.error_code) is Reason.UNSUPPORTED_VERSION
    assert answer.topics == answer.nodes == []
    if version >= 2:
        assert "no quorum" in answer.error_message
