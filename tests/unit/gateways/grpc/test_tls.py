"""gRPC's own TLS: which settings it cannot keep, and that it follows the files."""

import logging
from pathlib import Path

import pytest

from penstock.cli.issuing import Wanted
from penstock.gateways.grpc.tls import _Followed, credentials_of
from penstock.settings import ClientAuth, TlsSettings, TlsVersion
from penstock.transport.tls import ServerTls
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_of(authority: Authority, **more: object) -> ServerTls:
    pair = authority.server()
    settings = TlsSettings(cert_file=str(pair.certificate), key_file=str(pair.key), ca_file=str(authority.file), **more)
    return ServerTls(settings, lambda _: "anna")


def test_a_minimum_that_grpc_cannot_keep_is_refused(authority: Authority) -> None:
    with pytest.raises(ValueError, match=r"gRPC cannot refuse TLS 1\.2.*\[tls\.grpc\]"):
        credentials_of(tls_of(authority, min_version=TlsVersion.TLS_1_3))


def test_clients_are_not_asked_where_a_certificate_is_only_requested(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert credentials_of(tls_of(authority, client_auth=ClientAuth.REQUESTED))
    assert "not asked for one" in caplog.text


def test_new_contents_are_handed_over_once(authority: Authority) -> None:
    tls = tls_of(authority)
    followed = _Followed(tls)
    assert followed.changed() is None
    authority.server().write(authority.issue(Wanted("new", is_server=True)))
    tls.reload()
    assert followed.changed() is not None
    assert followed.changed() is None
