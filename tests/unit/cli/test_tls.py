"""``penstock tls``: certificates that a broker and its clients accept, and nothing overwritten."""

import json
import ssl
import stat
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.failures import Exit
from penstock.settings import PeerTlsMode, TlsSettings
from penstock.transport.peer_tls import PeerTls


def made(folder: Path, *more: str) -> set[str]:
    assert main.run(["tls", "init", "--dir", str(folder), *more]) == Exit.OK
    return {file.name for file in folder.iterdir()}


def shown(file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    capsys.readouterr()
    assert main.run(["tls", "show", str(file), "-o", "json"]) == Exit.OK
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
    return found[0]


def test_init_makes_an_authority_a_server_and_a_client(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tls"
    names = ["ca", "server", "client"]
    assert made(folder) == {f"{name}.{kind}" for name in names for kind in ("crt", "key")}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in names:
        assert stat.S_IMODE((folder / f"{name}.key").stat().st_mode) == 0o600


def test_each_side_accepts_the_certificate_of_the_other(tmp_path: Path) -> None:
    made(tmp_path, "--host", "broker.example.com", "--host", "10.0.0.7", "--client", "anna")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    server.load_verify_locations(tmp_path / "ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    client.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    for host in ("broker.example.com", "10.0.0.7", "localhost", "127.0.0.1", "::1"):
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = client.wrap_bio(to_client, to_server, server_hostname=host)
        theirs = server.wrap_bio(to_server, to_client, server_side=True)
        for side in (ours, theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        theirs.do_handshake()
        assert dict(part[0] for part in theirs.getpeercert()["subject"]) == {"commonName": "anna"}


def test_nodes_accept_their_certificates_as_their_own_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, "--cluster", "shop", "--node", "1", "--node", "2")
    assert "--peer-tls require" in capsys.readouterr().out
    files = TlsSettings(
        cert_file=str(tmp_path / "node-2.crt"), key_file=str(tmp_path / "node-2.key"), ca_file=str(tmp_path / "ca.crt")
    )
    assert PeerTls(PeerTlsMode.REQUIRE, "shop", 2, files).certificate is not None
    for cluster, node in (("shop", 1), ("shop2", 2)):
        with pytest.raises(ValueError, match=f"URI:penstock://{cluster}/node/{node}"):
            PeerTls(PeerTlsMode.REQUIRE, cluster, node, files)


def test_nodes_get_their_identity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = made(tmp_path, "--cluster", "shop", "--node", "1", "--node", "2", "--host", "n1.example")
    assert {"node-1.crt", "node-1.key", "node-2.crt", "node-2.key"} <= files
    found = shown(tmp_path / "node-2.crt", capsys)
    assert found["subject"] == "CN=node-2"
    assert found["names"] == "localhost, 127.0.0.1, ::1, n1.example, penstock://shop/node/2"


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    (tmp_path / "ca.crt").unlink()
    assert main.run(["tls", "init", "--dir", str(tmp_path)]) == Exit.FAILED
    assert "already exists" in capsys.readouterr().err
    assert not (tmp_path / "ca.crt").exists()
    assert all(file.read_bytes() == before[file] for file in tmp_path.iterdir())


def test_init_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path)
    said = capsys.readouterr().out
    assert f"penstock serve --tls-cert {tmp_path}/server.crt --tls-key {tmp_path}/server.key" in said
    assert "PRIVATE KEY" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--node", "1"], "--node needs --cluster NAME"),
        (["--node", "1", "--cluster", "a/b"], "--node needs --cluster NAME"),
        (["--node", "-1", "--cluster", "shop"], "must be a number from 0"),
    ],
)
def test_mistakes_make_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main.run(["tls", "init", "--dir", str(tmp_path / "tls"), *arguments]) == Exit.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "tls").exists()


def test_show_tells_what_is_in_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path)
    capsys.readouterr()
    assert main.run(["tls", "show", str(tmp_path / "server.crt")]) == Exit.OK
    said = capsys.readouterr().out
    assert "CN=Penstock development CA" in said
    assert "localhost, 127.0.0.1, ::1" in said


@pytest.mark.parametrize("content", [None, b"nothing of the kind"])
def test_show_names_a_file_that_is_no_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    file = tmp_path / "x.crt"
    if content is not None:
        file.write_bytes(content)
    assert main.run(["tls", "show", str(file)]) == Exit.FAILED
    assert str(file) in capsys.readouterr().err
