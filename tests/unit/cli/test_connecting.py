"""How commands connect: what takes precedence, that credentials stay together, and contexts."""

import json
import ssl
import stat
import sys

import pytest
import typer

from penstock.cli import connecting, main
from penstock.cli.connecting import resolve
from penstock.cli.contexts import Contexts, contexts_file, load, save
from penstock.cli.failures import Exit, Failure
from penstock.client.security import Mechanism
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.metadata_generated import MetadataResponse, MetadataResponseBroker
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateResponse
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeResponse
from tests.support.pki import Authority
from tests.support.scripted_broker import ScriptedBroker

PROD = {
    "bootstrap": "prod:9094",
    "http": "https://prod:8443",
    "tls_ca": "/prod.pem",
    "user": "anna",
    "password_file": "/p",
}
TEST = {"bootstrap": "test:9094", "token_file": "/t"}
CONTEXTS = Contexts("prod", {"prod": PROD, "test": TEST})


def values(given=None, environment=None, contexts=CONTEXTS):
    return dict(resolve(given or {}, environment or {}, contexts).values)


def test_options_come_before_the_environment() -> None:
    given, variables = {"tls_ca": "/a"}, {"PENSTOCK_TLS_CA": "/b", "PENSTOCK_USER": "u", "PENSTOCK_PASSWORD": "p"}
    assert values(given, variables, None) == {"tls_ca": "/a", "user": "u", "password": "p"}


def test_the_current_context_is_used_if_no_address_is_given() -> None:
    assert values() == PROD
    assert values({"user": "bert", "password_file": "/b"}) == {**PROD, "user": "bert", "password_file": "/b"}
    assert values({"bootstrap": "here:9092"}) == {"bootstrap": "here:9092"}
    assert values(environment={"PENSTOCK_HTTP": "here:8080"}) == {"http": "here:8080"}


def test_a_named_context_comes_before_the_environment_and_after_options() -> None:
    variables = {"PENSTOCK_BOOTSTRAP": "here:9092", "PENSTOCK_HTTP": "here:8080", "PENSTOCK_TLS_CA": "/here.pem"}
    assert values({"context": "prod"}, variables) == PROD
    assert values({"context": "prod", "bootstrap": "near:1"}, variables) == {**PROD, "bootstrap": "near:1"}
    assert "http" not in values({"context": "test"}, variables)


def test_the_context_of_the_environment_comes_after_its_other_variables() -> None:
    variables = {"PENSTOCK_CONTEXT": "prod", "PENSTOCK_BOOTSTRAP": "here:9092"}
    assert values({}, variables) == {**PROD, "bootstrap": "here:9092"}


@pytest.mark.parametrize(
    ("given", "variables", "credentials"),
    [
        ({"user": "bert"}, {"PENSTOCK_PASSWORD": "p"}, {"user": "bert", "password": "p"}),
        ({"user": "bert"}, {"PENSTOCK_USER": "u", "PENSTOCK_PASSWORD": "p"}, {"user": "bert"}),
        ({"token_file": "/t"}, {"PENSTOCK_USER": "u", "PENSTOCK_PASSWORD": "p"}, {"token_file": "/t"}),
        ({"token_file": "/t"}, {"PENSTOCK_PASSWORD": "p"}, {"token_file": "/t"}),
        ({"user": "bert", "password_file": "/b"}, {"PENSTOCK_TOKEN": "t"}, {"user": "bert", "password_file": "/b"}),
        ({"password_file": "/b"}, {"PENSTOCK_PASSWORD": "p"}, {"user": "anna", "password_file": "/b"}),
        ({}, {"PENSTOCK_PASSWORD": "p"}, {"user": "anna", "password": "p"}),
        ({}, {"PENSTOCK_TOKEN": "t"}, {"token": "t"}),
        ({}, {}, {"user": "anna", "password_file": "/p"}),
    ],
)
def test_credentials_of_two_users_are_never_mixed(given, variables, credentials) -> None:
    found = values(given, variables)
    assert {
        key: found[key] for key in found if key in {"user", "password", "password_file", "token", "token_file"}
    } == (credentials)


def test_no_tls_turns_off_the_tls_of_a_context() -> None:
    found = values({"tls": False})
    assert found["tls"] is False
    assert "tls_ca" not in found


def test_passwords_are_not_in_the_representation() -> None:
    assert "s3cr3t" not in repr(resolve({}, {"PENSTOCK_USER": "u", "PENSTOCK_PASSWORD": "s3cr3t"}, None))


def test_an_unknown_context_is_reported_with_those_that_exist() -> None:
    with pytest.raises(Failure, match="no context 'prd': the contexts are prod, test"):
        values({"context": "prd"})
    with pytest.raises(Failure, match="no context 'prd': there are none"):
        values({"context": "prd"}, {}, None)


