"""The value that holds TLS and credentials: what it refuses, and that it never shows a secret."""

import dataclasses
import pickle
from pathlib import Path

import pytest

from penstock.client.errors import ClientError, InvalidSecurity
from penstock.client.security import UNSECURED, ClientSecurity, Mechanism
from penstock.secret_files import SECRET_BYTES_MAX

MARK = "s3cr3t-mark"


def test_without_anything_there_is_neither_tls_nor_a_login() -> None:
    assert not UNSECURED.uses_tls
    assert UNSECURED.sasl_mechanism is None
    assert UNSECURED.authorization() is None


@pytest.mark.parametrize("given", [{"ca_file": "ca.pem"}, {"ca_pem": "---"}, {"cert_file": "c.pem"}, {"tls": True}])
def test_a_ca_or_a_certificate_means_tls(given) -> None:
    assert ClientSecurity(**given).uses_tls


@pytest.mark.parametrize(
    ("given", "mechanism"),
    [
        ({"user": "anna", "password": "x"}, Mechanism.SCRAM_SHA_256),
        ({"user": "anna", "password": "x", "mechanism": Mechanism.PLAIN}, Mechanism.PLAIN),
        ({"token": "x"}, Mechanism.OAUTHBEARER),
        ({"token_file": "x"}, Mechanism.OAUTHBEARER),
    ],
)
def test_the_credentials_choose_the_mechanism(given, mechanism) -> None:
    assert ClientSecurity(**given).sasl_mechanism is mechanism


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"user": "anna"}, "There is no password for user 'anna'"),
        ({"password": MARK}, "A password needs the name of its user"),
        ({"user": "anna", "token": MARK}, "a user with a password, or a token, not both"),
        ({"user": "anna", "password": MARK, "password_file": "f"}, "as a file or as text, not both"),
        ({"token": MARK, "token_file": "f"}, "as a file or as text, not both"),
        ({"mechanism": Mechanism.PLAIN}, "PLAIN needs a user and a password"),
        ({"mechanism": Mechanism.OAUTHBEARER}, "OAUTHBEARER needs a token"),
        ({"mechanism": Mechanism.OAUTHBEARER, "user": "a", "password": MARK}, "OAUTHBEARER needs a token"),
        ({"key_file": "k.pem"}, "A private key needs its certificate"),
        ({"key_pem": MARK}, "A private key needs its certificate"),
        ({"tls": False, "ca_file": "ca.pem"}, "but TLS is off"),
        ({"ca_file": "a", "ca_pem": "b"}, "not both"),
    ],
)
def test_incomplete_or_contradicting_settings_are_refused_without_showing_them(given, says) -> None:
    with pytest.raises(InvalidSecurity, match=says) as refused:
        ClientSecurity(**given)
    assert MARK not in str(refused.value)
    assert isinstance(refused.value, ClientError)
    assert isinstance(refused.value, ValueError)


def test_no_secret_is_in_its_representation() -> None:
    secret = {"password": MARK, "key_password": MARK, "key_pem": MARK}
    shown = repr(ClientSecurity(user="anna", cert_pem="c", **secret))
    assert MARK not in shown
    assert "anna" in shown
    assert MARK not in repr(ClientSecurity(token=MARK))
    hidden = {each.name for each in dataclasses.fields(ClientSecurity) if not each.repr}
    assert hidden == {"password", "token", "key_password", "key_pem"}


def test_it_is_the_same_in_another_process() -> None:
    security = ClientSecurity(ca_file="ca.pem", user="anna", password=MARK)
    assert pickle.loads(pickle.dumps(security)) == security


def test_a_password_file_is_read_each_time_without_the_end_of_its_line(tmp_path) -> None:
    file = tmp_path / "password"
    file.touch(mode=0o600)
    security = ClientSecurity(user="anna", password_file=str(file))
    for written, read in (
        (b"first\n", "first"),
        (b" second \r\n", " second "),
        ("dritt\u00e4\n\n".encode(), "dritt\u00e4"),
    ):
        file.write_bytes(written)
        assert security.read_password() == read


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (MARK.encode() + b"\nmore\n", "has more than one line"),
        (MARK.encode() + b"\0", "control character"),
        (b"\xff", "is not UTF-8"),
        (b"x" * (SECRET_BYTES_MAX + 1), "has more than 65536 bytes"),
    ],
)
def test_a_file_that_is_not_one_line_of_text_is_refused_without_showing_it(tmp_path, content, says) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_bytes(content)
    with pytest.raises(InvalidSecurity, match=says) as refused:
        ClientSecurity(token_file=str(file)).read_token()
    assert MARK not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620])
def test_a_file_that_other_users_can_read_is_refused_without_showing_it(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text(MARK)
    file.chmod(mode)
    for read in (
        ClientSecurity(token_file=str(file)).read_token,
        ClientSecurity(user="anna", password_file=str(file)).read_password,
        ClientSecurity(user="anna", password_file=str(file)).authorization,
    ):
        with pytest.raises(InvalidSecurity, match=f"Other users can read {file} .*chmod 600") as refused:
            read()
        assert MARK not in str(refused.value)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(InvalidSecurity, match=r"Cannot read .*missing: no such file"):
        ClientSecurity(user="anna", password_file=str(tmp_path / "missing")).read_password()


def test_http_gets_basic_for_a_user_and_bearer_for_a_token() -> None:
    assert ClientSecurity(user="anna", password="p\u00e4ss:word").authorization() == "Basic YW5uYTpww6Rzczp3b3Jk"
    assert ClientSecurity(token="abc").authorization() == "Bearer abc"
    with pytest.raises(InvalidSecurity, match="contains a colon"):
        ClientSecurity(user="an:na", password="x").authorization()
