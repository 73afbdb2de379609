"""TLS between the nodes of a cluster: both ends present a certificate that names a node.

A node's certificate has the subject alternative name ``URI:penstock://CLUSTER/node/ID``, and is signed by an authority of the cluster. The
host name of a node does not matter, so a certificate stays valid when a node moves. Each end compares the name with the node that it
expects, because a valid certificate only shows that its holder is *some* node.

The contexts are made anew when the files change. A connection keeps those with which it began.
"""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.settings import PeerTlsMode

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SCHEME: Final = "penstock://"
TLS_RECORD: Final = 0x16
"""The first byte of a TLS connection. A frame below 16 MiB begins with 0."""


class PeerFiles(NamedTuple):
    """Files in PEM."""

    certificate: str
    """The node's certificate, and those between it and the authority."""
    key: str
    ca: str
    """The authorities of which the other nodes' certificates must be."""


class PeerCertificate(NamedTuple):
    """What new connections use."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    fingerprint: bytes
    """The SHA-256 of the node's certificate."""


def node_uri(cluster: str, node_id: int) -> str:
    """The name of a node in its certificate."""
    return f"{SCHEME}{cluster}/node/{node_id}"


class PeerTls:
    """The mode of this node, and its certificate of the moment."""

    def __init__(self, mode: PeerTlsMode, cluster: str, node_id: int, files: PeerFiles | None) -> None:
        """ValueError if the files cannot be used."""
        self.mode: Final = mode
        self._cluster: Final = cluster
        self._node_id: Final = node_id
        self._files: Final = files
        self.current: PeerCertificate | None = None
        if self.is_offered:
            self.reload()

    @property
    def is_offered(self) -> bool:
        """Whether other nodes can connect to this one with TLS."""
        return self.mode is not PeerTlsMode.OFF

    @property
    def is_required(self) -> bool:
        """Whether there is no connection without TLS."""
        return self.mode is PeerTlsMode.REQUIRE

    def reload(self) -> None:
        """Use the files as they are now. ValueError if they cannot be used; then nothing changes."""
        files = self._files
        if files is None or not (files.certificate and files.key and files.ca):
            raise ValueError(
                f"cluster.peer_tls is {self.mode.value}, but the node has no certificate: set tls.peer.cert_file, tls.peer.key_file and tls.peer.ca_file"
            )
        leaf = _leaf(files.certificate)
        _check_own(files.certificate, leaf, node_uri(self._cluster, self._node_id))
        self.current = PeerCertificate(
            _context(ssl.PROTOCOL_TLS_SERVER, files), _context(ssl.PROTOCOL_TLS_CLIENT, files), sha256(leaf).digest()
        )

    def outgoing(self, *, is_offered_there: bool) -> PeerCertificate | None:
        """What a connection to another node uses; None: it is plain. There is no way back to plain after a failure."""
        assert self.current is not None or not self.is_offered
        return self.current if self.is_required or (self.is_offered and is_offered_there) else None

    def problem_of(self, connection: ssl.SSLObject, node_id: int) -> str:
        """Why the other end of a TLS connection is not this node; empty if it is."""
        wanted, found = node_uri(self._cluster, node_id), names_in(connection.getpeercert())
        if found == [wanted]:
            return ""
        has = f"is for {' and '.join(found)}" if found else "names no node"
        return f"the certificate {has}; that of node {node_id} must have the subject alternative name URI:{wanted}, and no other such name"


PLAIN: Final = PeerTls(PeerTlsMode.OFF, "", 0, None)
"""No TLS between nodes."""


def names_in(certificate: "dict[str, Any] | None") -> list[str]:
    """The names of nodes in a certificate that was verified."""
    names = (certificate or {}).get("subjectAltName", ())
    return [value for kind, value in names if kind == "URI" and value.startswith(SCHEME)]


def fingerprint_of_peer(connection: ssl.SSLObject) -> bytes:
    """The SHA-256 of the certificate at the other end of a TLS connection."""
    return sha256(connection.getpeercert(binary_form=True) or b"").digest()


def _context(side: int, files: PeerFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    # Both ends are Penstock, so nothing older is needed.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A node's name is in the URI, which is compared once it is known which node this should be.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if side == ssl.PROTOCOL_TLS_SERVER:
        # A resumed session would not show a certificate again that may have been withdrawn.
        context.num_tickets = 0
    try:
        context.load_verify_locations(files.ca)
    except (ssl.SSLError, OSError) as error:
        raise ValueError(f"tls.peer.ca_file: {files.ca} cannot be used: {_words(error)}") from None
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise ValueError(
            f"tls.peer.cert_file and tls.peer.key_file: {files.certificate} and {files.key} cannot be used together: {_words(error)}"
        ) from None
    return context


def _leaf(path: str) -> bytes:
    """The first certificate of a file, which is the node's own."""
    try:
        text = Path(path).read_text(encoding="ascii")
        begin = text.index(ssl.PEM_HEADER)
        return ssl.PEM_cert_to_DER_cert(text[begin : text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)])
    except (OSError, ValueError) as error:
        why = _words(error) if isinstance(error, OSError) else "it contains no PEM certificate"
        raise ValueError(f"tls.peer.cert_file: {path} cannot be used: {why}") from None


def _check_own(path: str, leaf: bytes, wanted: str) -> None:
    """Whether other nodes would accept the certificate: said here, since they only close the connection."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(leaf)
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise ValueError(
            f"tls.peer.cert_file: {path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}; replace it with a new certificate"
        )
    found = [uri for uri in _uris(certificate) if uri.startswith(SCHEME)]
    if found != [wanted]:
        has = f"is for {' and '.join(found)}" if found else "names no node"
        raise ValueError(
            f"tls.peer.cert_file: {path} {has}; a certificate for this node has the subject alternative name URI:{wanted}, and no other such name"
        )


def _uris(certificate: "Certificate") -> Sequence[str]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    uris: list[str] = found.value.get_values_for_type(x509.UniformResourceIdentifier)
    return uris


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not valid").lower().replace("_", " ")
    return (error.strerror or str(error)).lower()


def _no_password() -> str:
    """The password of an encrypted key. A broker cannot ask for it, so such keys are refused."""
    return ""