def test_the_security_of_a_command() -> None:
    given = {"tls": "true", "user": "anna", "password": "x", "sasl_mechanism": "plain", "tls_server_name": "n"}
    security = connecting.Connecting(given).security()
    assert security.uses_tls
    assert security.sasl_mechanism is Mechanism.PLAIN
    assert security.server_name == "n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sasl_mechanism": "GSSAPI", "user": "a", "password": "b"}, "Unknown mechanism 'GSSAPI': write one of PLAIN"),
        ({"tls": "perhaps"}, "PENSTOCK_TLS is 'perhaps': write true or false"),
        ({"user": "anna"}, "There is no password for user 'anna'"),
    ],
)
def test_wrong_values_are_wrong_usage(given, says, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(Failure, match=says) as failed:
        connecting.Connecting(given).security()
    assert failed.value.code is Exit.USAGE


def test_a_terminal_is_asked_for_a_missing_password(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", lambda text, **how: asked.append((text, how["hide_input"])) or "typed")
    assert connecting.Connecting({"user": "anna"}).security().read_password() == "typed"
    assert asked == [("Password for anna", True)]


# The file of contexts


def test_the_file_is_in_the_folder_for_configuration(tmp_path) -> None:
    assert contexts_file({"HOME": "/h"}).as_posix() == "/h/.config/penstock/contexts.toml"
    assert contexts_file({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}).as_posix() == "/x/penstock/contexts.toml"
    assert contexts_file({"PENSTOCK_CONTEXTS_FILE": "/c.toml"}).as_posix() == "/c.toml"
    assert load(tmp_path / "missing") == Contexts()


def test_what_is_saved_is_loaded_and_only_its_user_may_read_it(tmp_path) -> None:
    file = tmp_path / "new" / "contexts.toml"
    odd: dict[str, str | bool] = {"bootstrap": 'a"b\\c\u00e4\x7f', "tls": True}
    contexts = Contexts("prod", {"prod": PROD, 'od"d name.x': odd})
    save(file, contexts)
    assert load(file) == contexts
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("current = 1", "must contain only current"),
        ("other = 1", "must contain only current"),
        ("contexts = 1", "must contain only current"),
        ("[contexts]\nprod = 1", "contexts.prod must be a table"),
        ("[contexts.prod]\npassword = 'x'", "unknown name 'password' in contexts.prod"),
        ("[contexts.prod]\ntls = 'x'", "tls in contexts.prod must be true or false"),
        ("[contexts.prod]\nuser = 1", "user in contexts.prod must be text"),
        ("[[", "Cannot read the contexts"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(tmp_path, text, says) -> None:
    file = tmp_path / "contexts.toml"
    file.write_text(text)
    with pytest.raises(Failure, match=says):
        load(file)


# Commands


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run a command; its exit code, stdout and stderr."""
    monkeypatch.setenv("PENSTOCK_CONTEXTS_FILE", str(tmp_path / "contexts.toml"))
    monkeypatch.chdir(tmp_path)

    def ran(*words):
        code = main.run(list(words))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return ran


def test_contexts_are_added_changed_used_and_removed(run, tmp_path) -> None:
    assert run("context", "add", "prod", "-b", "prod:9094", "--tls-ca", "ca.pem") == (
        0, "", "Added context prod and made it the current one\n"
    )  # fmt: skip
    assert run("context", "add", "test", "--http", "https://test:8443", "--user", "anna")[0] == 0
    assert run("context", "set", "test", "--password-file", "~/p", "--unset", "http", "-b", "t:1")[0] == 0
    assert run("context", "use", "test")[2] == "The current context is test\n"
    known = {row["name"]: row for row in json.loads(run("context", "ls", "--json")[1])}
    assert known["test"]["current"]
    assert known["prod"]["bootstrap"] == "prod:9094"
    shown = {row["name"]: row["value"] for row in json.loads(run("context", "show", "--json")[1])}
    assert shown["bootstrap"] == "t:1"
    assert shown["password_file"].endswith("/p")
    assert shown["password_file"].startswith("/")
    assert "http" not in shown
    shown = {row["name"]: row["value"] for row in json.loads(run("context", "show", "prod", "--json")[1])}
    assert shown["tls_ca"] == str(tmp_path / "ca.pem")
    assert run("context", "rm", "test")[0] == 0
    assert run("context", "show")[0] == Exit.USAGE
    assert run("context", "rm", "test", "--if-exists")[0] == 0
    assert run("context", "use", "--none")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "x"), "A context needs an address"),
        (("add", "x", "-b", "a:1", "--tls-key", "k"), "A private key needs its certificate"),
        (("add", "x", "-b", "a:1", "--user", "u", "--token-file", "t"), "not both"),
        (("add", "", "-b", "a:1"), "must not be empty"),
        (("set", "nobody", "--tls"), "There is no context 'nobody'"),
        (("use", "nobody"), "There is no context 'nobody'"),
        (("use",), "Write the name of a context, or --none"),
        (("rm", "nobody"), "There is no context 'nobody'"),
    ],
)
def test_mistakes_with_contexts_are_wrong_usage(run, tmp_path, words, says) -> None:
    code, _, err = run("context", *words)
    assert code == Exit.USAGE
    assert says in err
    assert not (tmp_path / "contexts.toml").exists()


def test_a_context_is_not_replaced_by_accident(run) -> None:
    run("context", "add", "prod", "-b", "a:1")
    assert run("context", "add", "prod", "-b", "b:1")[0] == Exit.FAILED


def test_a_context_without_the_address_that_a_command_needs_is_reported(run) -> None:
    run("context", "add", "prod", "-b", "a:1")
    code, _, err = run("queue", "ls")
    assert code == Exit.USAGE
    assert "The context 'prod' has no address for --http" in err


@pytest.mark.parametrize(
    "noun", ["topic", "produce", "consume", "group", "queue", "dlq", "why", "sink", "sql", "bench"]
)
def test_every_command_that_connects_has_the_options_of_the_connection(noun) -> None:
    def commands(command):
        return (
            [each for child in command.commands.values() for each in commands(child)]
            if hasattr(command, "commands")
            else [command]
        )

    found = commands(typer.main.get_command(main.build(noun)))
    assert found
    for command in found:
        options = {name for parameter in command.params for name in parameter.opts}
        assert {"--context", "--tls", "--tls-ca", "--user", "--password-file", "--token-file"} <= options, command.name
        assert "--password" not in options
        assert "--token" not in options


@pytest.mark.parametrize("words", [("serve",), ("config", "show"), ("log", "verify"), ("context", "ls")])
def test_a_command_that_does_not_connect_has_none(words, capsys) -> None:
    assert main.run([*words, "--help"]) == 0
    assert "--token-file" not in capsys.readouterr().out


@pytest.fixture
def secure(tmp_path):
    """A broker with TLS that takes one password."""
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text("pencil\n")

    def authenticate(request):
        right = request.auth_bytes == b"\0anna\0pencil"
        return SaslAuthenticateResponse(error_code=0 if right else 58, error_message=None if right else "No.")

    handlers = {
        ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]),
        ApiKey.SASL_AUTHENTICATE: authenticate,
    }
    broker = ScriptedBroker(handlers, tls=context)
    broker.handlers[ApiKey.METADATA] = lambda _: MetadataResponse(
        brokers=[MetadataResponseBroker(1, "127.0.0.1", broker.port)]
    )
    with broker:
        yield broker


def test_a_command_connects_with_options(run, secure) -> None:
    words = ("topic", "ls", "-b", secure.bootstrap, "--tls-ca", "ca.pem", "--sasl-mechanism", "PLAIN", "--user", "anna")
    assert run(*words, "--password-file", "password") == (
        0,
        "",
        'No topics; create one with "penstock topic create NAME"\n',
    )


def test_a_password_file_that_others_can_read_is_refused(run, secure, tmp_path) -> None:
    (tmp_path / "password").chmod(0o644)
    words = ("topic", "ls", "-b", secure.bootstrap, "--tls-ca", "ca.pem", "--sasl-mechanism", "PLAIN", "--user", "anna")
    code, out, err = run(*words, "--password-file", "password")
    assert (code, out) == (Exit.USAGE, "")
    assert "chmod 600" in err
    assert "pencil" not in err


def test_a_command_connects_with_the_environment(run, secure, monkeypatch) -> None:
    variables = {"BOOTSTRAP": secure.bootstrap, "TLS_CA": "ca.pem", "USER": "anna", "PASSWORD": "pencil"}
    for name, value in {**variables, "SASL_MECHANISM": "PLAIN"}.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    assert run("topic", "ls")[0] == 0


def test_a_command_connects_with_a_context(run, secure) -> None:
    words = ("-b", secure.bootstrap, "--tls-ca", "ca.pem", "--sasl-mechanism", "PLAIN", "--user", "anna")
    run("context", "add", "prod", *words, "--password-file", "password")
    assert run("topic", "ls")[0] == 0
    assert run("topic", "ls", "--context", "prod")[0] == 0


def test_a_wrong_password_is_reported_and_not_shown(run, secure, tmp_path) -> None:
    (tmp_path / "wrong").touch(mode=0o600)
    (tmp_path / "wrong").write_text("s3cr3t-mark")
    words = ("topic", "ls", "-b", secure.bootstrap, "--tls-ca", "ca.pem", "--sasl-mechanism", "PLAIN", "--user", "anna")
    code, out, err = run(*words, "--password-file", "wrong")
    assert code == Exit.FAILED
    assert "refused user 'anna'" in err
    assert "s3cr3t-mark" not in out + err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--tls-ca", "ca.pem", "--tls-server-name", "other"), Exit.UNREACHABLE, "is not valid for 'other'"),
        (("--tls",), Exit.UNREACHABLE, "is not signed by a CA that this client trusts"),
        ((), Exit.UNREACHABLE, "uses TLS: connect with --tls"),
        (("--tls-ca", "missing.pem"), Exit.USAGE, "Cannot read the CA file missing.pem"),
        (("--user", "anna"), Exit.USAGE, "There is no password for user 'anna'"),
    ],
)
def test_mistakes_are_named(run, secure, words, code, says) -> None:
    done = run("topic", "ls", "-b", secure.bootstrap, *words)
    assert done[0] == code
    assert says in done[2]
