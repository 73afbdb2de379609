"""TLS and credentials in the options of a query: what they mean, what is refused, and that no value is shown."""

import pytest

from penstock.client.security import ClientSecurity, Mechanism
from penstock.spark.connections import _key
from penstock.spark.errors import OptionError
from penstock.spark.options import SparkOptions
from penstock.spark.security import options_for, security_of
from penstock.spark.sink.settings import settings_of
from penstock.spark.source.settings import batch_settings

MARK = "s3cr3t-mark"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def read(options):
    return security_of(SparkOptions({f"kafka.{name}": value for name, value in options.items()}))


@pytest.mark.parametrize(
    ("options", "security"),
    [
        ({}, ClientSecurity(tls=False)),
        ({"security.protocol": "PLAINTEXT"}, ClientSecurity(tls=False)),
        ({"security.protocol": "ssl"}, ClientSecurity(tls=True)),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/ca.pem",
                "ssl.keystore.location": "/mine.pem",
                "ssl.key.password": MARK,
                "ssl.endpoint.identification.algorithm": "",
            },
            ClientSecurity(tls=True, ca_file="/ca.pem", cert_file="/mine.pem", key_password=MARK, verify_name=False),
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.certificates": "CA",
                "ssl.keystore.certificate.chain": "CERT",
                "ssl.keystore.key": MARK,
                "ssl.endpoint.identification.algorithm": "https",
            },
            ClientSecurity(tls=True, ca_pem="CA", cert_pem="CERT", key_pem=MARK),
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{PLAIN_MODULE} required username="anna" password="{MARK}";',
            },
            ClientSecurity(tls=True, user="anna", password=MARK, mechanism=Mechanism.PLAIN),
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": f'kafkashaded.{SCRAM_MODULE}\n  required\n  username=\'an na\'\n  password="a\\"b\\\\c;=" ;',
            },
            ClientSecurity(tls=True, user="an na", password='a"b\\c;=', mechanism=Mechanism.SCRAM_SHA_512),
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "anna", "sasl.password": MARK},
            ClientSecurity(tls=False, user="anna", password=MARK, may_send_unencrypted=True),
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.username": "anna", "sasl.password.file": "/p"},
            ClientSecurity(tls=True, user="anna", password_file="/p"),
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": MARK},
            ClientSecurity(tls=True, token=MARK, mechanism=Mechanism.OAUTHBEARER),
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.oauthbearer.token.endpoint.url": "file:///a%20b/token"},
            ClientSecurity(tls=True, token_file="/a b/token"),
        ),
    ],
)
def test_the_options_of_the_kafka_connector_are_understood(options, security) -> None:
    assert read(options) == security


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"security.protocol": "TLS"}, "kafka.security.protocol must be one of plaintext, ssl"),
        ({"ssl.truststore.location": "/ca.pem"}, "ssl.truststore.location needs kafka.security.protocol SSL"),
        ({"sasl.username": "a"}, "sasl.username needs kafka.security.protocol SASL_SSL"),
        ({"security.protocol": "SSL", "sasl.password": MARK}, "sasl.password needs kafka.security.protocol SASL_SSL"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.keystore.key": MARK}, "ssl.keystore.key needs"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "is JKS: only PEM is supported. keytool"),
        ({"security.protocol": "SSL", "ssl.keystore.type": "PKCS12"}, "is PKCS12: only PEM"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/a/trust.JKS"}, "must be a PEM file"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/a/me.p12"}, "must be a PEM file"),
        ({"security.protocol": "SSL", "ssl.truststore.password": MARK}, "a truststore in PEM has no password"),
        ({"security.protocol": "SSL", "ssl.keystore.password": MARK}, "use kafka.ssl.key.password"),
        ({"security.protocol": "SSL", "ssl.keystore.key": MARK}, "A private key needs its certificate"),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "no"},
            "endpoint.identification.algorithm must be",
        ),
        ({"security.protocol": "SASL_SSL"}, "kafka.security.protocol requires credentials: set kafka.sasl.username"),
        ({"security.protocol": "SASL_SSL", "sasl.username": "anna"}, "no password for user 'anna'"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism must be one of plain"),
        ({"security.protocol": "SASL_SSL", "sasl.kerberos.service.name": "k"}, "Kerberos is not supported"),
        ({"security.protocol": "SASL_SSL", "sasl.login.callback.handler.class": "X"}, "Java classes are not supported"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f"{SCRAM_MODULE} required;",
            },
            "is not for PLAIN",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.jaas.config": f"x.Krb5LoginModule required p='{MARK}';"},
            "Krb5LoginModule",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.jaas.config": MARK}, "is not valid: write one of PlainLoginModule"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.jaas.config": f'{PLAIN_MODULE} required username="a" password="{MARK};',
            },
            "write its fields as username",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.oauthbearer.token.endpoint.url": f"https://{MARK}/token"},
            "must be file:///PATH",
        ),
    ],
)
def test_options_that_are_not_supported_or_have_no_effect_are_refused(options, says) -> None:
    with pytest.raises(OptionError, match=says) as refused:
        read(options)
    assert MARK not in str(refused.value)


