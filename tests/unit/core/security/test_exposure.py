"""A broker that other machines can reach without authentication does not start, unless the settings say so."""

import pytest

from penstock.address import Address
from penstock.core.security.exposure import Exposed, Exposure, check_exposure
from penstock.errors import PenstockError, Reason
from penstock.settings import Authentication, SecuritySettings

INSIDE = Exposed("http", Address("127.0.0.1", 8080), is_loopback=True, is_private=True)
PLAIN = Exposed("kafka", Address("10.0.0.1", 9092), is_loopback=False, is_private=False)
ENCRYPTED = Exposed("kafka", Address("10.0.0.1", 9092), is_loopback=False, is_private=True)
REQUIRED = SecuritySettings(authentication=Authentication.REQUIRED)


def test_loopback_needs_nothing() -> None:
    assert check_exposure([INSIDE], SecuritySettings()) == Exposure()


@pytest.mark.parametrize("listener", [PLAIN, ENCRYPTED])
def test_other_machines_need_to_authenticate_even_with_tls(listener: Exposed) -> None:
    with pytest.raises(
        PenstockError, match=r'kafka listener on 10\.0\.0\.1:9092.*authentication = "required"'
    ) as refused:
        check_exposure([INSIDE, listener], SecuritySettings())
    assert refused.value.reason is Reason.INVALID_CONFIG


def test_a_broker_that_must_start_like_this_says_what_it_means() -> None:
    exposure = check_exposure([INSIDE, PLAIN], SecuritySettings(insecure=True))
    assert exposure.is_insecure
    assert "kafka on 10.0.0.1:9092 can read and change all data" in exposure.warnings[0]


def test_a_broker_on_loopback_is_not_insecure_whatever_the_settings_allow() -> None:
    assert check_exposure([INSIDE], SecuritySettings(insecure=True)) == Exposure()


def test_authentication_without_tls_is_warned_about() -> None:
    assert check_exposure([INSIDE, ENCRYPTED], REQUIRED) == Exposure()
    exposure = check_exposure([INSIDE, PLAIN], REQUIRED)
    assert not exposure.is_insecure
    assert "the kafka listener on 10.0.0.1:9092 is not encrypted: passwords" in exposure.warnings[0]


PEERS = Exposed("peer", Address("10.0.0.1", 9093), is_loopback=False, is_private=False, of_nodes=True)


@pytest.mark.parametrize("security", [SecuritySettings(), REQUIRED])
def test_nodes_on_other_machines_need_tls_whatever_clients_need(security: SecuritySettings) -> None:
    with pytest.raises(
        PenstockError, match=r'peer listener on 10\.0\.0\.1:9093.*cluster\.peer_tls = "require"'
    ) as refused:
        check_exposure([INSIDE, PEERS], security)
    assert refused.value.reason is Reason.INVALID_CONFIG


def test_nodes_with_tls_need_no_authentication_of_clients() -> None:
    assert check_exposure([INSIDE, PEERS._replace(is_private=True)], SecuritySettings()) == Exposure()
    assert check_exposure([INSIDE, PEERS._replace(is_private=True)], REQUIRED) == Exposure()


def test_nodes_that_must_start_without_tls_say_what_it_means() -> None:
    for authentication in Authentication:
        exposure = check_exposure([INSIDE, PEERS], SecuritySettings(authentication=authentication, insecure=True))
        assert exposure.is_insecure
        assert "peer on 10.0.0.1:9093" in exposure.warnings[-1]
