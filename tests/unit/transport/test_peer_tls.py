"""The certificate of a node: what is refused before any other node sees it, and what happens when its files change."""

import ssl
from pathlib import Path

import pytest

from penstock.settings import PeerTlsMode, TlsSettings
from penstock.transport.peer_tls import PLAIN, NodeContext, PeerTls, fingerprint_of, names_in, node_uri
from tests.support.node_certificates import CLUSTER, DAY, Authority, authority

REQUIRE, ACCEPT, OFF = PeerTlsMode.REQUIRE, PeerTlsMode.ACCEPT, PeerTlsMode.OFF
URI = f"penstock://{CLUSTER}/node/1"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return authority(tmp_path)


def made(files: TlsSettings, mode: PeerTlsMode = REQUIRE) -> PeerTls:
    return PeerTls(mode, CLUSTER, 1, files)


def replaced(files: TlsSettings, **changed: str) -> TlsSettings:
    return TlsSettings(
        cert_file=changed.get("cert_file", files.cert_file),
        key_file=changed.get("key_file", files.key_file),
        ca_file=changed.get("ca_file", files.ca_file),
    )


def test_the_name_of_a_node_has_its_cluster_and_its_id() -> None:
    assert node_uri("shop", 7) == "penstock://shop/node/7"


@pytest.mark.parametrize("mode", [ACCEPT, REQUIRE])
def test_a_certificate_for_another_node_or_for_none_is_refused(ours: Authority, mode: PeerTlsMode) -> None:
    for files in (
        ours.node(2),
        ours.node(1, cluster="another"),
        ours.node(11),
        ours.certified("none", []),
        ours.certified("both", [URI, f"penstock://{CLUSTER}/node/2"]),
    ):
        with pytest.raises(ValueError, match=f"subject alternative name URI:{URI}"):
            made(files, mode)


def test_other_names_beside_it_are_no_matter(ours: Authority) -> None:
    assert made(ours.certified("web", [URI, "https://example.com/node/2"])).certificate is not None


def test_an_expired_certificate_is_refused_with_its_date(ours: Authority) -> None:
    with pytest.raises(ValueError, match=r"expired on \d{4}-\d\d-\d\d; renew it"):
        made(ours.node(1, age=3 * DAY))


def test_files_that_cannot_be_used_are_named(ours: Authority, tmp_path: Path) -> None:
    files, other = ours.node(1), ours.node(1, name="other")
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate\n")
    for wrong, said in (
        (TlsSettings(), r"\[tls\.peer\]"),
        (replaced(files, ca_file=""), r"ca_file in \[tls\.peer\]"),
        (replaced(files, cert_file=str(tmp_path / "absent.pem")), r"absent\.pem: no such file"),
        (replaced(files, cert_file=str(empty)), r"empty\.pem has no certificate"),
        (replaced(files, ca_file=str(empty)), r"empty\.pem has no certificates"),
        (replaced(files, key_file=other.key_file), "is not the private key of"),
    ):
        with pytest.raises(ValueError, match=said):
            made(wrong)


def test_a_key_that_others_can_read_is_refused(ours: Authority) -> None:
    files = ours.node(1)
    Path(files.key_file).chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        made(files)


def test_both_directions_need_tls_1_3_and_a_certificate_of_the_authority(ours: Authority) -> None:
    tls = made(ours.node(1))
    assert tls.certificate is not None
    for context in (tls.certificate.context, tls.certificate.client_context):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert len(context.get_ca_certs()) == 1
    assert tls.certificate.context.num_tickets == 0


def test_the_mode_and_what_the_other_node_offers_decide(ours: Authority) -> None:
    files = ours.node(1)
    for mode, is_offered_there, is_used in (
        (OFF, False, False),
        (OFF, True, False),
        (ACCEPT, False, False),
        (ACCEPT, True, True),
        (REQUIRE, False, True),
        (REQUIRE, True, True),
    ):
        assert (made(files, mode).outgoing(is_offered_there=is_offered_there) is not None) is is_used
    assert (PLAIN.is_offered, PLAIN.is_required, PLAIN.certificate) == (False, False, None)


def test_new_files_are_for_new_connections_in_both_directions(ours: Authority) -> None:
    files = ours.node(1)
    tls = made(files)
    assert tls.certificate is not None
    before, to_others = tls.certificate.context, tls.certificate.client_context
    ours.node(1)
    tls.certificate.reload()
    after = tls.certificate.context
    assert isinstance(before, NodeContext)
    assert isinstance(after, NodeContext)
    assert after is not before
    assert tls.certificate.client_context is not to_others
    shown = fingerprint_of(ssl.PEM_cert_to_DER_cert(Path(files.cert_file).read_text()))
    assert after.fingerprint == shown != before.fingerprint


@pytest.mark.parametrize("what", ["another node's", "an expired", "no"])
def test_files_that_are_wrong_leave_the_certificate_of_before(
    ours: Authority, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = ours.node(1)
    tls = made(files)
    assert tls.certificate is not None
    before = tls.certificate.context
    if what == "no":
        Path(files.cert_file).unlink()
    else:
        wrong = ours.node(2) if what == "another node's" else ours.node(1, name="old", age=3 * DAY)
        Path(files.cert_file).write_bytes(Path(wrong.cert_file).read_bytes())
        Path(files.key_file).write_bytes(Path(wrong.key_file).read_bytes())
    tls.certificate.reload()
    assert tls.certificate.context is before
    assert "the old one stays in use" in caplog.text


def test_only_names_of_nodes_count() -> None:
    names = (("DNS", URI), ("URI", "https://x"), ("URI", URI), ("URI", f"{URI}\0"))
    assert names_in({"subjectAltName": names}) == [URI, f"{URI}\0"]
    assert names_in({}) == []
    assert names_in(None) == []
