"""``--etcd``: HOST:PORT,HOST:PORT with or without ``http://`` or ``https://`` before each, and the files for TLS."""

import ssl
from pathlib import Path
from typing import Final

from penstock.address import Address, parse_address
from penstock.metadata.etcd.endpoints import Tls

_PORT: Final = 2379


def parse_endpoints(text: str) -> tuple[list[Address], bool]:
    """The addresses, and whether to use TLS. ValueError if the text is invalid."""
    addresses: list[Address] = []
    schemes: set[str] = set()
    for each in filter(None, (part.strip() for part in text.split(","))):
        scheme, separator, rest = each.partition("://")
        if not separator:
            scheme, rest = "http", each
        if scheme not in ("http", "https"):
            raise ValueError(f"{each!r} is not a valid address of etcd; write HOST:PORT, or https://HOST:PORT for TLS")
        schemes.add(scheme)
        addresses.append(parse_address(rest.rstrip("/"), _PORT))
    if not addresses:
        raise ValueError("The address of etcd is missing; write HOST:PORT,HOST:PORT")
    if len(schemes) > 1:
        raise ValueError("The addresses of etcd mix http and https; use the same for all")
    return addresses, schemes == {"https"}


def read_tls(ca: str, certificate: str, key: str, *, uses_tls: bool) -> Tls | None:
    """The contents of the files; None without TLS. ValueError if one cannot be read or used."""
    if not uses_tls:
        if ca or certificate or key:
            raise ValueError(
                "Files for TLS are set, but the addresses do not use TLS: write https://HOST:PORT in --etcd"
            )
        return None
    if bool(certificate) != bool(key):
        raise ValueError("--etcd-cert and --etcd-key belong together: specify both")
    tls = Tls(ca=_read("--etcd-ca", ca), key=_read("--etcd-key", key), certificate=_read("--etcd-cert", certificate))
    # Checked here, because gRPC reports only that it cannot connect.
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError:
        raise ValueError(f"{ca} contains no PEM certificates; check --etcd-ca") from None
    if certificate:
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(
                f"{certificate} and {key} cannot be used together ({error.reason}); check --etcd-cert and --etcd-key"
            ) from None
    return tls


def _read(flag: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{flag} {path} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _no_password() -> str:
    """The password of an encrypted key. A broker cannot ask for it, so such keys are refused."""
    return ""
