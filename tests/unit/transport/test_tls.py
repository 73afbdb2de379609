"""TLS contexts: which files make one, and how they follow the files."""

import ssl
from pathlib import Path

import pytest

from penstock.cli.issuing import Wanted
from penstock.settings import ClientAuth, TlsSettings, TlsVersion
from penstock.transport.tls import ServerTls, reload_all
from tests.support.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_of(pair: Pair, **more: object) -> ServerTls:
    settings = TlsSettings(cert_file=str(pair.certificate), key_file=str(pair.key), **more)
    return ServerTls(settings, lambda certificate: certificate.hex())


def greeted(tls: ServerTls, client: ssl.SSLContext) -> ssl.SSLObject:
    """A handshake in memory; the client's side of it."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = tls.context.wrap_bio(to_server, to_client, server_side=True)
    unfinished = {ours, theirs}
    while unfinished:
        for side in (ours, theirs):
            try:
                side.do_handshake()
                unfinished.discard(side)
            except ssl.SSLWantReadError:
                continue
    return ours


def test_the_context_allows_only_good_versions_and_ciphers(authority: Authority) -> None:
    context = tls_of(authority.server()).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    names = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert names
    assert all(name.startswith("ECDHE-") and ("GCM" in name or "CHACHA20" in name) for name in names)
    strict = tls_of(authority.server(), min_version=TlsVersion.TLS_1_3)
    assert strict.context.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (ClientAuth.NONE, ssl.CERT_NONE),
        (ClientAuth.REQUESTED, ssl.CERT_OPTIONAL),
        (ClientAuth.REQUIRED, ssl.CERT_REQUIRED),
    ],
)
def test_clients_are_asked_for_certificates_as_configured(
    authority: Authority, mode: ClientAuth, expected: ssl.VerifyMode
) -> None:
    tls = tls_of(authority.server(), ca_file=str(authority.file), client_auth=mode)
    assert tls.context.verify_mode is expected


def test_changed_files_are_used_for_the_next_connection(authority: Authority) -> None:
    pair = authority.server()
    tls = tls_of(pair)
    before = greeted(tls, authority.context)
    tls.reload()
    assert tls.version == 1, "nothing has changed"
    pair.write(authority.issue(Wanted("new", ["localhost"], is_server=True)))
    tls.reload()
    assert tls.version == 2
    after = greeted(tls, authority.context)
    assert before.getpeercert() != after.getpeercert()
    assert after.getpeercert()["subject"] == ((("commonName", "new"),),)
    assert b"BEGIN CERTIFICATE" in tls.pems.chain


def test_an_authority_that_was_removed_does_not_count_any_more(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(authority.file.read_bytes() + other.file.read_bytes())
    tls = tls_of(authority.server(), ca_file=str(trusted), client_auth=ClientAuth.REQUIRED)
    client = authority.context_with(other.client("anna"))
    assert greeted(tls, client).version() == "TLSv1.3"
    trusted.write_bytes(authority.file.read_bytes())
    reload_all([tls])
    with pytest.raises(ssl.SSLCertVerificationError):
        greeted(tls, client)


def test_files_that_do_not_fit_leave_the_old_ones_in_use_until_they_do(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.server()
    tls = tls_of(pair)
    old = tls.context
    renewed = authority.issue(Wanted("new", ["localhost"], is_server=True))
    pair.certificate.write_bytes(renewed.certificate_pem)
    tls.reload()
    tls.reload()
    assert tls.context is old
    assert caplog.text.count("is not the private key of the certificate") == 1, "one line for each change"
    pair.key.write_bytes(renewed.key_pem)
    tls.reload()
    assert tls.context is not old


def test_a_signal_reads_the_files_whether_they_changed_or_not(authority: Authority) -> None:
    tls = tls_of(authority.server())
    tls.reload(always=True)
    assert tls.version == 2


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    good = authority.server()
    text = tmp_path / "text"
    text.write_text("no certificate")
    text.chmod(0o600)
    absent = tmp_path / "absent"
    encrypted = tmp_path / "encrypted.key"
    from cryptography.hazmat.primitives import serialization

    encrypted.touch(mode=0o600)
    encrypted.write_bytes(
        authority.issued.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    for pair, words in (
        (Pair(absent, good.key), f"Cannot read {absent}"),
        (Pair(good.certificate, absent), f"Cannot read {absent}"),
        (Pair(text, good.key), "are not a certificate and its private key"),
        (Pair(good.certificate, text), "are not a certificate and its private key"),
        (Pair(good.certificate, encrypted), "is encrypted"),
    ):
        with pytest.raises(ValueError, match=words):
            tls_of(pair)
    with pytest.raises(ValueError, match="has no certificates in PEM form"):
        tls_of(good, ca_file=str(text), client_auth=ClientAuth.REQUIRED)
    good.key.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        tls_of(good)