@pytest.mark.parametrize(
    "security",
    [
        ClientSecurity(),
        ClientSecurity(ca_file="/ca.pem"),
        ClientSecurity(tls=True, cert_file="/c.pem", key_file="/k.pem", key_password="x", server_name="n"),
        ClientSecurity(ca_pem="CA", cert_pem="C", key_pem="K", verify_name=False),
        ClientSecurity(tls=True, user="anna", password=MARK),
        ClientSecurity(tls=True, user="anna", password_file="/p", mechanism=Mechanism.PLAIN),
        ClientSecurity(tls=True, token=MARK),
        ClientSecurity(tls=True, token_file="/t"),
    ],
)
def test_the_security_of_a_command_is_the_same_in_its_queries(security) -> None:
    again = security_of(SparkOptions(options_for(security)))
    assert (again.uses_tls, again.sasl_mechanism) == (security.uses_tls, security.sasl_mechanism)
    for name in ("ca_file", "ca_pem", "cert_file", "key_file", "cert_pem", "key_pem", "key_password", "server_name"):
        assert getattr(again, name) == getattr(security, name)
    for name in ("user", "password", "password_file", "token", "token_file", "verify_name"):
        assert getattr(again, name) == getattr(security, name)


def test_no_secret_is_in_the_representation_of_settings_or_keys() -> None:
    jaas = f'{PLAIN_MODULE} required username="anna" password="{MARK}";'
    options = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": jaas,
        "kafka.ssl.key.password": MARK,
        "subscribe": "orders",
    }
    shown = [batch_settings(SparkOptions(options)), settings_of({**options, "topic": "t"}), _key(SparkOptions(options))]
    assert [each for each in map(repr, shown) if MARK in each] == []


def test_queries_with_other_credentials_do_not_share_a_connection() -> None:
    options = {"kafka.bootstrap.servers": "a:1", "kafka.security.protocol": "SASL_SSL", "kafka.sasl.username": "anna"}
    keys = {_key(SparkOptions({**options, "kafka.sasl.password": password})) for password in ("one", "two", "two")}
    assert len(keys) == 2


def test_a_file_that_spark_brought_is_found_by_its_name(monkeypatch, tmp_path) -> None:
    from pyspark import SparkFiles

    (tmp_path / "ca.pem").touch()
    monkeypatch.setattr(SparkFiles, "get", lambda name: str(tmp_path / name))
    options = {"security.protocol": "SSL", "ssl.truststore.location": "/on/the/driver/ca.pem"}
    assert read(options).ca_file == str(tmp_path / "ca.pem")
    assert read({**options, "ssl.truststore.location": "/missing.pem"}).ca_file == "/missing.pem"
