"""Where the HTTP listener is, as the broker's config says it."""

import pytest

from penstock.address import Address
from penstock.client import Cluster, NoHttpListener, http_address
from penstock.client.discovery import HTTP_LISTENER
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_configs_generated import (
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
)


def found(scripted, **configs: str) -> Address:
    told = [DescribeConfigsResponseConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]

    def describe(request):
        assert (request.resources[0].resource_type, request.resources[0].resource_name) == (4, "1")
        result = DescribeConfigsResponseResult(resource_type=4, resource_name="1", configs=told)
        return DescribeConfigsResponse(results=[result])

    with Cluster(scripted({ApiKey.DESCRIBE_CONFIGS: describe}).bootstrap) as cluster:
        return http_address(cluster)


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ("10.1.2.3:8080", Address("10.1.2.3", 8080)),
        ("[fd00::1]:81", Address("fd00::1", 81)),
        ("0.0.0.0:8080", Address("127.0.0.1", 8080)),
        ("[::]:8080", Address("127.0.0.1", 8080)),
    ],
)
def test_the_broker_says_where_it_is(scripted, told, address):
    assert found(scripted, **{HTTP_LISTENER.replace(".", "_"): told}) == address


def test_a_listener_that_is_off_is_told(scripted):
    with pytest.raises(NoHttpListener, match="--http"):
        found(scripted, **{HTTP_LISTENER.replace(".", "_"): ""})


def test_another_broker_has_none(scripted):
    with pytest.raises(NoHttpListener, match="not Penstock"):
        found(scripted, node_id="1")
