"""TLS to a server: the context, the handshake, and what its errors mean in words.

The context is made for each connection, so that renewed certificates are used without a restart. The server's certificate is always
verified.
"""

import os
import socket
import ssl
from typing import Final

from penstock.address import Address
from penstock.client.errors import CannotConnect, InvalidSecurity, TlsFailed
from penstock.client.security import ClientSecurity

PROBE_SECONDS: Final = 2.0
"""How long to listen for the reason why a server closed a connection."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2; those of 1.3 are all good."""
_UNKNOWN_CA: Final = frozenset({2, 18, 19, 20, 21})
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_REVOKED: Final = 23
_WRONG_NAME: Final = frozenset({62, 64})
"""The codes of OpenSSL's verification."""

_MAYBE_PLAIN: Final = "it may not use TLS. Connect without --tls and --tls-ca, or use the address of a TLS listener"
_GIVE_IT: Final = "specify it with --tls-cert and --tls-key"
_CHECK_IT: Final = "check that it is valid, and signed by a CA that the broker trusts"
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
_CERTIFICATE_MISSING: Final = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED"})
_CERTIFICATE_REFUSED: Final = frozenset(
    {
        "TLSV1_ALERT_UNKNOWN_CA",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
    }
)


def context_of(security: ClientSecurity) -> ssl.SSLContext:
    """The context for one connection; :class:`InvalidSecurity` if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.check_hostname = security.verify_name
    _load_cas(context, security)
    _load_certificate(context, security)
    return context


def tls_failure(address: Address, error: OSError, host: str | None = None) -> TlsFailed | None:
    """What an error of TLS means; None for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(_distrusted(address, error, host or address.host))
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return TlsFailed(
            f"{address} does not use TLS: connect without --tls and --tls-ca, or use the address of a TLS listener"
        )
    if reason in _CERTIFICATE_MISSING:
        return TlsFailed(f"{address} requires a client certificate: {_GIVE_IT}")
    if reason in _CERTIFICATE_REFUSED:
        return TlsFailed(f"{address} refused this client's certificate ({_words(reason)}): {_CHECK_IT}")
    if isinstance(error, ssl.SSLEOFError):
        return None
    return TlsFailed(f"The TLS handshake with {address} failed: {_words(reason) or 'unknown reason'}")


def answers_tls(address: Address, timeout_ms: float) -> bool:
    """Whether the server uses TLS. To find out why it did not answer: nothing is sent to it, and nothing is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(address, timeout=timeout_ms / 1000) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def explained(address: Address, error: OSError, security: ClientSecurity, *, is_first: bool) -> TlsFailed | None:
    """What an error on a TLS connection means; None if it does not come from TLS. ``is_first``: nothing was ever received from this server."""
    found = tls_failure(address, error)
    return _refusal_of(address, security) if found is None and is_first else found


def _refusal_of(address: Address, security: ClientSecurity) -> TlsFailed | None:
    """Why a server closes connections after the handshake, if it does so because of this client's certificate or the lack of one.

    The reason is lost if the server closes a connection on which something was sent, so here nothing is sent.
    """
    try:
        plain = socket.create_connection(address, timeout=PROBE_SECONDS)
        with encrypted(plain, context_of(security), address, security) as connected:
            if connected.recv(1):
                return None
    except TlsFailed as error:
        return error
    except (TimeoutError, CannotConnect):
        return None
    except OSError as error:
        found = tls_failure(address, error)
        if found is not None or not isinstance(error, ConnectionError | ssl.SSLEOFError):
            return found
    if security.cert_file or security.cert_pem:
        return TlsFailed(f"{address} refused this client's certificate: {_CHECK_IT}")
    return TlsFailed(f"{address} requires a client certificate: {_GIVE_IT}")


def encrypted(
    connected: socket.socket, context: ssl.SSLContext, address: Address, security: ClientSecurity
) -> ssl.SSLSocket:
    """The socket after the handshake; :class:`CannotConnect` or :class:`TlsFailed` if that fails."""
    host = security.server_name or address.host
    try:
        return context.wrap_socket(connected, server_hostname=host)
    except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError) as error:
        raise CannotConnect(f"{address} closed the connection during the TLS handshake: {_MAYBE_PLAIN}") from error
    except TimeoutError as error:
        raise CannotConnect(f"{address} did not answer the TLS handshake in time: {_MAYBE_PLAIN}") from error
    except ssl.SSLError as error:
        failure = tls_failure(address, error, host)
        assert failure is not None, "it is an error of TLS"
        raise failure from error


def _distrusted(address: Address, error: ssl.SSLCertVerificationError, host: str) -> str:
    code = error.verify_code
    if code in _UNKNOWN_CA:
        return f"The certificate of {address} is not signed by a CA that this client trusts: specify the CA's certificate with --tls-ca"
    if code in _WRONG_NAME:
        return f"The certificate of {address} is not valid for {host!r}: connect by a name in the certificate, or specify one with --tls-server-name"
    if code == _EXPIRED:
        return f"The certificate of {address} has expired: renew it on the broker, and check the clock of this machine"
    if code == _NOT_YET_VALID:
        return f"The certificate of {address} is not valid yet: check the clocks of the broker and of this machine"
    if code == _REVOKED:
        return f"The certificate of {address} was revoked"
    return f"The certificate of {address} cannot be verified: {error.verify_message}"


def _words(reason: str) -> str:
    _, alert, rest = reason.partition("_ALERT_")
    return (rest if alert else reason).replace("_", " ").lower()


def _load_cas(context: ssl.SSLContext, security: ClientSecurity) -> None:
    if not security.ca_file and not security.ca_pem:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cafile=security.ca_file, cadata=security.ca_pem)
    except ssl.SSLError:
        where = f"The CA file {security.ca_file}" if security.ca_file else "The CA"
        raise InvalidSecurity(f"{where} contains no certificate in PEM form") from None
    except OSError as error:
        raise InvalidSecurity(f"Cannot read the CA file {security.ca_file}: {error.strerror}") from None


def _load_certificate(context: ssl.SSLContext, security: ClientSecurity) -> None:
    if security.cert_pem:
        import tempfile

        # Python loads certificates from files only. The file belongs to this user alone, and is gone before anything is sent.
        with tempfile.NamedTemporaryFile("w", prefix="penstock-", suffix=".pem") as file:
            file.write(f"{security.cert_pem}\n{security.key_pem or ''}\n")
            file.flush()
            _load_chain(context, file.name, None, security.key_password, "The client's certificate")
    elif security.cert_file:
        for kind, path in (("certificate", security.cert_file), ("key", security.key_file)):
            if path and not os.access(path, os.R_OK):
                raise InvalidSecurity(f"Cannot read the {kind} file {path}")
        _load_chain(context, security.cert_file, security.key_file, security.key_password, security.cert_file)


def _load_chain(context: ssl.SSLContext, cert: str, key: str | None, password: str | None, shown: str) -> None:
    asked: list[bool] = []

    def ask() -> str:
        asked.append(True)
        # Without this, OpenSSL would ask on the terminal.
        if password is None:
            raise InvalidSecurity("The private key is encrypted, and no password for it was given")
        return password

    try:
        context.load_cert_chain(cert, key, ask)
    except InvalidSecurity:
        raise
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = "the private key does not belong to the certificate"
        else:
            why = "the password of the private key is wrong" if asked else "it is not PEM, or has no key"
        raise InvalidSecurity(f"{shown} cannot be used: {why}") from None
    except OSError as error:
        raise InvalidSecurity(f"{shown} cannot be used: {error.strerror or error}") from None
