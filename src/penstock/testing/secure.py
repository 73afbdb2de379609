"""A broker in the test process that requires TLS and a login, with a CA, certificates and a user made for it.

The user is ``admin`` and may do everything; with it, a test creates other users and access rules.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from penstock.testing.broker import BrokerThread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.client import ClientSecurity

HOSTS: Final = ("127.0.0.1", "::1", "localhost")
"""What its certificate is for."""
USER: Final = "admin"
PASSWORD_BYTES: Final = 16


class SecureBroker(BrokerThread):
    """One broker, with its files in ``folder``. ``settings`` are keyed by their path in the configuration."""

    user: Final = USER

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self.ca_file: Final = folder / "ca.pem"
        """The CA that clients must trust."""
        self.password_file: Final = folder / "password"
        """The password of the user, in one line."""
        self.password: Final = secrets.token_urlsafe(PASSWORD_BYTES)
        cert_file, key_file = folder / "broker.pem", folder / "broker.key"
        self._make_certificates(cert_file, key_file)
        _write_private(self.password_file, self.password.encode() + b"\n")
        secured: dict[str, object] = {
            "listeners.http": "127.0.0.1:0",
            "tls.cert_file": str(cert_file),
            "tls.key_file": str(key_file),
            "security.authentication": "required",
            "security.admin_password_file": str(self.password_file),
        }
        super().__init__(folder / "data", {**secured, **(settings or {})})

    @property
    def security(self) -> ClientSecurity:
        """What the clients of :mod:`penstock.client` need to connect."""
        from penstock.client import ClientSecurity

        return ClientSecurity(ca_file=str(self.ca_file), user=self.user, password_file=str(self.password_file))

    def librdkafka_config(self) -> dict[str, str]:
        """The configuration of a client of librdkafka, such as confluent-kafka."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca_file),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    def _make_certificates(self, cert_file: Path, key_file: Path) -> None:
        from penstock.cli.issuing import Wanted, issue, new_authority

        authority = new_authority("Penstock tests")
        issued = issue(authority, Wanted("broker", HOSTS, is_server=True))
        self.ca_file.write_bytes(authority.certificate_pem)
        cert_file.write_bytes(issued.certificate_pem)
        _write_private(key_file, issued.key_pem)


def _write_private(file: Path, data: bytes) -> None:
    file.touch(mode=0o600)
    file.write_bytes(data)
