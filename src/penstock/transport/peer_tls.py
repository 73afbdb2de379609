"""TLS between the nodes of a cluster: both ends present a certificate that names a node.

A node's certificate has the subject alternative name ``URI:penstock://CLUSTER/node/ID``, and is signed by an authority of the cluster. The
host name of a node does not matter, so a certificate stays valid when a node moves. Each end compares the name with the node that it
expects, because a valid certificate only shows that its holder is *some* node.

A connection keeps the certificate with which it began when the files change.
"""

import asyncio
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from penstock.settings import PeerTlsMode, TlsSettings
from penstock.transport.alerts import AlertingContext
from penstock.transport.tls import Loaded, Pems, ServerTls, load_chain, read_pems, stamps_of, trust

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SCHEME: Final = "penstock://"


def node_uri(cluster: str, node_id: int) -> str:
    """The name of a node in its certificate."""
    return f"{SCHEME}{cluster}/node/{node_id}"


class NodeContext(AlertingContext):
    """For connections from other nodes. The loop remembers with a connection which context it was made with."""

    fingerprint: bytes
    """The SHA-256 of the certificate that it presents."""
    outgoing: ssl.SSLContext
    """For connections to other nodes, with the same files."""


class NodeCertificate(ServerTls):
    """A node's certificate, in the files of the moment, for both directions."""

    def __init__(self, settings: TlsSettings, uri: str) -> None:
        """ValueError if the files cannot be used, or if the certificate is not that of this node."""
        self._uri = uri
        super().__init__(settings, _no_principal)

    def _load(self) -> Loaded:
        settings = self.settings
        if not (settings.cert_file and settings.key_file and settings.ca_file):
            raise ValueError(
                "TLS between nodes needs a certificate: set cert_file, key_file and ca_file in [tls.peer], or set cluster.peer_tls to off"
            )
        stamps = stamps_of(settings)
        pems = read_pems(settings)
        leaf = _leaf(settings.cert_file, pems.chain)
        self._check(leaf)
        context = NodeContext(ssl.PROTOCOL_TLS_SERVER)
        # A resumed session would not show a certificate again that may have been withdrawn.
        context.num_tickets = 0
        context.fingerprint = fingerprint_of(leaf)
        context.outgoing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for each in (context, context.outgoing):
            _prepare(each, settings, pems)
        return Loaded(context, pems, stamps)

    @property
    def client_context(self) -> ssl.SSLContext:
        """The context for a new connection to another node."""
        context = self.context
        assert isinstance(context, NodeContext)
        return context.outgoing

    def _check(self, leaf: bytes) -> None:
        """Whether other nodes accept the certificate: they would only close the connection."""
        from cryptography import x509

        file, certificate = self.settings.cert_file, x509.load_der_x509_certificate(leaf)
        if certificate.not_valid_after_utc < datetime.now(UTC):
            raise ValueError(
                f"The certificate in {file} expired on {certificate.not_valid_after_utc:%Y-%m-%d}; renew it"
            )
        found = [uri for uri in _uris(certificate) if uri.startswith(SCHEME)]
        if found != [self._uri]:
            raise ValueError(
                f"The certificate in {file} {_names(found)}; that of this node must have the subject alternative name URI:{self._uri}, and no other such name"
            )


class PeerTls:
    """Whether this node uses TLS with other nodes, and with which certificate."""

    def __init__(
        self,
        mode: PeerTlsMode = PeerTlsMode.OFF,
        cluster: str = "",
        node_id: int = 0,
        settings: TlsSettings | None = None,
    ) -> None:
        """ValueError if the files cannot be used."""
        self.mode: Final = mode
        self._cluster: Final = cluster
        self.certificate: NodeCertificate | None = None
        if self.is_offered:
            self.certificate = NodeCertificate(settings or TlsSettings(), node_uri(cluster, node_id))

    @property
    def is_offered(self) -> bool:
        """Whether other nodes can connect to this one with TLS."""
        return self.mode is not PeerTlsMode.OFF

    @property
    def is_required(self) -> bool:
        """Whether there is no connection without TLS."""
        return self.mode is PeerTlsMode.REQUIRE

    def outgoing(self, *, is_offered_there: bool) -> ssl.SSLContext | None:
        """What a connection to another node uses; None: no TLS. After a failure, it is not tried without TLS."""
        if not (self.is_required or (self.is_offered and is_offered_there)):
            return None
        assert self.certificate is not None
        return self.certificate.client_context

    def problem_of(self, connection: ssl.SSLObject, node_id: int) -> str:
        """Why the other end of a TLS connection is not this node; empty if it is."""
        wanted, found = node_uri(self._cluster, node_id), names_in(connection.getpeercert())
        if found == [wanted]:
            return ""
        return f"the certificate {_names(found)}; that of node {node_id} must have the subject alternative name URI:{wanted}, and no other such name"


PLAIN: Final = PeerTls()
"""No TLS between nodes."""


class PeerEnd(NamedTuple):
    """What is known of a TLS connection between nodes."""

    connection: ssl.SSLObject
    own_fingerprint: bytes
    """The SHA-256 of the certificate that this node presented, if the other one connected."""


def tls_of(transport: asyncio.BaseTransport) -> PeerEnd | None:
    """The TLS of a connection; None if it has none."""
    connection = transport.get_extra_info("ssl_object")
    if connection is None:
        return None
    context = transport.get_extra_info("sslcontext")
    return PeerEnd(connection, context.fingerprint if isinstance(context, NodeContext) else b"")


def names_in(certificate: "dict[str, Any] | None") -> list[str]:
    """The names of nodes in a certificate that was verified."""
    names = (certificate or {}).get("subjectAltName", ())
    return [value for kind, value in names if kind == "URI" and value.startswith(SCHEME)]


def fingerprint_of(certificate: bytes) -> bytes:
    """The SHA-256 of a certificate in DER form."""
    return sha256(certificate).digest()


def fingerprint_of_peer(connection: ssl.SSLObject) -> bytes:
    """That of the certificate at the other end."""
    found = connection.getpeercert(binary_form=True)
    assert found is not None
    return fingerprint_of(found)


def _prepare(context: ssl.SSLContext, settings: TlsSettings, pems: Pems) -> None:
    # Both ends are Penstock, so nothing older is needed.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A node's name is in the URI, which is compared once it is known which node this should be.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    load_chain(context, settings)
    trust(context, settings, pems)


def _leaf(path: str, chain: bytes) -> bytes:
    """The first certificate of a file, which is the node's own."""
    try:
        text = chain.decode("ascii")
        begin = text.index(ssl.PEM_HEADER)
        return ssl.PEM_cert_to_DER_cert(text[begin : text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)])
    except ValueError:
        raise ValueError(f"{path} has no certificate in PEM form") from None


def _uris(certificate: "Certificate") -> Sequence[str]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return found.value.get_values_for_type(x509.UniformResourceIdentifier)


def _names(found: list[str]) -> str:
    return f"is for {' and '.join(found)}" if found else "names no node"


def _no_principal(_: bytes) -> NoReturn:
    """A node is no client."""
    raise ValueError("A node's certificate is not a client's")
