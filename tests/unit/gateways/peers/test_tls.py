"""Mutual TLS between nodes, and what those try who are not the node that they say they are."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.address import Address
from penstock.cluster.links import Identity, Link
from penstock.core.security.access import INTERNAL
from penstock.errors import PenstockError, Reason
from penstock.operations.cluster import RotateClusterSecret
from penstock.settings import PeerTlsMode, TlsSettings
from penstock.transport.peer_tls import PLAIN, PeerTls, fingerprint_of, names_in
from penstock.types import NodeId
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.headers import RequestHeader, decode_response_header, frame_request
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.peers import Hello, Proof, client_proof, decode_challenge, is_proof, server_proof
from tests.support.cluster_nodes import Cluster, another_secret, until
from tests.support.node_certificates import CLUSTER, DAY, Authority, authority

SECONDS_MAX = 20.0
REQUIRE, ACCEPT, OFF = PeerTlsMode.REQUIRE, PeerTlsMode.ACCEPT, PeerTlsMode.OFF


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("others"))


def modes(ours: Authority, *by_node: PeerTlsMode) -> Callable[[int], PeerTls]:
    """The TLS of nodes 1, 2, ..."""
    made = {node_id: PLAIN if mode is OFF else ours.tls(node_id, mode) for node_id, mode in enumerate(by_node, 1)}
    return made.__getitem__


def two(path: Path, ours: Authority, *by_node: PeerTlsMode) -> Cluster:
    return Cluster(path, 1, 2, replication_factor=2, min_in_sync=2, tls=modes(ours, *(by_node or (REQUIRE, REQUIRE))))


async def linked(cluster: Cluster, tls: PeerTls | None = None) -> Link:
    """A link from node 2 to node 1."""
    caller = cluster.nodes[2]
    link = Link(NodeId(1), caller.cluster.nodes, caller.broker.entropy)
    await link.connect(Identity(NodeId(2), caller.epoch, caller.cluster.secret, tls or cluster.tls(2)))
    return link


def with_files(files: TlsSettings) -> ssl.SSLContext:
    """What somebody connects with who has these files and checks nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if files.cert_file:
        context.load_cert_chain(files.cert_file, files.key_file)
    return context


def certificate_in(files: TlsSettings) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(files.cert_file).read_text())


