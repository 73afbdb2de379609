"""An authority and certificates for one test, as files; those that something is wrong with, too."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from penstock.cli.issuing import Issued, Wanted, issue, new_authority

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    def write(self, issued: Issued) -> None:
        """Replace the content of both, the certificate first: for a moment, they do not match."""
        self.certificate.write_bytes(issued.certificate_pem)
        self.key.touch(mode=0o600)
        self.key.write_bytes(issued.key_pem)


class Authority:
    """An authority whose certificates are in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.name = name
        self.issued = new_authority(f"Test {name}")
        self.file = folder / f"{name}.crt"
        self.file.write_bytes(self.issued.certificate_pem)

    def pair(self, name: str, issued: Issued) -> Pair:
        pair = Pair(self.folder / f"{self.name}-{name}.crt", self.folder / f"{self.name}-{name}.key")
        pair.write(issued)
        return pair

    def issue(self, wanted: Wanted, *, age_days: int = 0, days: int = 30) -> Issued:
        return issue(self.issued, wanted, datetime.now(UTC) - timedelta(days=age_days), days)

    def server(self, hosts: Sequence[str] = HOSTS, *, name: str = "server", expired: bool = False) -> Pair:
        wanted = Wanted(name, hosts, is_server=True)
        return self.pair(name, self.issue(wanted, age_days=40 if expired else 0))

    def client(self, name: str = "anna", *, expired: bool = False) -> Pair:
        return self.pair(name, self.issue(Wanted(name, is_client=True), age_days=40 if expired else 0))

    @cached_property
    def context(self) -> ssl.SSLContext:
        """What a client uses that trusts this authority."""
        return self.context_with()

    def context_with(self, pair: Pair | None = None) -> ssl.SSLContext:
        """The same with a client certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context


def tls_settings(authority: Authority, pair: Pair | None = None, **more: object) -> dict[str, object]:
    """Settings of a broker that uses this certificate."""
    pair = pair or authority.server()
    return {"tls.cert_file": str(pair.certificate), "tls.key_file": str(pair.key), **more}


def client_auth(authority: Authority, mode: str = "required") -> dict[str, object]:
    """Settings of a broker that asks clients for certificates of this authority."""
    return {"tls.ca_file": str(authority.file), "tls.client_auth": mode}
