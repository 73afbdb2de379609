"""The client's half of SASL, with the examples of the RFCs, and servers that cannot be trusted."""

import base64
import hashlib
import hmac

import pytest

from penstock.client.errors import AuthenticationFailed
from penstock.client.sasl import ITERATIONS_MAX, ITERATIONS_MIN, ScramExchange, exchange_for
from penstock.client.security import ClientSecurity, Mechanism

NONCE = "rOprNGfwEbeRWgbNEkqO"
"""Of the example in RFC 7677."""
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def scram(user="user", password="pencil", hash_name="sha256", nonce=NONCE):
    return ScramExchange(hash_name, user, password, nonce=nonce)


def test_the_example_of_rfc_7677() -> None:
    exchange = scram()
    assert exchange.start() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.answer(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


def test_a_server_with_the_keys_of_sha_512_is_believed() -> None:
    exchange = scram(hash_name="sha512")
    first = exchange.start().decode().removeprefix("n,,")
    proof = exchange.answer(SERVER_FIRST)
    final = proof.decode().rpartition(",p=")[0]
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    key = hmac.digest(salted, b"Server Key", "sha512")
    signature = hmac.digest(key, f"{first},{SERVER_FIRST.decode()},{final}".encode(), "sha512")
    assert exchange.answer(b"v=" + base64.b64encode(signature)) is None


def test_each_login_has_a_nonce_of_its_own() -> None:
    security = ClientSecurity(user="anna", password="x")
    assert len({exchange_for(security)[1].start() for _ in range(20)}) == 20


def test_commas_and_equal_signs_in_names_are_escaped() -> None:
    assert scram(user="a,b=c").start().startswith(b"n,,n=a=2Cb=3Dc,r=")


@pytest.mark.parametrize(
    "final", [b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", b"v=", b"", b"v=!", b"x=1", b"\xff", b"v"]
)
def test_a_server_without_the_right_signature_is_refused(final) -> None:
    exchange = scram()
    exchange.start()
    exchange.answer(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match=r"did not prove that it knows the user|is not SCRAM|is not text"):
        exchange.answer(final)


def changed(**fields):
    parts = dict(part.split("=", 1) for part in SERVER_FIRST.decode().split(","))
    return ",".join(f"{name}={value}" for name, value in {**parts, **fields}.items()).encode()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (changed(r="another nonce"), "nonce of the server does not continue"),
        (changed(r=NONCE), "nonce of the server does not continue"),
        (changed(r=""), "nonce of the server does not continue"),
        (changed(i=str(ITERATIONS_MIN - 1)), "asks for .* iterations instead of"),
        (changed(i=str(ITERATIONS_MAX + 1)), "asks for .* iterations instead of"),
        (changed(i="9" * 5000), "asks for .* iterations instead of"),
        (changed(i="-1"), "asks for .* iterations instead of"),
        (changed(i="\u0664\u0660\u0669\u0666"), "asks for .* iterations instead of"),
        (changed(s=""), "salt of the server is empty"),
        (changed(s="A" * 2000), "salt of the server is empty or too long"),
        (changed(s="***"), "not SCRAM"),
        (b"m=must-know," + SERVER_FIRST, "not SCRAM"),
        (b"r=" + NONCE.encode() + b"x", "not SCRAM"),
        (b"", "not SCRAM"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_a_first_message_that_is_not_to_be_trusted_is_refused(message, says) -> None:
    exchange = scram()
    exchange.start()
    with pytest.raises(AuthenticationFailed, match=says):
        exchange.answer(message)


def test_an_error_of_the_server_is_a_wrong_password() -> None:
    exchange = scram()
    exchange.start()
    exchange.answer(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match="The user name or the password is wrong"):
        exchange.answer(b"e=invalid-proof")


def test_plain_sends_user_and_password() -> None:
    mechanism, exchange = exchange_for(ClientSecurity(user="anna", password="p\u00e4ss", mechanism=Mechanism.PLAIN))
    assert mechanism is Mechanism.PLAIN
    assert exchange.start() == "\0anna\0p\u00e4ss".encode()
    assert exchange.answer(b"") is None


def test_a_token_is_sent_as_in_rfc_7628_and_a_refusal_is_acknowledged() -> None:
    mechanism, exchange = exchange_for(ClientSecurity(token="abc.def"))
    assert mechanism is Mechanism.OAUTHBEARER
    assert exchange.start() == b"n,,\x01auth=Bearer abc.def\x01\x01"
    assert exchange.answer(b'{"status":"invalid_token"}') == b"\x01"
    assert exchange.answer(b"") is None


def test_an_api_key_is_a_password_of_its_own_id() -> None:
    mechanism, exchange = exchange_for(ClientSecurity(token="psk_00ff_se_cret"))
    assert mechanism is Mechanism.PLAIN
    assert exchange.start() == b"\x0000ff\x00psk_00ff_se_cret"
    forced, _ = exchange_for(ClientSecurity(token="psk_00ff_se_cret", mechanism=Mechanism.OAUTHBEARER))
    assert forced is Mechanism.OAUTHBEARER
