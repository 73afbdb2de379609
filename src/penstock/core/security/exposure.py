"""Whether a broker may be reached from other machines with these settings. It starts only if it is safe, or if the settings say that it need not be."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.address import Address
from penstock.errors import PenstockError, Reason
from penstock.settings import Authentication, SecuritySettings


class Exposed(NamedTuple):
    """A listener, as far as this decision needs it."""

    name: str
    address: Address
    is_loopback: bool
    is_private: bool
    """Encrypted, or on loopback."""
    of_nodes: bool = False
    """For the other nodes of the cluster, which always authenticate."""


class Exposure(NamedTuple):
    """The decision: it may start."""

    is_insecure: bool = False
    """Other machines need not authenticate, or can read what nodes send each other."""
    warnings: tuple[str, ...] = ()


def check_exposure(listeners: Sequence[Exposed], security: SecuritySettings) -> Exposure:
    """INVALID_CONFIG if machines on the network could read or change data without authentication, and the settings do not allow that."""
    of_clients = _check_clients([each for each in listeners if not each.of_nodes], security)
    of_nodes = _check_nodes([each for each in listeners if each.of_nodes], security)
    return Exposure(of_clients.is_insecure or of_nodes.is_insecure, of_clients.warnings + of_nodes.warnings)


def _check_nodes(listeners: Sequence[Exposed], security: SecuritySettings) -> Exposure:
    """Nodes always authenticate, so only the bytes on the way are in question."""
    readable = [listener for listener in listeners if not listener.is_private]
    if not readable:
        return Exposure()
    [peer] = readable
    if not security.insecure:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"The {peer.name} listener on {peer.address} can be reached from other machines, and nodes could send each other all records without"
            ' encryption: set cluster.peer_tls = "require" and give the node a certificate in [tls.peer], or, only on a network that you trust, set'
            " security.insecure = true",
        )
    return Exposure(
        True,
        (
            f"everyone on the way between {peer.name} on {peer.address} and other nodes can read the data that they send, because security.insecure is set",
        ),
    )


def _check_clients(listeners: Sequence[Exposed], security: SecuritySettings) -> Exposure:
    outside = [listener for listener in listeners if not listener.is_loopback]
    if security.authentication is Authentication.REQUIRED:
        return Exposure(
            warnings=tuple(
                f"the {listener.name} listener on {listener.address} is not encrypted: passwords, keys and tokens are refused there, and"
                f" everybody on the way can read the data; set tls.cert_file and tls.key_file"
                for listener in outside
                if not listener.is_private
            )
        )
    if not outside:
        return Exposure()
    if not security.insecure:
        first = outside[0]
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"The {first.name} listener on {first.address} can be reached from other machines, and everyone there could read and change all data:"
            ' set security.authentication = "required", listen on 127.0.0.1, or, only on a network that you trust, set security.insecure = true',
        )
    where = ", ".join(f"{listener.name} on {listener.address}" for listener in outside)
    return Exposure(
        True, (f"everyone who can connect to {where} can read and change all data, because security.insecure is set",)
    )
