"""``--etcd``: HOST:PORT,HOST:PORT with or without ``http://`` or ``https://`` before each, and the files for TLS."""

from pathlib import Path
from typing import Final

from penstock.address import Address, parse_address
from penstock.metadata.etcd.endpoints import Tls

_PORT: Final = 2379


def parse_endpoints(text: str) -> tuple[list[Address], bool]:
    """The addresses, and whether TLS is to be used. ValueError says what is wrong."""
    addresses: list[Address] = []
    schemes: set[str] = set()
    for each in filter(None, (part.strip() for part in text.split(","))):
        scheme, separator, rest = each.partition("://")
        if not separator:
            scheme, rest = "http", each
        if scheme not in ("http", "https"):
            raise ValueError(f"{each!r} is no address of etcd; write HOST:PORT, or https://HOST:PORT for TLS")
        schemes.add(scheme)
        addresses.append(parse_address(rest.rstrip("/"), _PORT))
    if not addresses:
        raise ValueError("no address of etcd is given; write HOST:PORT,HOST:PORT")
    if len(schemes) > 1:
        raise ValueError("some addresses of etcd are http and some https; use one for all")
    return addresses, schemes == {"https"}


def read_tls(ca: str, certificate: str, key: str) -> Tls:
    """The files' contents. OSError when one cannot be read; ValueError when one of a pair is missing."""
    if bool(certificate) != bool(key):
        raise ValueError("--etcd-cert and --etcd-key belong together: give both")
    return Tls(
        ca=Path(ca).read_bytes() if ca else None,
        key=Path(key).read_bytes() if key else None,
        certificate=Path(certificate).read_bytes() if certificate else None,
    )
