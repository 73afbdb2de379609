"""New certificates while clients are connected: of a process, by SIGHUP and by itself."""

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.address import parse_address
from penstock.cli.issuing import Wanted
from penstock.testing.process import BrokerProcess
from tests.support.certificates import HOSTS, Authority, Pair, client_auth, tls_settings
from tests.support.waiting import eventually

SECONDS_MAX = 60.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.server(name="old")


@pytest.fixture
def broker(tmp_path: Path, authority: Authority, pair: Pair) -> Iterator[BrokerProcess]:
    door = "127.0.0.1:0"
    process = BrokerProcess(tmp_path / "data", tls_settings(authority, pair), http=door, tcp=door, grpc=door).start()
    yield process
    assert process.stop() == 0


def connect(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection(parse_address(address), SECONDS_MAX)
    return context.wrap_socket(sock, server_hostname="localhost")


def name_at(address: str, context: ssl.SSLContext) -> str:
    with connect(address, context) as sock:
        certificate = sock.getpeercert()
    assert certificate is not None
    return certificate["subject"][0][0][1]  # type: ignore[index,return-value]


def ask(sock: ssl.SSLSocket) -> bytes:
    sock.sendall(b'{"type":"nothing"}\n')
    return sock.recv(1000)


@pytest.mark.parametrize("by_signal", [True, False], ids=["SIGHUP", "by itself"])
def test_every_door_gets_the_new_certificate_and_open_connections_continue(
    broker: BrokerProcess, authority: Authority, pair: Pair, by_signal: bool
) -> None:
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
    doors = ("kafka", "http", "tcp", "grpc")
    context = authority.context_with()
    grpc_context = authority.context_with()
    grpc_context.set_alpn_protocols(["h2"])

    def names() -> set[str]:
        return {name_at(broker.addresses[door], grpc_context if door == "grpc" else context) for door in doors}

    assert names() == {"old"}
    with (
        connect(broker.addresses["tcp"], context) as before,
        grpc.secure_channel(broker.addresses["grpc"], credentials) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS_MAX).status == 1
        assert ask(before)
        pair.write(authority.issue(Wanted("new", HOSTS, is_server=True)))
        if by_signal:
            broker.signal(signal.SIGHUP)
        eventually(lambda: names() == {"new"})
        assert ask(before)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS_MAX).status == 1


def test_a_certificate_that_does_not_fit_leaves_the_old_one_in_use(
    broker: BrokerProcess, authority: Authority, pair: Pair
) -> None:
    pair.certificate.write_text("half a certificate")
    broker.signal(signal.SIGHUP)
    eventually(lambda: "certificate not reloaded" in broker.log_text())
    assert name_at(broker.addresses["http"], authority.context) == "old"


def test_clients_of_an_authority_that_was_removed_are_refused_from_then_on(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    leaving = Authority(tmp_path, "leaving")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(authority.file.read_bytes() + leaving.file.read_bytes())
    settings = {**tls_settings(authority, pair), **client_auth(authority), "tls.ca_file": str(trusted)}
    context = authority.context_with(leaving.client())
    process = BrokerProcess(tmp_path / "data", settings, tcp="127.0.0.1:0").start()
    try:
        with connect(process.addresses["tcp"], context) as before:
            assert ask(before)
            trusted.write_bytes(authority.file.read_bytes())
            process.signal(signal.SIGHUP)
            eventually(lambda: "certificate reloaded" in process.log_text())
            with connect(process.addresses["tcp"], context) as sock, pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
                sock.recv(1)
            assert ask(before), "who is in stays in until the connection ends"
    finally:
        assert process.stop() == 0
