"""How a client secures its connections and proves who it is: TLS, a user with a password, or a token.

A :class:`ClientSecurity` is a value that every client takes::

    from penstock.client import ClientSecurity, Cluster

    security = ClientSecurity(ca_file="ca.pem", user="anna", password_file="anna.password")
    with Cluster("broker.example.com:9092", security=security) as cluster:
        ...

Files are read when a connection is opened or a request is sent, not when the value is made: a renewed certificate or token is used without a
restart. Passwords, tokens and private keys are never part of ``repr`` or of an error.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.client.errors import InvalidSecurity
from penstock.secret_files import read_secret


class Mechanism(StrEnum):
    """How a client proves to a Kafka listener who it is."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """TLS and credentials. Raises :class:`InvalidSecurity` if they are not complete.

    The server's certificate is always verified. Without a CA, it must be signed by one that the operating system trusts.
    """

    tls: bool | None = None
    """Whether to use TLS; None: if a CA or a certificate is given."""
    ca_file: str | None = None
    """PEM file with the CAs to trust, instead of those of the operating system."""
    ca_pem: str | None = None
    """The same as text."""
    cert_file: str | None = None
    """PEM file with the client's certificate chain; it may also contain the private key."""
    key_file: str | None = None
    cert_pem: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    """Decrypts the private key."""
    server_name: str | None = None
    """The name to expect in the server's certificate, instead of the host that is connected to."""
    verify_name: bool = True
    """Whether the certificate must be for that name. False is for Kafka's empty ``ssl.endpoint.identification.algorithm`` only."""
    user: str | None = None
    """The name of a user."""
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    """File with the password in its first line. Only its owner may be able to read it (mode 0600)."""
    token: str | None = field(default=None, repr=False)
    """A JWT or an API key."""
    token_file: str | None = None
    """File with the token in its first line, as private as that of a password."""
    mechanism: Mechanism | None = None
    """None: SCRAM-SHA-256 for a password, PLAIN for an API key, OAUTHBEARER for another token."""
    may_send_unencrypted: bool = False
    """Whether a password or token may be sent without TLS to another machine. Anyone who can read the network could then use it."""

    def __post_init__(self) -> None:
        if self.key_file and not self.cert_file:
            raise InvalidSecurity(
                "A private key needs its certificate: specify the file of the certificate too (--tls-cert)"
            )
        if self.key_pem and not self.cert_pem:
            raise InvalidSecurity("A private key needs its certificate: set the certificate chain too")
        if self.ca_file and self.ca_pem:
            raise InvalidSecurity("Set the CA as a file or as text, not both")
        if self.tls is False and (self.ca_file or self.ca_pem or self.cert_file or self.cert_pem):
            raise InvalidSecurity("A CA or a certificate was given, but TLS is off: turn TLS on, or remove them")
        self._check_credentials()

    def _check_credentials(self) -> None:
        has_password = self.password is not None or self.password_file is not None
        has_token = self.token is not None or self.token_file is not None
        if has_token and (self.user is not None or has_password):
            raise InvalidSecurity("Set a user with a password, or a token, not both")
        if self.user is not None and not has_password:
            raise InvalidSecurity(
                f"There is no password for user {self.user!r}: specify the password file (--password-file)"
            )
        if has_password and not self.user:
            raise InvalidSecurity("A password needs the name of its user: specify it (--user)")
        if (self.password is not None and self.password_file is not None) or (
            self.token is not None and self.token_file is not None
        ):
            raise InvalidSecurity("Set a password or token as a file or as text, not both")
        if self.mechanism is not None:
            needs_token = self.mechanism is Mechanism.OAUTHBEARER
            if needs_token and not has_token:
                raise InvalidSecurity("OAUTHBEARER needs a token: specify the token file (--token-file)")
            if not needs_token and not has_password:
                raise InvalidSecurity(f"{self.mechanism} needs a user and a password: set both")

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted, unless an address says otherwise."""
        return bool(self.ca_file or self.ca_pem or self.cert_file or self.cert_pem) if self.tls is None else self.tls

    @property
    def sasl_mechanism(self) -> Mechanism | None:
        """What a Kafka listener is asked for; None without credentials."""
        if self.mechanism is not None:
            return self.mechanism
        if self.user is not None:
            return Mechanism.SCRAM_SHA_256
        return Mechanism.OAUTHBEARER if self.token is not None or self.token_file is not None else None

    def read_password(self) -> str:
        """The password, now."""
        return _secret(self.password, self.password_file, "password")

    def read_token(self) -> str:
        """The token, now."""
        return _secret(self.token, self.token_file, "token")

    def authorization(self) -> str | None:
        """The value of HTTP's Authorization header; None without credentials."""
        if self.sasl_mechanism is None:
            return None
        if self.user is None:
            return f"Bearer {self.read_token()}"
        if ":" in self.user:
            raise InvalidSecurity(f"The user {self.user!r} contains a colon, which HTTP does not allow in a user name")
        import base64

        return "Basic " + base64.b64encode(f"{self.user}:{self.read_password()}".encode()).decode()


UNSECURED: Final = ClientSecurity()
"""Neither TLS nor credentials, as a broker on loopback is used."""


def _secret(value: str | None, file: str | None, kind: str) -> str:
    if value is None:
        assert file is not None, "credentials were checked"
        value = _first_line(file, kind)
    if not value:
        raise InvalidSecurity(f"The {kind}{f' in {file}' if file else ''} is empty")
    if "\n" in value or "\r" in value or "\0" in value:
        raise InvalidSecurity(f"The {kind} contains a control character: it must be one line of text")
    return value


def _first_line(file: str, kind: str) -> str:
    try:
        data = read_secret(file)
    except ValueError as error:
        raise InvalidSecurity(str(error)) from None
    line, _, rest = data.partition(b"\n")
    if rest.strip():
        raise InvalidSecurity(f"The {kind} file {file} has more than one line: write only the {kind} into it")
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise InvalidSecurity(f"The {kind} file {file} is not UTF-8 text") from None
