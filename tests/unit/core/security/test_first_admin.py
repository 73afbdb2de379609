"""A start with authentication needs a way in: a user, an identity provider, or a listener that takes client certificates."""

import pytest

from penstock.config import load
from penstock.core.security.first_admin import require_a_way_in
from penstock.errors import PenstockError, Reason
from tests.unit.core.security.world import World

OWN = {"cert_file": "a.crt", "key_file": "a.key", "ca_file": "ca.crt", "client_auth": "requested"}


def of(section: str, **others: object) -> dict[str, object]:
    """The flags for a section with a certificate that asks clients for theirs."""
    return {f"{section}.{key}": value for key, value in {**OWN, **others}.items()}


def require(flags: dict[str, object]) -> None:
    settings = load(flags={"security.authentication": "required", **flags})
    require_a_way_in(World().authenticator, settings)


@pytest.mark.parametrize(
    "flags",
    [
        of("tls"),
        of("tls.http"),
        {"listeners.secure.address": "127.0.0.1:0", **of("tls.secure")},
        {"tls.client_auth": "required", "tls.ca_file": "ca.crt", "tls.tcp.cert_file": "a", "tls.tcp.key_file": "b"},
    ],
)
def test_a_listener_for_client_certificates_is_a_way_in(flags: dict[str, object]) -> None:
    require(flags)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        of("tls", client_auth="none"),
        {"listeners.http": "off", **of("tls.http")},
        {"cluster.name": "c", "cluster.peer_tls": "require", **of("tls.peer")},
        {**of("tls"), **{f"tls.{name}.enabled": False for name in ("kafka", "http", "tcp", "grpc")}},
    ],
)
def test_listeners_that_take_no_certificate_of_a_client_are_none(flags: dict[str, object]) -> None:
    with pytest.raises(PenstockError, match="there are no users") as refused:
        require(flags)
    assert refused.value.reason is Reason.INVALID_CONFIG
