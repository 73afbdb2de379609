"""ApiVersions: the truth about what is served, told to clients of every age."""

import pytest

from penstock.errors import Reason
from penstock.gateways.kafka.handlers import HANDLERS
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import API, ApiKey
from tests.support.kafka_node import KafkaNode, reason_of, versions

KEY = ApiKey.API_VERSIONS


@pytest.mark.parametrize("version", versions(KEY))
async def test_every_version_lists_what_is_served(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, ApiVersionsRequest("apache-kafka-java", "4.0.0"), version)
    assert answer.error_code == 0
    listed = [(key.api_key, key.min_version, key.max_version) for key in answer.api_keys]
    assert listed == [(int(key), API[key].min_version, API[key].max_version) for key in sorted(HANDLERS)]
    # Older librdkafka stops compressing when produce does not begin at 0; old members join with 0 and 1.
    assert (0, 0) in {each[:2] for each in listed}
    assert (11, 0) in {each[:2] for each in listed}
    assert answer.finalized_features == []


@pytest.mark.parametrize(
    ("name", "software_version", "accepted"),
    [
        ("a", "1", True),
        ("confluent-kafka-python", "2.8.0-rdkafka-2.8.0", True),
        ("a.b-c", "1.0", True),
        ("", "1", False),
        ("a", "", False),
        ("-a", "1", False),
        ("a.", "1", False),
        ("a b", "1", False),
        ("a\n", "1", False),
        ("é", "1", False),
        ("a", "1_0", False),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
async def test_a_client_s_name_is_plain(
    node: KafkaNode, name: str, software_version: str, accepted: bool, version: int
) -> None:
    answer = await node.ask(KEY, ApiVersionsRequest(name, software_version), version)
    assert reason_of(answer.error_code) is (None if accepted else Reason.INVALID_REQUEST)
    assert bool(answer.api_keys) == accepted
