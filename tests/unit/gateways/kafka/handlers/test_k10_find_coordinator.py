import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.find_coordinator_generated import FindCoordinatorRequest
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.FIND_COORDINATOR


@pytest.mark.parametrize("version", versions(KEY))
async def test_this_node_speaks_for_every_group(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, FindCoordinatorRequest(key="a", coordinator_keys=["a", "b"]), version)
    found = answer.coordinators if version >= 4 else [answer]
    assert [(each.error_code, each.node_id, each.host, each.port) for each in found] == [
        (0, NODE, "127.0.0.1", 9092)
    ] * len(found)
    if version >= 4:
        assert [each.key for each in found] == ["a", "b"]


@pytest.mark.parametrize("version", [version for version in versions(KEY) if version >= 1])
async def test_a_transactional_id_is_refused_so_that_clients_give_up_and_know_why(
    node: KafkaNode, version: int
) -> None:
    answer = await node.ask(KEY, FindCoordinatorRequest(key="a", key_type=1, coordinator_keys=["a"]), version)
    found = answer.coordinators[0] if version >= 4 else answer
    # Java's producer, which asks for several, has a text of its own for the other code, and does not show this one.
    expected = Reason.UNSUPPORTED_VERSION if version >= 4 else Reason.TRANSACTIONS_NOT_SUPPORTED
    assert reason_of(found.error_code) is expected
    assert "not support transactions" in found.error_message
    assert (found.node_id, found.host, found.port) == (-1, "", -1)


async def test_another_kind_of_key_is_refused(node: KafkaNode) -> None:
    answer = await node.ask(KEY, FindCoordinatorRequest(key_type=2, coordinator_keys=["a"]), 6)
    assert reason_of(answer.coordinators[0].error_code) is Reason.INVALID_REQUEST
