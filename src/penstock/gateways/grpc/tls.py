"""The TLS of the gRPC listener, whose library has its own: from the same files, and changed together with the other listeners."""

import logging
import ssl
from typing import Any, Final

import grpc

from penstock.errors import PenstockError, Reason
from penstock.settings import ClientAuth, TlsVersion
from penstock.transport.tls import ServerTls

logger: Final = logging.getLogger("penstock.grpc")


def credentials_of(tls: ServerTls) -> Any:
    """Credentials that follow the files. ValueError for settings that gRPC cannot keep."""
    if tls.settings.min_version is TlsVersion.TLS_1_3:
        raise ValueError(
            "gRPC cannot refuse TLS 1.2; set min_version to 1.2 in [tls.grpc], or turn the listener off with --grpc off"
        )
    if tls.settings.client_auth is ClientAuth.REQUESTED:
        logger.info("gRPC cannot request certificates without requiring them: clients are not asked for one")
    followed = _Followed(tls)
    return grpc.dynamic_ssl_server_credentials(
        followed.configuration(),
        followed.changed,
        require_client_authentication=tls.settings.client_auth is ClientAuth.REQUIRED,
    )


def certificate_name(context: Any, tls: ServerTls) -> str | None:
    """The principal's name for the certificate of a call; None if the client presented none. AUTHENTICATION_FAILED if no rule matches it."""
    found = context.auth_context().get("x509_pem_cert")
    if not found:
        return None
    try:
        return tls.name_of(ssl.PEM_cert_to_DER_cert(found[0].decode()))
    except ValueError as error:
        raise PenstockError(Reason.AUTHENTICATION_FAILED, str(error)) from None


class _Followed:
    """Which of the contents gRPC has."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._version = tls.version

    def configuration(self) -> Any:
        """The contents of the files, as gRPC takes them."""
        pems = self._tls.pems
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.chain)], root_certificates=pems.authorities)

    def changed(self) -> Any:
        """The new contents, or None if gRPC has them. Called for each connection, on a thread of gRPC: it must not read files."""
        version = self._tls.version
        if version == self._version:
            return None
        self._version = version
        return self.configuration()
