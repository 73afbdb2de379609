"""Certificates of nodes, made in the test: right ones, and each kind of wrong one."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.settings import PeerTlsMode, TlsSettings
from penstock.transport.peer_tls import PeerTls, node_uri

CLUSTER = "c"
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """Signs certificates into a folder."""

    folder: Path
    key: EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def node(self, node_id: int, *, cluster: str = CLUSTER, name: str = "", **more: object) -> TlsSettings:
        """The files of a node."""
        uri = node_uri(cluster, node_id)
        return self.certified(name or f"{cluster}-{node_id}", [uri], **more)  # type: ignore[arg-type]

    def certified(
        self,
        name: str,
        uris: list[str],
        *,
        age: timedelta = timedelta(),
        usages: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    ) -> TlsSettings:
        """A certificate with these names; ``age`` is how long ago it was made, for two days."""
        key = generate_private_key(SECP256R1())
        names = [x509.IPAddress(IPv4Address("127.0.0.1")), *map(x509.UniformResourceIdentifier, uris)]
        certificate = (
            _builder(name, self.certificate.subject, key, age)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self.key, SHA256())
        )
        made = TlsSettings(
            cert_file=str(self.folder / f"{name}.pem"),
            key_file=str(self.folder / f"{name}.key"),
            ca_file=str(self.file),
        )
        Path(made.cert_file).write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_key(Path(made.key_file), key)
        return made

    def tls(self, node_id: int, mode: PeerTlsMode = PeerTlsMode.REQUIRE) -> PeerTls:
        """The TLS of a node of the cluster ``c``, with a certificate that is made now."""
        return PeerTls(mode, CLUSTER, node_id, self.node(node_id))


def authority(folder: Path) -> Authority:
    """A new one."""
    folder.mkdir(parents=True, exist_ok=True)
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    certificate = (
        _builder("authority", name, key, timedelta())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, SHA256())
    )
    made = Authority(folder, key, certificate)
    made.file.write_bytes(certificate.public_bytes(Encoding.PEM))
    return made


def _builder(name: str, issuer: x509.Name, key: EllipticCurvePrivateKey, age: timedelta) -> x509.CertificateBuilder:
    begin = datetime.now(UTC) - age - timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + 2 * DAY)
    )


def _write_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
