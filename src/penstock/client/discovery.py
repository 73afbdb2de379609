"""Finds the HTTP API of a broker whose Kafka address is known: a config of the broker has its address, and whether it uses TLS."""

from typing import Final

from penstock.address import Address, parse_address
from penstock.client.admin import Admin
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError

HTTP_LISTENERS: Final = "penstock.http.listeners"
"""The advertised ``HOST:PORT`` of the broker, then those of the other nodes that are up, with ``https://`` for TLS; empty if all listeners are off."""
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - only compared with


class NoHttpListener(ClientError):
    """No HTTP API can be used: the brokers are not Penstock, or their listeners are off."""


def http_addresses(cluster: Cluster) -> str:
    """The HTTP listeners of all nodes that are up ("http://HOST:PORT,http://HOST:PORT"); :class:`NoHttpListener` if there is none.

    They are for an HTTP client with the security of the cluster, ``cluster.security``.
    """
    node = cluster.describe().any_node
    configs = {entry.name: entry.value for entry in Admin(cluster).broker_configs()}
    listeners = configs.get(HTTP_LISTENERS)
    if listeners is None:
        raise NoHttpListener(
            f"{node.address} is not Penstock, or an older version: exactly-once sinks need its HTTP API. Write at least once instead, or connect to a Penstock broker"
        )
    if not listeners:
        raise NoHttpListener(
            f"The HTTP listener of {node.address} is off, and exactly-once sinks need it: start the broker with "
            "--http HOST:PORT"
        )
    return ",".join(_reachable(each, node.address.host) for each in listeners.split(","))


def _reachable(listener: str, kafka_host: str) -> str:
    # Without a scheme it is not TLS, whatever the Kafka listener uses.
    scheme, _, text = listener.rpartition("://")
    address = parse_address(text)
    if address.host in _ANY_HOST:
        # A broker that listens on all interfaces is reached at the host that Kafka clients use.
        address = Address(kafka_host, address.port)
    return f"{scheme or 'http'}://{address}"
