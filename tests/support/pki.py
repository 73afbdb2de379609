"""Certificates for tests: an authority, and what it signs, as PEM files in a folder."""

import datetime as dt
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    cert: str
    key: str


class Authority:
    """A CA in a folder; ``file`` is its certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(f"{name} of the tests")
        built = _builder(subject, subject, self._key.public_key(), 0).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self._certificate = built.sign(self._key, hashes.SHA256())
        self.file = str(folder / f"{name}.pem")
        Path(self.file).write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
        ended_days_ago: int = -1,
        password: str = "",
    ) -> Pair:
        """A certificate for these hosts, with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_general(host) for host in hosts]
        built = _builder(_named(name), self._certificate.subject, key.public_key(), ended_days_ago).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        certificate = built.sign(self._key, hashes.SHA256())
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pair = Pair(str(self._folder / f"{self._name}-{name}.pem"), str(self._folder / f"{self._name}-{name}.key"))
        Path(pair.key).touch(mode=0o600)
        Path(pair.cert).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        # The broker refuses keys that others can read.
        Path(pair.key).touch(mode=0o600)
        Path(pair.key).write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return pair


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, ended_days_ago: int
) -> x509.CertificateBuilder:
    end = dt.datetime.now(dt.UTC) - DAY * ended_days_ago + DAY * (ended_days_ago < 1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - DAY * 30)
        .not_valid_after(end)
    )
