"""The command line against a broker with TLS that requires a login, as docs/how-to/connect-securely.md says."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"


class Secure:
    """Runs commands; ``addresses`` and ``credentials`` are the options that they need."""

    def __init__(self, broker, penstock) -> None:
        self.broker = broker
        self.addresses = ["-b", broker.bootstrap, "--http", broker.address("http")]
        self.credentials = ["--tls-ca", str(broker.ca_file), "--user", broker.user]
        self.credentials += ["--password-file", str(broker.password_file)]
        self._penstock = penstock

    def __call__(self, *words, **how):
        done = self._penstock(*words, **how)
        assert self.broker.password not in done.out + done.err
        return done


@pytest.fixture
def secure(penstock_secure_broker, penstock, monkeypatch, tmp_path):
    """Without an address in the environment, and without any context."""
    for name in ("PENSTOCK_BOOTSTRAP", "PENSTOCK_HTTP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_CONTEXTS_FILE", str(tmp_path / "contexts.toml"))
    return Secure(penstock_secure_broker, penstock)


@pytest.fixture
def context(secure):
    secure("context", "add", "local", *secure.addresses, *secure.credentials)
    return secure


def test_options_are_enough(secure) -> None:
    secure("topic", "create", "by-options", "-b", secure.broker.bootstrap, *secure.credentials)
    secure("queue", "ls", "--http", secure.broker.address("http"), *secure.credentials)
    secure("topic", "ls", "-b", secure.broker.bootstrap, *secure.credentials, "--sasl-mechanism", "plain")


def test_the_environment_is_enough(secure, monkeypatch) -> None:
    broker = secure.broker
    values = {"BOOTSTRAP": broker.bootstrap, "HTTP": broker.address("http"), "TLS_CA": broker.ca_file}
    for name, value in {**values, "USER": broker.user, "PASSWORD": broker.password}.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))
    secure("topic", "create", "by-environment")
    secure("topic", "stats", "by-environment")


def test_a_context_is_enough_for_every_kind_of_command(context) -> None:
    run = context
    run("topic", "create", "by-context")
    run("produce", "by-context", stdin="one\ntwo\n")
    assert run("consume", "by-context", "--group", "readers").out == "one\ntwo\n"
    assert run("group", "describe", "readers", "--json").json
    assert run("group", "status", "readers", "--json").json
    assert run("topic", "stats", "by-context", "--json").json
    assert len(run("queue", "lease", "by-context", "-g", "workers", "--json").json) == 1
    run("dlq", "ls")
    run("sink", "ls")
    run("why", "by-context/0@0", "-g", "workers")
    run("cluster", "status")
    assert run("user", "ls", "--json").json[0]["user"] == "admin"


def test_an_api_key_is_enough_for_kafka_and_http(context, tmp_path) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text(context("key", "create", "admin").out)
    words = ("--tls-ca", str(context.broker.ca_file), "--token-file", str(file))
    context("topic", "ls", "-b", context.broker.bootstrap, *words)
    context("queue", "ls", "--http", context.broker.address("http"), *words)


def test_a_mistake_is_named(secure, tmp_path) -> None:
    broker, wrong = secure.broker, tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("s3cr3t-mark\n")
    ca = ["--tls-ca", str(broker.ca_file)]
    kafka, http = ["topic", "ls", "-b", broker.bootstrap], ["queue", "ls", "--http", broker.address("http")]
    guess = [*ca, "--user", "admin", "--password-file", str(wrong)]
    for words, code, says in (
        (kafka, 4, "uses TLS: connect with --tls"),
        (http, 4, "uses TLS: connect with --tls"),
        ([*kafka, *ca], 1, "requires authentication: specify --user"),
        ([*http, *ca], 1, "check --user and --password-file, --token-file, or the context"),
        ([*kafka, "--tls"], 4, "is not signed by a CA that this client trusts"),
        ([*kafka, *guess], 1, "refused user 'admin'"),
        ([*http, *guess], 1, "check --user and --password-file"),
    ):
        done = secure(*words, code=code)
        assert says in done.err
        assert "s3cr3t-mark" not in done.err


def test_the_document_shows_errors_as_they_are() -> None:
    """Each text in the table of errors is in the source."""
    table = (DOCS / "how-to" / "connect-securely.md").read_text().partition("## If it does not work")[2]
    package = DOCS.parent / "src/penstock"
    source = " ".join(path.read_text() for path in (*(package / "client").glob("*.py"), package / "secret_files.py"))
    texts = [
        text.replace("'NAME'", "{").replace("SCRAM-SHA-256", "{").replace("user NAME", "{")
        for text in re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    ]
    assert len(texts) > 5
    assert [text for text in texts if text.partition("{")[0] not in source] == []
