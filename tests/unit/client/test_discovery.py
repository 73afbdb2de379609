"""Where the HTTP listener is, as the broker's config says it."""

import threading

import pytest

from penstock.client import Cluster, NoHttpListener, http_addresses
from penstock.client.discovery import HTTP_LISTENERS
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_configs_generated import (
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
)
from penstock.wire.kafka.metadata_generated import MetadataResponse, MetadataResponseBroker
from tests.support.scripted_broker import CLOSE


def found(scripted, **configs: str) -> str:
    told = [DescribeConfigsResponseConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]

    def describe(request):
        assert (request.resources[0].resource_type, request.resources[0].resource_name) == (4, "1")
        result = DescribeConfigsResponseResult(resource_type=4, resource_name="1", configs=told)
        return DescribeConfigsResponse(results=[result])

    with Cluster(scripted({ApiKey.DESCRIBE_CONFIGS: describe}).bootstrap) as cluster:
        return http_addresses(cluster)


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ("10.1.2.3:8080", "http://10.1.2.3:8080"),
        ("[fd00::1]:81", "http://[fd00::1]:81"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://127.0.0.1:8080"),
        ("10.1.2.3:8080,10.1.2.4:8081", "http://10.1.2.3:8080,http://10.1.2.4:8081"),
        ("https://0.0.0.0:8443,https://a:8444", "https://127.0.0.1:8443,https://a:8444"),
    ],
)
def test_the_broker_says_where_it_is(scripted, told, address) -> None:
    assert found(scripted, **{HTTP_LISTENERS.replace(".", "_"): told}) == address


def test_a_listener_that_is_off_is_told(scripted) -> None:
    with pytest.raises(NoHttpListener, match="--http"):
        found(scripted, **{HTTP_LISTENERS.replace(".", "_"): ""})


def test_another_broker_has_none(scripted) -> None:
    with pytest.raises(NoHttpListener, match="not Penstock"):
        found(scripted, node_id="1")


def test_a_node_that_dies_when_it_is_asked_is_passed_over(scripted) -> None:
    """Its neighbours name it as up for a while: it was whom the metadata named, and nobody connects to it any more."""
    listening = DescribeConfigsResponseConfig(name=HTTP_LISTENERS, value="127.0.0.1:8002,127.0.0.1:8001")

    def metadata(controller):
        nodes = [MetadataResponseBroker(number, "127.0.0.1", node.port) for number, node in ((1, dying), (2, staying))]
        return MetadataResponse(brokers=nodes, controller_id=controller, topics=[])

    def describe_of_2(request):
        assert request.resources[0].resource_name == "2"
        return DescribeConfigsResponse(results=[DescribeConfigsResponseResult(resource_type=4, configs=[listening])])

    def die(_):
        # Not before this is answered: the thread that answers cannot await itself.
        dying_soon.set()
        return CLOSE

    def end() -> None:
        dying_soon.wait(30)
        dying.close()

    dying_soon = threading.Event()
    dying = scripted({ApiKey.METADATA: lambda _: metadata(1), ApiKey.DESCRIBE_CONFIGS: die})
    staying = scripted({ApiKey.METADATA: lambda _: metadata(2), ApiKey.DESCRIBE_CONFIGS: describe_of_2})
    ending = threading.Thread(target=end)
    ending.start()
    with Cluster(f"{dying.bootstrap},{staying.bootstrap}") as cluster:
        assert http_addresses(cluster) == "http://127.0.0.1:8002,http://127.0.0.1:8001"
    ending.join()