class Wire:
    """Somebody who speaks the nodes' protocol word by word."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, cluster: Cluster, context: ssl.SSLContext | None, node_id: int = 1) -> "Wire":
        address = cluster.up[0].cluster.nodes.address(node_id, "peer")
        return cls(*await asyncio.open_connection(address.host, address.port, ssl=context))

    async def say(self, word: msgspec.Struct | bytes) -> SaslAuthenticateResponse:
        """ConnectionError if the connection is closed without an answer."""
        api = API[ApiKey.SASL_AUTHENTICATE]
        data = word if isinstance(word, bytes) else msgspec.json.encode(word)
        asked = api.encode_request(SaslAuthenticateRequest(auth_bytes=data), 2)
        self._writer.writelines(frame_request(RequestHeader(int(ApiKey.SASL_AUTHENTICATE), 2, 1, None), asked))
        async with asyncio.timeout(SECONDS_MAX):
            try:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                body = memoryview(await self._reader.readexactly(size))
            except (asyncio.IncompleteReadError, OSError) as error:
                raise ConnectionError(str(error)) from error
        _, position = decode_response_header(body, 0, api.response_header_version(2))
        answer: SaslAuthenticateResponse = api.decode_response(body, position, 2)
        return answer

    async def is_cut(self) -> bool:
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await self._reader.read(1) == b""
            except OSError:
                return True

    @property
    def certificate(self) -> bytes:
        """The one that the other side has shown."""
        connection: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        found = connection.getpeercert(binary_form=True)
        assert found is not None
        return found

    def close(self) -> None:
        self._writer.transport.abort()


def hello(cluster: Cluster, node_id: int = 2, nonce: bytes = bytes(16), to_node: int = 1) -> Hello:
    return Hello(node_id, cluster.nodes[2].epoch, to_node, nonce, 1)


def secret_of(cluster: Cluster) -> bytes:
    found = cluster.nodes[1].cluster.secret.of(1)
    assert found is not None
    return found


# It works.


async def test_records_are_replicated_and_the_bytes_between_nodes_are_not_readable(
    tmp_path: Path, ours: Authority
) -> None:
    async with two(tmp_path, ours) as cluster:
        await cluster.create("t", (1, 2))
        assert await cluster.produce("t", b"value") == 0
        link = await linked(cluster)
        wire = link._wire
        assert wire is not None
        assert wire.transport is not None
        connection: ssl.SSLObject = wire.transport.get_extra_info("ssl_object")
        assert connection.version() == "TLSv1.3"
        assert names_in(connection.getpeercert()) == [f"penstock://{CLUSTER}/node/1"]
        await link.aclose()


@pytest.mark.parametrize(
    "by_node", [(OFF, ACCEPT), (ACCEPT, OFF), (ACCEPT, ACCEPT), (ACCEPT, REQUIRE), (REQUIRE, ACCEPT)]
)
async def test_nodes_in_the_midst_of_a_change_replicate(
    tmp_path: Path, ours: Authority, by_node: tuple[PeerTlsMode, ...]
) -> None:
    async with two(tmp_path, ours, *by_node) as cluster:
        await cluster.create("t", (1, 2), (2, 1))
        for index in (0, 1):
            assert await cluster.produce("t", b"value", index) == 0
        link = await linked(cluster)
        wire = link._wire
        assert wire is not None
        assert wire.transport is not None
        is_encrypted = wire.transport.get_extra_info("ssl_object") is not None
        assert is_encrypted is (OFF not in by_node)
        assert [cluster.nodes[1].cluster.nodes.nodes[NodeId(node)].peer_tls for node in (1, 2)] == [
            mode is not OFF for mode in by_node
        ]
        await link.aclose()


async def test_the_secret_is_rotated_under_tls_too(tmp_path: Path, ours: Authority) -> None:
    async with two(tmp_path, ours) as cluster:
        await cluster.create("t", (1, 2))
        for expected in range(3):
            await cluster.nodes[1].broker.do(RotateClusterSecret(), INTERNAL)
            assert await cluster.produce("t", b"value") == expected


# Somebody calls a node.


@pytest.mark.parametrize("who", ["another node", "another cluster", "no name", "two names", "a longer name"])
async def test_a_certificate_of_our_authority_that_does_not_name_the_caller_is_refused(
    tmp_path: Path, ours: Authority, who: str
) -> None:
    uri = f"penstock://{CLUSTER}/node/2"
    files = {
        "another node": lambda: ours.node(3, name="third"),
        "another cluster": lambda: ours.node(2, cluster="another"),
        "no name": lambda: ours.certified("client", []),
        "two names": lambda: ours.certified("twin", [uri, f"penstock://{CLUSTER}/node/3"]),
        "a longer name": lambda: ours.certified("longer", [f"{uri}2", f"https://{CLUSTER}/node/2"]),
    }[who]()
    async with two(tmp_path, ours) as cluster:
        wire = await Wire.open(cluster, with_files(files))
        answer = await wire.say(hello(cluster))
        assert answer.error_code
        assert f"URI:{uri}" in (answer.error_message or "")
        assert not answer.auth_bytes
        assert await wire.is_cut()
        wire.close()


async def test_a_nodes_certificate_is_worth_nothing_without_the_secret(tmp_path: Path, ours: Authority) -> None:
    async with two(tmp_path, ours) as cluster:
        caller = cluster.nodes[2]
        link = Link(NodeId(1), caller.cluster.nodes, caller.broker.entropy)
        with pytest.raises(PenstockError) as refused:
            await link.connect(Identity(NodeId(2), caller.epoch, await another_secret(), cluster.tls(2)))
        assert refused.value.reason is Reason.CLUSTER_AUTHORIZATION_FAILED
        await link.aclose()


@pytest.mark.parametrize("who", ["nobody", "expired", "another authority", "only for servers"])
async def test_the_handshake_of_a_caller_without_a_valid_certificate_fails(
    tmp_path: Path, ours: Authority, others: Authority, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    files, said = {
        "nobody": lambda: (TlsSettings(), "did not present a certificate"),
        "expired": lambda: (ours.node(2, name="expired", age=3 * DAY), "certificate has expired"),
        "another authority": lambda: (others.node(2), "certificate signature failure"),
        "only for servers": lambda: (
            ours.node(2, name="server", usages=(ExtendedKeyUsageOID.SERVER_AUTH,)),
            "unsuitable certificate purpose",
        ),
    }[who]()
    async with two(tmp_path, ours) as cluster:
        # With TLS 1.3 the caller hears of it after its own part of the handshake.
        wire = await Wire.open(cluster, with_files(files))
        with pytest.raises(ConnectionError):
            await wire.say(hello(cluster))
        await until(lambda: said in caplog.text, said)
        wire.close()


async def test_without_tls_a_node_is_told_what_to_do_and_nobody_else_is_answered(
    tmp_path: Path, ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(tmp_path, ours) as cluster:
        wire = await Wire.open(cluster, None)
        answer = await wire.say(hello(cluster))
        assert answer.error_code
        assert "cluster.peer_tls" in (answer.error_message or "")
        assert not answer.auth_bytes
        wire.close()
        with pytest.raises(PenstockError, match=r"cluster\.peer_tls") as refused:
            await linked(cluster, PLAIN)
        assert refused.value.reason is Reason.CLUSTER_AUTHORIZATION_FAILED
        for first in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\0\0\0\x04\0\x24\0\x63"):
            address = cluster.nodes[1].cluster.nodes.address(1, "peer")
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(first)
            async with asyncio.timeout(SECONDS_MAX):
                assert await reader.read() == b""
            writer.close()
        # Already the listener refuses it, before there is a connection of a node.
        assert "the client does not use TLS" in caplog.text


async def test_an_old_version_of_tls_is_refused(tmp_path: Path, ours: Authority) -> None:
    context = with_files(ours.node(2))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with two(tmp_path, ours) as cluster:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await Wire.open(cluster, context)


async def test_what_another_connection_said_is_worth_nothing(tmp_path: Path, ours: Authority) -> None:
    async with two(tmp_path, ours) as cluster:
        secret = secret_of(cluster)
        first = await Wire.open(cluster, with_files(ours.node(2)))
        said = hello(cluster)
        challenge = decode_challenge((await first.say(said)).auth_bytes)
        fingerprint = fingerprint_of(first.certificate)
        assert is_proof(server_proof(secret, said, challenge.nonce, fingerprint), challenge.proof)
        proof = Proof(client_proof(secret, said, challenge.nonce, fingerprint))
        again = await Wire.open(cluster, with_files(ours.node(2)))
        other = decode_challenge((await again.say(said)).auth_bytes)
        assert other.nonce != challenge.nonce
        assert (await again.say(proof)).error_code
        assert await again.is_cut()
        # It was right all the same.
        assert not (await first.say(proof)).error_code
        for wire in (first, again):
            wire.close()


async def test_a_secret_that_is_rotated_away_during_the_greeting_is_worth_nothing(
    tmp_path: Path, ours: Authority
) -> None:
    async with two(tmp_path, ours) as cluster:
        secret, said = secret_of(cluster), hello(cluster)
        wire = await Wire.open(cluster, with_files(ours.node(2)))
        challenge = decode_challenge((await wire.say(said)).auth_bytes)
        for _ in range(2):
            await cluster.nodes[1].broker.do(RotateClusterSecret(), INTERNAL)
        refused = await wire.say(Proof(client_proof(secret, said, challenge.nonce, fingerprint_of(wire.certificate))))
        assert refused.error_code
        wire.close()


@pytest.mark.parametrize("mode", [REQUIRE, ACCEPT])
async def test_a_proof_over_another_certificate_or_none_is_refused(
    tmp_path: Path, ours: Authority, mode: PeerTlsMode
) -> None:
    """Somebody in between has a certificate of node 1 of before, or passes the words on without TLS."""
    async with two(tmp_path, ours, mode, mode) as cluster:
        secret = secret_of(cluster)
        stolen = fingerprint_of(certificate_in(ours.node(1, name="old")))
        contexts = [with_files(ours.node(2)), None] if mode is ACCEPT else [with_files(ours.node(2))]
        for context in contexts:
            for binding in [stolen, b""] if context is not None else [stolen]:
                wire = await Wire.open(cluster, context)
                said = hello(cluster)
                challenge = decode_challenge((await wire.say(said)).auth_bytes)
                assert not is_proof(server_proof(secret, said, challenge.nonce, binding), challenge.proof)
                refused = await wire.say(Proof(client_proof(secret, said, challenge.nonce, binding)))
                assert refused.error_code
                assert await wire.is_cut()
                wire.close()


# A node calls somebody.


class Impostor:
    """Listens where node 1 is said to be."""

    def __init__(self, cluster: Cluster, context: ssl.SSLContext | None) -> None:
        self.first = b""
        self.heard = asyncio.Event()
        self._cluster = cluster
        self._context = context
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Impostor":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        nodes = self._cluster.nodes[2].cluster.nodes
        host, port = self._server.sockets[0].getsockname()
        node = nodes.nodes[NodeId(1)]
        nodes.nodes[NodeId(1)] = replace(node, listeners={**node.listeners, "peer": Address(host, port)})
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.first = await reader.read(4096)
        except OSError:
            self.first = b""
        self.heard.set()
        writer.transport.abort()


def serving(files: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert_file, files.key_file)
    return context


@pytest.mark.parametrize("who", ["another node", "another cluster", "no name"])
async def test_a_node_says_nothing_to_one_with_another_name(tmp_path: Path, ours: Authority, who: str) -> None:
    files = {
        "another node": lambda: ours.node(3, name="third"),
        "another cluster": lambda: ours.node(1, cluster="another"),
        "no name": lambda: ours.certified("client", []),
    }[who]()
    async with two(tmp_path, ours) as cluster, Impostor(cluster, serving(files)) as impostor:
        with pytest.raises(PenstockError, match=f"URI:penstock://{CLUSTER}/node/1") as refused:
            await linked(cluster)
        assert refused.value.reason is Reason.CLUSTER_AUTHORIZATION_FAILED
        async with asyncio.timeout(SECONDS_MAX):
            await impostor.heard.wait()
        assert impostor.first == b""


@pytest.mark.parametrize("who", ["expired", "another authority"])
async def test_a_node_does_not_trust_an_invalid_certificate(
    tmp_path: Path, ours: Authority, others: Authority, who: str
) -> None:
    files = ours.node(1, name="expired", age=3 * DAY) if who == "expired" else others.node(1)
    async with two(tmp_path, ours) as cluster, Impostor(cluster, serving(files)):
        with pytest.raises(PenstockError, match="TLS handshake failed") as refused:
            await linked(cluster)
        assert refused.value.reason is Reason.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("mode", [ACCEPT, REQUIRE])
async def test_a_node_that_offers_tls_is_never_called_without_it(
    tmp_path: Path, ours: Authority, mode: PeerTlsMode
) -> None:
    async with two(tmp_path, ours, mode, mode) as cluster, Impostor(cluster, None) as impostor:
        with pytest.raises(PenstockError) as refused:
            await linked(cluster)
        assert refused.value.reason is Reason.LEADER_NOT_AVAILABLE
        async with asyncio.timeout(SECONDS_MAX):
            await impostor.heard.wait()
        assert impostor.first[:2] == b"\x16\x03"
        assert b"nonce" not in impostor.first


async def test_a_node_that_requires_tls_does_not_call_one_that_does_not_offer_it(
    tmp_path: Path, ours: Authority
) -> None:
    async with two(tmp_path, ours, OFF, ACCEPT) as cluster:
        with pytest.raises(PenstockError, match=r"cluster\.peer_tls") as refused:
            await linked(cluster, ours.tls(2, REQUIRE))
        assert refused.value.reason is Reason.LEADER_NOT_AVAILABLE
