"""Kafka's own command line tools, in Java, with TLS and a login: users, rules, quotas, topics, and records by their rights."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.secure import SecureBroker
from tests.interop.conftest import EXTERNAL

POM = Path(__file__).parents[1] / "support" / "java_tools" / "pom.xml"
JARS = Path(__file__).parents[2] / "build" / "java-tools"
SECONDS_MAX = 120
FETCH_SECONDS_MAX = 300
TOPICS = "org.apache.kafka.tools.TopicCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule"}
MODULES["SCRAM-SHA-512"] = MODULES["SCRAM-SHA-256"]


@pytest.fixture(scope="module")
def jars() -> Path:
    if EXTERNAL:
        pytest.skip("PENSTOCK_TEST_BOOTSTRAP is set: this test is about Penstock alone")
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not JARS.is_dir():
        partial = JARS.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        fetched = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(POM), *goal],
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
        if fetched.returncode:
            pytest.skip(f"Maven cannot fetch Kafka's tools: {fetched.stdout[-500:]}")
        partial.rename(JARS)
    return JARS


class Tools:
    """The tools, with the files of their users."""

    def __init__(self, jars: Path, broker: SecureBroker, folder: Path) -> None:
        self._jars = jars
        self._broker = broker
        self._folder = folder

    def login(self, mechanism: str, user: str, password: str) -> Path:
        """A file with the properties of a client."""
        file = self._folder / f"{mechanism}-{user}-{len(list(self._folder.iterdir()))}.properties"
        module = f"org.apache.kafka.common.security.{MODULES[mechanism]}"
        file.write_text(
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self._broker.ca_file}\n"
            "group.protocol=classic\n"
        )
        return file

    def run(self, tool: str, login: Path, *arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
        command = ["java", "-Xmx256m", "-cp", f"{self._jars}/*", tool, "--bootstrap-server", self._broker.bootstrap]
        return subprocess.run(
            [*command, "--command-config", str(login), *arguments],
            input=lines,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )


@pytest.fixture(scope="module")
def tools(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tools, Path]]:
    folder = tmp_path_factory.mktemp("java")
    with SecureBroker(tmp_path_factory.mktemp("secure")) as broker:
        made = Tools(jars, broker, folder)
        yield made, made.login("SCRAM-SHA-512", broker.user, broker.password)


def test_an_administrator_makes_users_topics_and_rules_that_hold(tools: tuple[Tools, Path]) -> None:
    java, root = tools
    user = ("--entity-type", "users", "--entity-name", "bert")
    for changes in ("SCRAM-SHA-256=[password=berts],SCRAM-SHA-512=[password=berts]", "producer_byte_rate=10000000"):
        altered = java.run(CONFIGS, root, "--alter", "--add-config", changes, *user)
        assert altered.returncode == 0, altered.stdout + altered.stderr
    shown = java.run(CONFIGS, root, "--describe", *user).stdout
    assert "producer_byte_rate=1.0E7" in shown
    assert "SCRAM-SHA-512" in shown
    assert java.run(TOPICS, root, "--create", "--topic", "orders").returncode == 0
    assert java.run(PRODUCER, root, "--topic", "orders", lines="two apples\n").returncode == 0

    bert = java.login("SCRAM-SHA-256", "bert", "berts")
    read = ("--topic", "orders", "--group", "kitchen", "--from-beginning", "--max-messages", "1")
    refused = java.run(CONSUMER, bert, *read, "--timeout-ms", "20000")
    assert "Processed a total of 0 messages" in refused.stderr
    assert "orders" not in java.run(TOPICS, bert, "--list").stdout
    may_read = ("--add", "--allow-principal", "User:bert", "--operation", "Read")
    assert java.run(ACLS, root, *may_read, "--topic", "ord", "--resource-pattern-type", "prefixed").returncode == 0
    assert java.run(ACLS, root, *may_read, "--group", "kitchen").returncode == 0
    assert "principal=User:bert" in java.run(ACLS, root, "--list").stdout
    assert java.run(CONSUMER, bert, *read).stdout.splitlines() == ["two apples"]
    assert "orders" in java.run(TOPICS, java.login("PLAIN", "bert", "berts"), "--list").stdout


@pytest.mark.parametrize("mechanism", MODULES)
def test_a_wrong_password_is_refused(tools: tuple[Tools, Path], mechanism: str) -> None:
    java, _ = tools
    found = java.run(TOPICS, java.login(mechanism, "admin", "wrong"), "--list")
    assert "Authentication failed" in found.stdout + found.stderr
    assert "orders" not in found.stdout
