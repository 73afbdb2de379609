"""Where a broker's HTTP listener is, for one who knows its Kafka address: the broker says so in a config of its own."""

from typing import Final

from penstock.address import Address, parse_address
from penstock.client.admin import Admin
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError

HTTP_LISTENER: Final = "penstock.http.listener"
"""``HOST:PORT`` as it is advertised; empty when the listener is off."""
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - it is recognised here, and not listened on


class NoHttpListener(ClientError):
    """The broker has no HTTP API that could be asked: it is not Penstock, or its listener is off."""


def http_address(cluster: Cluster) -> Address:
    """The HTTP listener of the broker; :class:`NoHttpListener` when there is none."""
    info = cluster.describe()
    node = info.nodes.get(info.controller) or min(info.nodes.values(), key=lambda each: each.node_id)
    configs = {entry.name: entry.value for entry in Admin(cluster).broker_configs(node.node_id)}
    told = configs.get(HTTP_LISTENER)
    if told is None:
        raise NoHttpListener(
            f"{node.address} is not Penstock, or an older version of it: exactly-once sinks need its HTTP API. Write "
            "at least once instead, or connect to a Penstock broker"
        )
    if not told:
        raise NoHttpListener(
            f"the HTTP listener of {node.address} is off, and exactly-once sinks need it: start the broker with "
            "--http HOST:PORT"
        )
    address = parse_address(told)
    # It listens everywhere: then it can be reached where Kafka's clients reach it.
    return Address(node.address.host, address.port) if address.host in _ANY_HOST else address
