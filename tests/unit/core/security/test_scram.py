"""SCRAM: the vectors of the RFCs, and that nothing but the right proof passes."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.security.scram import (
    ScramError,
    ScramExchange,
    ScramHash,
    ScramKeys,
    fake_keys,
    matches,
    new_keys,
    saslprep,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
KEYS = {kind: new_keys(kind, "pencil", SALT, 4096) for kind in ScramHash}


def exchange(kind: ScramHash = ScramHash.SHA_256, keys: ScramKeys | None = None) -> ScramExchange:
    return ScramExchange(kind, lambda _user: keys or KEYS[kind], SERVER_NONCE)


def proof(kind: ScramHash, password: str, first_bare: str, server_first: str, without_proof: str) -> str:
    """As a client computes it."""
    fields = dict(part.split("=", 1) for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(kind.digest, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", kind.digest)
    stored = hashlib.new(kind.digest, client_key).digest()
    signature = hmac.digest(stored, f"{first_bare},{server_first},{without_proof}".encode(), kind.digest)
    return base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()


def test_the_exchange_of_rfc_7677() -> None:
    server = exchange()
    assert server.first(FIRST) == f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert server.final(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.user == "user"


def test_what_is_stored_of_the_password_of_rfc_7677() -> None:
    keys = KEYS[ScramHash.SHA_256]
    assert base64.b64encode(keys.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(keys.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


@pytest.mark.parametrize("kind", ScramHash)
@given(password=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20))
def test_only_the_right_password_passes(kind: ScramHash, password: str) -> None:
    server = exchange(kind)
    first_bare = "n=user,r=abc"
    answer = server.first(f"n,,{first_bare}".encode()).decode()
    without_proof = f"c=biws,r=abc{SERVER_NONCE}"
    final = f"{without_proof},p={proof(kind, password, first_bare, answer, without_proof)}".encode()
    if password == "pencil":
        assert server.final(final).startswith(b"v=")
    else:
        with pytest.raises(ScramError):
            server.final(final)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,n=us\x00er,r=abc",
        b"n,,n=user,r=a\x00bc",
        b"n,,n=user,r=a\xc3\xbcbc",
        b"n,a=other,n=user,r=abc",
        b"n,user,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=\xff,r=abc",
    ],
)
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        exchange().first(message)


def test_commas_and_equals_signs_in_names_are_escaped() -> None:
    server = exchange()
    server.first(b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc")
    assert server.user == "a,b=c"


@pytest.mark.parametrize(
    "final",
    [
        b"",
        FINAL.replace(SERVER_NONCE.encode(), b"another"),
        FINAL.replace(CLIENT_NONCE.encode(), b""),
        FINAL.replace(b"k0,p", b"k0x,p"),
        FINAL.replace(b"biws", b"eSws"),
        FINAL.replace(b"biws", b"####"),
        FINAL.replace(b"dHzb", b"dHzc"),
        FINAL.replace(b"p=dHzb", b"p=####"),
        FINAL[: FINAL.index(b",p=")],
        FINAL[:-8],
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    ],
)
def test_a_final_message_that_proves_nothing_is_refused(final: bytes) -> None:
    server = exchange()
    server.first(FIRST)
    with pytest.raises(ScramError):
        server.final(final)


def test_the_nonce_of_old_librdkafka_is_taken_with_its_own_part_twice() -> None:
    server = exchange()
    answer = server.first(b"n,,n=user,r=abc").decode()
    without_proof = f"c=biws,r=abcabc{SERVER_NONCE}"
    made = proof(ScramHash.SHA_256, "pencil", "n=user,r=abc", answer, without_proof)
    assert server.final(f"{without_proof},p={made}".encode()).startswith(b"v=")


def test_a_proof_is_worth_nothing_with_another_nonce() -> None:
    server = ScramExchange(ScramHash.SHA_256, lambda _user: KEYS[ScramHash.SHA_256], "fresh")
    server.first(FIRST)
    with pytest.raises(ScramError):
        server.final(FINAL)


def test_a_user_that_does_not_exist_has_always_the_same_salt_and_no_password() -> None:
    one, again = (fake_keys(ScramHash.SHA_256, b"secret", "anna") for _ in range(2))
    assert one == again
    assert one.salt != fake_keys(ScramHash.SHA_256, b"secret", "bert").salt
    assert one.salt != fake_keys(ScramHash.SHA_256, b"other", "anna").salt
    real = new_keys(ScramHash.SHA_256, "x", b"s" * len(one.salt))
    assert (len(one.salt), one.iterations, len(one.stored_key)) == (len(real.salt), real.iterations, 32)
    server = ScramExchange(ScramHash.SHA_256, lambda _user: one, SERVER_NONCE)
    server.first(FIRST)
    with pytest.raises(ScramError, match="Wrong password"):
        server.final(FINAL)


@pytest.mark.parametrize("kind", ScramHash)
def test_a_stored_password_matches_itself_alone(kind: ScramHash) -> None:
    keys = new_keys(kind, "secret", b"salt")
    assert matches(kind, keys, "secret")
    assert not matches(kind, keys, "Secret")
    assert "secret" not in repr(keys)
    assert keys.stored_key.hex() not in repr(keys)


@pytest.mark.parametrize(
    ("given_text", "prepared"),
    # The examples of RFC 4013, section 3.
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX"), ("a\u00a0b", "a b")],
)
def test_texts_are_prepared_as_rfc_4013_says(given_text: str, prepared: str) -> None:
    assert saslprep(given_text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "a\u0000", "\ue000", "\ud800", "a\u0627b"])
def test_texts_that_rfc_4013_prohibits_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="It "):
        saslprep(text)
