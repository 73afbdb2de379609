"""Sections of single listeners: [listeners.NAME] and [tls.NAME]."""

from pathlib import Path

import pytest

from penstock.address import Address
from penstock.config import ConfigError, load
from penstock.config.describe import describe
from penstock.settings import ClientAuth, KafkaListenerSettings, Settings


def from_toml(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    return load(file)


def test_more_listeners_have_an_address_and_one_for_clients(tmp_path: Path) -> None:
    settings = from_toml(
        tmp_path,
        """
        [listeners]
        kafka = "127.0.0.1:9092"
        [listeners.outside]
        address = "0.0.0.0:9094"
        advertised = "broker.example.com:9094"
        [listeners.lab-2]
        address = "127.0.0.1:0"
        """,
    )
    assert settings.kafka_listeners == {
        "outside": KafkaListenerSettings(
            address=Address("0.0.0.0", 9094), advertised=Address("broker.example.com", 9094)
        ),
        "lab-2": KafkaListenerSettings(address=Address("127.0.0.1", 0)),
    }
    assert str(settings.source_of("listeners.outside.address")).endswith("penstock.toml:5")


def test_the_tls_of_a_listener_inherits_what_it_does_not_set(tmp_path: Path) -> None:
    settings = from_toml(
        tmp_path,
        """
        [tls]
        cert_file = "all.crt"
        key_file = "all.key"
        ca_file = "ca.crt"
        [tls.http]
        enabled = false
        [tls.kafka]
        client_auth = "required"
        """,
    )
    assert not settings.tls_of("http").is_on
    assert (settings.tls_of("kafka").cert_file, settings.tls_of("kafka").client_auth) == (
        "all.crt",
        ClientAuth.REQUIRED,
    )
    assert settings.tls_of("tcp") is settings.tls
    assert settings.tls.is_on


def test_the_environment_and_flags_set_them_too() -> None:
    environment = {"PENSTOCK__LISTENERS__OUTSIDE__ADDRESS": "127.0.0.1:1", "PENSTOCK__TLS__OUTSIDE__CERT_FILE": "a.crt"}
    settings = load(None, environment, {"tls.outside.key_file": "a.key"})
    assert settings.kafka_listeners["outside"].address == Address("127.0.0.1", 1)
    assert settings.tls_of("outside").is_on
    assert not settings.tls.is_on


def test_what_is_set_is_shown() -> None:
    settings = load(None, {}, {"listeners.outside.address": "127.0.0.1:1", "tls.kafka.enabled": False})
    shown = {each.path: each.plain for each in describe(settings) if each.path.count(".") == 2}
    assert shown == {"listeners.outside.address": "127.0.0.1:1", "tls.kafka.enabled": False}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"listeners.kafka.address": "127.0.0.1:1"}, r'listeners.kafka = "HOST:PORT"'),
        ({"listeners.Outside.address": "127.0.0.1:1"}, "'Outside' cannot be the name of a listener"),
        ({"listeners.tls.address": "127.0.0.1:1"}, "'tls' cannot be the name of a listener"),
        ({"listeners.outside.adress": "127.0.0.1:1"}, "did you mean listeners.outside.address"),
        ({"listeners.outside.advertised": "a:1"}, "it has no address"),
        ({"tls.outside.enabled": False}, "no listener of this name; available: kafka, http"),
        ({"tls.kafka.enabled": "perhaps"}, "true or false"),
        ({"tls.cert_file": "a.crt"}, "cert_file is set without key_file"),
        ({"tls.key_file": "a.key"}, "key_file is set without cert_file"),
        ({"tls.ca_file": "ca.crt"}, "there is no TLS"),
        (
            {"tls.cert_file": "a", "tls.key_file": "b", "tls.client_auth": "required"},
            "client_auth = 'required' needs ca_file",
        ),
        ({"tls.kafka.cert_file": "a"}, "tls.kafka: cert_file is set without key_file"),
        (
            {"cluster.name": "c", "tls.peer.cert_file": "a", "tls.peer.key_file": "b"},
            "nodes do not use the certificate, because cluster.peer_tls is off",
        ),
        (
            {"cluster.name": "c", "cluster.peer_tls": "require", "tls.peer.enabled": False},
            "enabled is false, but cluster.peer_tls is require",
        ),
    ],
)
def test_mistakes_are_named(flags: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(None, {}, flags)


def test_tls_may_have_only_defaults_for_listeners_with_certificates_of_their_own(tmp_path: Path) -> None:
    settings = from_toml(
        tmp_path,
        """
        [tls]
        ca_file = "ca.crt"
        client_auth = "requested"
        [listeners.secure]
        address = "127.0.0.1:0"
        [tls.secure]
        cert_file = "secure.crt"
        key_file = "secure.key"
        [tls.http]
        enabled = false
        """,
    )
    secure = settings.tls_of("secure")
    assert (secure.is_on, secure.ca_file, secure.client_auth) == (True, "ca.crt", ClientAuth.REQUESTED)
    assert not settings.tls_of("kafka").is_on


def test_the_authorities_may_be_those_of_one_listener_only(tmp_path: Path) -> None:
    settings = from_toml(
        tmp_path,
        """
        [tls]
        client_auth = "required"
        [tls.http]
        cert_file = "http.crt"
        key_file = "http.key"
        ca_file = "ca.crt"
        """,
    )
    assert settings.tls_of("http").client_auth is ClientAuth.REQUIRED


def test_defaults_do_not_excuse_a_listener_without_a_certificate() -> None:
    own = {"tls.http.cert_file": "a", "tls.http.key_file": "b"}
    with pytest.raises(ConfigError, match=r"tls.kafka: ca_file is set, but without cert_file"):
        load(None, {}, {"tls.ca_file": "ca.crt", "tls.kafka.client_auth": "required", **own})
    with pytest.raises(ConfigError, match=r"tls.http: client_auth = 'required' needs ca_file"):
        load(None, {}, {"tls.client_auth": "required", **own})
