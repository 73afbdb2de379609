"""The brokers that are compared, each with its own parts of security switched on.

Every broker of Penstock is a process of its own with the same hash seed. A broker with access rules has one admin, one user who may use the topics of
the benchmark, and 5,000 rules about other topics, half of them for that same user. Kafka is one process with two listeners.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from bench.peers.base import Flush, free_port
from bench.peers.kafka import Kafka
from bench.peers.penstock import PenstockWithGateways
from penstock.address import Address
from penstock.bench.context import Endpoints
from penstock.cli.issuing import Issued, Wanted, issue, new_authority
from penstock.client.access import AccessAdmin
from penstock.client.security import UNSECURED, ClientSecurity
from penstock.client.user_admin import UserAdmin
from penstock.encryption.keys import new_key
from penstock.operations.access import Pattern, Permission, Rule
from penstock.operations.operation import Action, Resource

TOPICS = "bench-"
"""What the names of all topics of the benchmark begin with."""
OTHER_RULES = 5_000
_ADMIN = "admin"
_USER = "bench"
_HOST = "127.0.0.1"
_PASSWORD_BYTES = 16


@dataclass(frozen=True, slots=True)
class Target:
    """A way to a server: what is measured, and how."""

    name: str
    title: str
    pid: int
    endpoints: Endpoints
    admin: ClientSecurity
    """Creates topics."""
    user: ClientSecurity
    """Sends the load."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Which parts of security a broker has."""

    name: str
    title: str
    rules: bool = False
    """A login, and access rules."""
    tls: bool = False
    sealed: bool = False
    """Encryption at rest."""


OPEN = Parts("open", "without security")
RULES = Parts("rules", "login, 5,000 rules", rules=True)
TLS = Parts("tls", "login, rules, TLS", rules=True, tls=True)
SEALED = Parts("sealed", "encryption at rest", sealed=True)
ALL = Parts("all", "login, rules, TLS, encryption at rest", rules=True, tls=True, sealed=True)
VARIANTS = (OPEN, RULES, TLS, SEALED, ALL)
KAFKA = "kafka"
KAFKA_TLS = "kafka-tls"


class SecuredPenstock(PenstockWithGateways):
    """A broker with some parts of security."""

    def __init__(self, home: Path, parts: Parts) -> None:
        super().__init__(home, Flush.OS)
        self.title = f"Penstock, {parts.title}"
        self._parts = parts
        self._passwords = {name: secrets.token_urlsafe(_PASSWORD_BYTES) for name in (_ADMIN, _USER)}
        self._authority = new_authority("Penstock benchmark") if parts.tls else None
        self.security = self._security(_ADMIN)

    def before_first_start(self) -> None:
        """Write its keys and its certificate."""
        _write_private(self.home / "password", self._passwords[_ADMIN].encode() + b"\n")
        _write_private(self.home / "keys", new_key().encode() + b"\n")
        if self._authority:
            write_certificate(self._authority, self.home)

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Serve with these parts."""
        arguments, environment = super().command()
        environment |= {"PYTHONHASHSEED": "0", "PENSTOCK__LIMITS__HANDSHAKE_RATE_MAX": "0"}
        if self._parts.rules:
            environment["PENSTOCK__SECURITY__AUTHENTICATION"] = "required"
            environment["PENSTOCK__SECURITY__ADMIN_PASSWORD_FILE"] = str(self.home / "password")
        if self._parts.tls:
            environment["PENSTOCK__TLS__CERT_FILE"] = str(self.home / "server.pem")
            environment["PENSTOCK__TLS__KEY_FILE"] = str(self.home / "server.key")
        if self._parts.sealed:
            environment["PENSTOCK__ENCRYPTION__KEY_FILE"] = str(self.home / "keys")
        return arguments, environment

    def targets(self) -> list[Target]:
        """Create the user and the rules, once it is ready."""
        endpoints = self.endpoints()
        if self._parts.rules:
            with UserAdmin(str(endpoints.http), security=self.security) as users:
                users.create(_USER, self._passwords[_USER])
            with AccessAdmin(str(endpoints.http), security=self.security) as access:
                access.create(other_rules(OTHER_RULES))
                everything = Rule(
                    f"User:{_USER}", Permission.ALLOW, Action.ALL, Resource.TOPIC, TOPICS, Pattern.PREFIXED
                )
                access.create([everything])
        return [Target(self._parts.name, self.title, self.pid, endpoints, self.security, self._security(_USER))]

    def _security(self, user: str) -> ClientSecurity:
        ca_pem = self._authority.certificate_pem.decode() if self._authority else None
        if not self._parts.rules:
            return ClientSecurity(ca_pem=ca_pem)
        return ClientSecurity(ca_pem=ca_pem, user=user, password=self._passwords[user])


class SecuredKafka(Kafka):
    """Kafka with a second listener that uses TLS, with a certificate like that of Penstock."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, Flush.OS)
        self.tls_address = Address(_HOST, free_port())
        self._authority = new_authority("Penstock benchmark")

    def settings(self) -> dict[str, str]:
        """Those of Kafka, and the listener."""
        settings = super().settings()
        settings["listeners"] += f",SSL://{self.tls_address}"
        settings["advertised.listeners"] += f",SSL://{self.tls_address}"
        settings["listener.security.protocol.map"] += ",SSL:SSL"
        # The broker's connections to itself need no certificate then.
        settings["inter.broker.listener.name"] = "PLAINTEXT"
        settings["ssl.keystore.type"] = "PEM"
        settings["ssl.keystore.location"] = str(self.home / "keystore.pem")
        return settings

    def before_first_start(self) -> None:
        """Write its certificate too."""
        issued = write_certificate(self._authority, self.home)
        _write_private(self.home / "keystore.pem", issued.key_pem + issued.certificate_pem)
        super().before_first_start()

    def targets(self) -> list[Target]:
        """Both listeners."""
        security = ClientSecurity(ca_pem=self._authority.certificate_pem.decode())
        plain = Target(KAFKA, self.title, self.pid, Endpoints(self.address), UNSECURED, UNSECURED)
        tls = Target(KAFKA_TLS, f"{self.title}, TLS", self.pid, Endpoints(self.tls_address), security, security)
        return [plain, tls]


def other_rules(count: int) -> list[Rule]:
    """Rules that do not decide about the benchmark: of other users, and of its own user for other topics; names and prefixes."""
    rules = []
    for number in range(count):
        principal = f"User:{_USER}" if number % 2 else f"User:other-{number}"
        pattern = Pattern.PREFIXED if number % 4 > 1 else Pattern.LITERAL
        rules.append(Rule(principal, Permission.ALLOW, Action.READ, Resource.TOPIC, f"other-{number}", pattern))
    return rules


def write_certificate(authority: Issued, folder: Path) -> Issued:
    """A certificate for loopback, with its key, as files of `folder`."""
    issued = issue(authority, Wanted("server", (_HOST, "localhost"), is_server=True))
    (folder / "server.pem").write_bytes(issued.certificate_pem)
    _write_private(folder / "server.key", issued.key_pem)
    return issued


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
