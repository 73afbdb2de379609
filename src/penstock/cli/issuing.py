"""Certificates for development and for small clusters: P-256 keys, an authority of their own, and what it certifies."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
_CLOCK_SKEW: Final = timedelta(minutes=5)
"""A certificate is valid a little before it was made, for machines whose clocks are behind."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as a file has it."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key as a file has it, without a password."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a certificate is for."""

    name: str
    """Its common name."""
    hosts: Sequence[str] = ()
    """The host names and addresses of a server."""
    uri: str = ""
    """The identity of a node."""
    is_server: bool = False
    is_client: bool = False


def new_authority(name: str, now: datetime | None = None, days: int = AUTHORITY_DAYS) -> Issued:
    """An authority that certifies itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, now or datetime.now(UTC), days).issuer_name(_name(name)).public_key(key.public_key())
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Issued(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Issued, wanted: Wanted, now: datetime | None = None, days: int = CERTIFICATE_DAYS) -> Issued:
    """A certificate of the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    ca_key = authority.key.public_key()
    builder = _builder(wanted.name, now or datetime.now(UTC), days).issuer_name(authority.certificate.subject)
    builder = (
        builder.public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key), critical=False)
    )
    purposes = [
        purpose
        for purpose, is_wanted in (
            (ExtendedKeyUsageOID.SERVER_AUTH, wanted.is_server),
            (ExtendedKeyUsageOID.CLIENT_AUTH, wanted.is_client),
        )
        if is_wanted
    ]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    names = [_general_name(host) for host in wanted.hosts]
    if wanted.uri:
        names.append(x509.UniformResourceIdentifier(wanted.uri))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Issued(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(name: str, now: datetime, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
