"""Every mechanism with clients that others wrote: the right password, a wrong one, and nobody at all."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka.admin import AdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaTokenProvider

from penstock.testing.process import BrokerProcess
from tests.support.tokens import Provider, settings
from tests.support.waiting import Deadline

pytestmark = pytest.mark.usefixtures("is_penstock")

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
RIGHT, WRONG = "p4ss-Word and more", "another"
SECONDS = 30.0


class Secured:
    """A broker with the user ``admin``, and an identity provider."""

    def __init__(self, broker: BrokerProcess, provider: Provider) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self.provider = provider


def start(folder: Path) -> Iterator[Secured]:
    password, keys = folder / "password", folder / "keys.json"
    password.write_text(RIGHT + "\n")
    password.chmod(0o600)
    provider = Provider().publish(keys)
    chosen = {
        "security.authentication": "required",
        "security.admin_password_file": str(password),
        "security.super_users": "User:anna",
        "groups.initial_rebalance_delay_ms": 0,
        **settings(keys),
    }
    with BrokerProcess(folder / "data", chosen) as broker:
        yield Secured(broker, provider)
        said = broker.log_text()
        assert RIGHT not in said
        assert WRONG not in said
        assert "Traceback" not in said, said


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    yield from start(tmp_path_factory.mktemp("secured"))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Secured]:
    """For wrong passwords, because the next attempts of this address are delayed."""
    yield from start(tmp_path)


def confluent(secured: Secured, mechanism: str, password: str = RIGHT) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "admin",
        "sasl.password": password,
    }


def refusal_of(config: dict[str, Any], until: int) -> str:
    """What a client is told when it cannot log in."""
    found: list[str] = []

    def failed(error: confluent_kafka.KafkaError) -> None:
        if error.code() == until:
            found.append(error.str())

    client = confluent_kafka.Producer({**config, "error_cb": failed})
    deadline = Deadline(SECONDS, "the refusal")
    while not found:
        client.poll(min(0.1, deadline.left))
    return found[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in_with_the_right_password(secured: Secured, mechanism: str) -> None:
    assert AdminClient(confluent(secured, mechanism)).list_topics(timeout=SECONDS).brokers


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_is_told_of_a_wrong_password(fresh: Secured, mechanism: str) -> None:
    wrong = refusal_of(confluent(fresh, mechanism, WRONG), confluent_kafka.KafkaError._AUTHENTICATION)
    assert "Authentication failed: check the user and the password" in wrong


def confluent_with_token(secured: Secured, token: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _config: (token, time.time() + 300),
    }


def test_confluent_kafka_logs_in_with_a_token(secured: Secured) -> None:
    client = AdminClient(confluent_with_token(secured, secured.provider.token()))
    client.poll(1)
    assert client.list_topics(timeout=SECONDS).brokers


def test_confluent_kafka_is_told_of_a_token_of_another_issuer(fresh: Secured) -> None:
    other = Provider("https://other.example.com").token()
    refused = refusal_of(confluent_with_token(fresh, other), confluent_kafka.KafkaError._AUTHENTICATION)
    assert "Authentication failed" in refused


def kafka_python(secured: Secured, mechanism: str, password: str) -> kafka.KafkaAdminClient:
    return kafka.KafkaAdminClient(
        bootstrap_servers=secured.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="admin",
        sasl_plain_password=password,
        bootstrap_timeout_ms=10_000,
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in_with_the_right_password(secured: Secured, mechanism: str) -> None:
    admin = kafka_python(secured, mechanism, RIGHT)
    try:
        assert admin.describe_cluster()
    finally:
        admin.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_is_refused_with_a_wrong_password(fresh: Secured, mechanism: str) -> None:
    with pytest.raises(kafka.errors.KafkaError):
        kafka_python(fresh, mechanism, WRONG)


class _Token(KafkaTokenProvider):  # type: ignore[misc]
    def __init__(self, made: str) -> None:
        self._made = made

    def token(self) -> str:
        return self._made


def test_kafka_python_logs_in_with_a_token(secured: Secured) -> None:
    admin = kafka.KafkaAdminClient(
        bootstrap_servers=secured.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=_Token(secured.provider.token("ES256")),
    )
    try:
        assert admin.describe_cluster()
    finally:
        admin.close()


def aiokafka_producer(secured: Secured, mechanism: str, password: str) -> aiokafka.AIOKafkaProducer:
    return aiokafka.AIOKafkaProducer(
        bootstrap_servers=secured.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="admin",
        sasl_plain_password=password,
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_logs_in_with_the_right_password(secured: Secured, mechanism: str) -> None:
    producer = aiokafka_producer(secured, mechanism, RIGHT)
    await asyncio.wait_for(producer.start(), SECONDS)
    try:
        await asyncio.wait_for(producer.send_and_wait("aio", b"value"), SECONDS)
    finally:
        await producer.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_is_refused_with_a_wrong_password(fresh: Secured, mechanism: str) -> None:
    producer = aiokafka_producer(fresh, mechanism, WRONG)
    with pytest.raises(aiokafka.errors.KafkaError):
        await asyncio.wait_for(producer.start(), SECONDS)
    await producer.stop()


class _AsyncToken(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, made: str) -> None:
        self._made = made

    async def token(self) -> str:
        return self._made


async def test_aiokafka_logs_in_with_a_token(secured: Secured) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=secured.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=_AsyncToken(secured.provider.token("EdDSA")),
    )
    await asyncio.wait_for(producer.start(), SECONDS)
    await producer.stop()


def run_kcat(kcat: str, secured: Secured, mechanism: str, password: str) -> subprocess.CompletedProcess[str]:
    config = secured.broker.data_dir.parent / "kcat.conf"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.username=admin\nsasl.password={password}\n"
    )
    command = [kcat, "-F", str(config), "-b", secured.bootstrap, "-L", "-m", "10"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat_logs_in_with_the_right_password(secured: Secured, mechanism: str, kcat: str) -> None:
    right = run_kcat(kcat, secured, mechanism, RIGHT)
    assert right.returncode == 0, right.stderr
    assert "1 brokers" in right.stdout


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat_is_told_of_a_wrong_password(fresh: Secured, mechanism: str, kcat: str) -> None:
    wrong = run_kcat(kcat, fresh, mechanism, WRONG)
    assert wrong.returncode != 0
    assert "Authentication failed" in wrong.stderr


def test_a_client_without_sasl_gets_no_answer(secured: Secured) -> None:
    with pytest.raises(confluent_kafka.KafkaException):
        AdminClient({"bootstrap.servers": secured.bootstrap}).list_topics(timeout=3)
