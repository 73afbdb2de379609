"""Where the HTTP API is, for one who knows a Kafka address: a broker says so in a config of its own."""

from typing import Final

from penstock.address import Address, parse_address
from penstock.client.admin import Admin
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError

HTTP_LISTENERS: Final = "penstock.http.listeners"
"""``HOST:PORT`` of the broker that is asked, as it is advertised, and behind it those of the other nodes that are up; empty when all are off."""
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - it is recognised here, and not listened on


class NoHttpListener(ClientError):
    """No broker has an HTTP API that could be asked: they are not Penstock, or the listeners are off."""


def http_addresses(cluster: Cluster) -> str:
    """The HTTP listeners of all nodes that are up ("HOST:PORT,HOST:PORT"), for an HTTP client that goes on to the next when one dies.

    :class:`NoHttpListener` when there is none.
    """
    node = cluster.describe().any_node
    configs = {entry.name: entry.value for entry in Admin(cluster).broker_configs()}
    told = configs.get(HTTP_LISTENERS)
    if told is None:
        raise NoHttpListener(
            f"{node.address} is not Penstock, or an older version: exactly-once sinks need its HTTP API. Write at least once instead, or connect to a Penstock broker"
        )
    if not told:
        raise NoHttpListener(
            f"the HTTP listener of {node.address} is off, and exactly-once sinks need it: start the broker with "
            "--http HOST:PORT"
        )
    return ",".join(str(_reachable(parse_address(each), node.address.host)) for each in told.split(","))


def _reachable(address: Address, kafka_host: str) -> Address:
    # A broker that is alone may listen everywhere: then it can be reached where Kafka's clients reach it.
    return Address(kafka_host, address.port) if address.host in _ANY_HOST else address
