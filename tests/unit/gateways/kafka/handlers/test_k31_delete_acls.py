from pathlib import Path

import pytest

from penstock.errors import Reason
from penstock.operations.access import RuleFilter
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_acls_generated import CreateAclsRequest, CreateAclsRequestCreation
from penstock.wire.kafka.delete_acls_generated import DeleteAclsRequest, DeleteAclsRequestFilter
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.acls import ANY, EXAMPLES, MATCH, ROOT, SECURED, TOPIC, UNKNOWN

KEY = ApiKey.DELETE_ACLS
EVERYTHING = (ANY, None, ANY, None, None, ANY, ANY)


def deleting(*filters: tuple) -> DeleteAclsRequest:
    return DeleteAclsRequest([DeleteAclsRequestFilter(*each) for each in filters])


@pytest.mark.parametrize("version", versions(KEY))
async def test_without_authentication_there_is_nothing_to_delete(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, deleting(EVERYTHING, EVERYTHING), version)
    assert [reason_of(each.error_code) for each in answer.filter_results] == [Reason.SECURITY_DISABLED] * 2


@pytest.mark.parametrize("version", versions(KEY))
async def test_each_filter_tells_what_it_deleted(tmp_path: Path, version: int) -> None:
    async with KafkaNode(tmp_path, security=SECURED) as node:
        node.caller = ROOT
        created = [CreateAclsRequestCreation(*example) for example in EXAMPLES]
        await node.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(created), 3)
        answer = await node.ask(
            KEY,
            deleting(
                (TOPIC, "orders.eu", MATCH, "User:anna", None, ANY, ANY),
                (TOPIC, "orders", ANY, None, None, ANY, ANY),
                (UNKNOWN, None, ANY, None, None, ANY, ANY),
                (ANY, "nothing", ANY, None, None, ANY, ANY),
            ),
            version,
        )
        codes = [reason_of(each.error_code) for each in answer.filter_results]
        assert codes == [None, None, Reason.INVALID_REQUEST, None]
        deleted = [
            {
                (
                    acl.resource_type,
                    acl.resource_name,
                    acl.pattern_type,
                    acl.principal,
                    acl.host,
                    acl.operation,
                    acl.permission_type,
                )
                for acl in each.matching_acls
            }
            for each in answer.filter_results
        ]
        # A rule that two filters select is in the results of both.
        assert deleted == [set(EXAMPLES[:2]), {EXAMPLES[0]}, set(), set()]
        left = node.broker.access_rules.rules(RuleFilter())
        assert len(left) == len(EXAMPLES) - 2
        answer = await node.ask(KEY, deleting(EVERYTHING), version)
        assert len(answer.filter_results[0].matching_acls) == len(left)
        assert node.broker.access_rules.rules(RuleFilter()) == ()
