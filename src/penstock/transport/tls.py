"""The TLS of listeners: contexts from PEM files, which are read again when they change.

A new context replaces the old one as a whole, for the connections that come after it: authorities that were removed from a file
no longer count. Files that cannot be used leave the old context in place, and the log says what is wrong with them.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.secret_files import read_secret
from penstock.settings import ClientAuth, TlsSettings, TlsVersion
from penstock.transport.alerts import AlertingContext

logger = logging.getLogger("penstock.tls")

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption. Those of TLS 1.3 are all like this."""
_ALPN: Final = ("http/1.1",)
_VERSIONS: Final = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}

NameOf = Callable[[bytes], str]
"""The principal's name for a client certificate in DER form; ValueError if there is none for it."""


class Pems(NamedTuple):
    """The contents of the files, for gRPC, which makes its own contexts."""

    key: bytes
    chain: bytes
    authorities: bytes | None


class Loaded(NamedTuple):
    """What was read from the files at one time."""

    context: ssl.SSLContext
    pems: Pems
    stamps: tuple[object, ...]


class ServerTls:
    """The TLS of one or more listeners. ``context`` is for the next connection."""

    def __init__(self, settings: TlsSettings, name_of: NameOf) -> None:
        """ValueError if the files cannot be used."""
        self.settings: Final = settings
        self.name_of: Final = name_of
        self._loaded = self._load()
        self._failed_stamps: tuple[object, ...] | None = None
        self.version = 1
        """Incremented with each new context."""

    def _load(self) -> Loaded:
        return load(self.settings)

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        return self._loaded.context

    @property
    def pems(self) -> Pems:
        """The contents of the files that the context was made from."""
        return self._loaded.pems

    def reload(self, *, always: bool = False) -> None:
        """Read the files again if they have changed. Blocks on the disk; may be called in any thread, one at a time."""
        stamps = stamps_of(self.settings)
        if not always and stamps in (self._loaded.stamps, self._failed_stamps):
            return
        try:
            self._loaded = self._load()
        except ValueError as error:
            self._failed_stamps = stamps
            logger.warning("certificate not reloaded: reason=%s; the old one stays in use", error)
        else:
            self._failed_stamps = None
            self.version += 1
            logger.info("certificate reloaded: file=%s", self.settings.cert_file)

    def certificate_name(self, transport: asyncio.BaseTransport) -> str | None:
        """The principal's name for the client's certificate; None if it presented none. ValueError if no rule matches it."""
        found = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return self.name_of(found) if found else None


def load(settings: TlsSettings) -> Loaded:
    """The context from the files; ValueError says which file is wrong, and how."""
    # Before they are read: if they change in between, they are read again.
    stamps = stamps_of(settings)
    pems = read_pems(settings)
    return Loaded(_context(settings, pems), pems, stamps)


def read_pems(settings: TlsSettings) -> Pems:
    """The contents of the files."""
    key = read_secret(settings.key_file)
    chain = _read(settings.cert_file)
    return Pems(key, chain, _read(settings.ca_file) if settings.ca_file else None)


def _context(settings: TlsSettings, pems: Pems) -> ssl.SSLContext:
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(_ALPN)
    load_chain(context, settings)
    trust(context, settings, pems)
    context.verify_mode = _VERIFY[settings.client_auth]
    return context


def load_chain(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Let the context present the certificate."""
    try:
        # An encrypted key must not make OpenSSL ask on the terminal.
        context.load_cert_chain(settings.cert_file, settings.key_file, password=_no_password)
    except ssl.SSLError as error:
        raise ValueError(_words(settings, error)) from None


def trust(context: ssl.SSLContext, settings: TlsSettings, pems: Pems) -> None:
    """Let the context accept certificates of the authorities, if there are any."""
    if pems.authorities is None:
        return
    try:
        context.load_verify_locations(cadata=pems.authorities.decode("ascii", "replace"))
    except ssl.SSLError:
        raise ValueError(f"{settings.ca_file} has no certificates in PEM form") from None


def _no_password() -> str:
    raise ValueError("The private key is encrypted; store it without a password, readable by its owner alone")


def _words(settings: TlsSettings, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{settings.key_file} is not the private key of the certificate in {settings.cert_file}"
    if error.reason in ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"):
        return f"The certificate in {settings.cert_file} is too weak ({error.reason.replace('_', ' ').lower()}); use a P-256 key and SHA-256"
    return f"{settings.cert_file} and {settings.key_file} are not a certificate and its private key in PEM form"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {os.strerror(error.errno or 0).lower()}") from None


def stamps_of(settings: TlsSettings) -> tuple[object, ...]:
    """Changes when one of the files changes."""
    return tuple(_stamp(path) for path in (settings.cert_file, settings.key_file, settings.ca_file) if path)


def _stamp(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def reload_all(found: Iterable[ServerTls], *, always: bool = False) -> None:
    """Read the files of all again that have changed, or of all."""
    for each in found:
        each.reload(always=always)
