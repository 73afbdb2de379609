"""Whether a broker may be reached from other machines with these settings. It starts only if it is safe, or if the settings say that it need not be."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.address import Address
from penstock.errors import PenstockError, Reason
from penstock.settings import Authentication, SecuritySettings


class Exposed(NamedTuple):
    """A listener for clients, as far as this decision needs it."""

    name: str
    address: Address
    is_loopback: bool
    is_private: bool
    """Encrypted, or on loopback."""


class Exposure(NamedTuple):
    """The decision: it may start."""

    is_insecure: bool = False
    """Other machines need not authenticate."""
    warnings: tuple[str, ...] = ()


def check_exposure(listeners: Sequence[Exposed], security: SecuritySettings) -> Exposure:
    """INVALID_CONFIG if clients on other machines could do everything without authentication, and the settings do not allow that."""
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
