import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_acls_generated import DescribeAclsRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions

KEY = ApiKey.DESCRIBE_ACLS


@pytest.mark.parametrize("version", versions(KEY))
async def test_there_are_no_acls_and_the_answer_says_so(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, DescribeAclsRequest(), version)
    assert reason_of(answer.error_code) is Reason.SECURITY_DISABLED
    assert "no ACLs" in answer.error_message
    assert answer.resources == []
