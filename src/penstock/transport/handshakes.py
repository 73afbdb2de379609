"""Why a connection did not get in, in words and as a label of a metric."""

import ssl
from typing import Final, NamedTuple

TLS_RECORD: Final = 0x16
"""The first byte of a TLS handshake. A Kafka frame below 16 MiB begins with 0, JSON and HTTP with printable characters."""


class Failure(NamedTuple):
    """The label for the metric, and the words for the log."""

    label: str
    words: str


CROWDED: Final = Failure(
    "crowded", "there were too many connections that had not proved who they are, and it was the oldest"
)
DISCONNECTED: Final = Failure("disconnected", "the client disconnected during the TLS handshake")
NOT_TLS: Final = Failure(
    "not_tls", "the client does not use TLS, which this listener requires; configure TLS in the client"
)
TLS_ON_PLAIN: Final = Failure(
    "tls_on_plain",
    "the client uses TLS, but this listener does not; configure the client without TLS, or the listener with it",
)
NO_NAME: Final = "no_name"
"""The label for certificates from whose subject no rule makes a name; the words say more."""
TOO_MANY: Final = "too_many"
"""The label for connections above the quota or the limit of their address; the words say more."""
TIMEOUT: Final = Failure("timeout", "the TLS handshake took too long")
_OTHER: Final = "other"

_BY_REASON: Final[dict[str, Failure]] = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": Failure("no_certificate", "the client did not present a certificate, which this listener requires"),
    "TLSV1_ALERT_UNKNOWN_CA": Failure("refused_by_client", "the client does not trust the authority of this listener's certificate; give it the CA file"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": Failure("refused_by_client", "the client refused this listener's certificate, because it has expired"),
    "SSLV3_ALERT_BAD_CERTIFICATE": Failure("refused_by_client", "the client refused this listener's certificate, for example because it is for another name"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": Failure("refused_by_client", "the client refused this listener's certificate"),
    "UNSUPPORTED_PROTOCOL": Failure("version", "the client speaks only versions of TLS that are too old"),
    "NO_SHARED_CIPHER": Failure("cipher", "the client supports none of the ciphers of this listener"),
    "WRONG_VERSION_NUMBER": NOT_TLS,
}  # fmt: skip


def why(error: OSError) -> Failure:
    """What a failed handshake means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure("certificate", f"the client's certificate is not valid: {error.verify_message}")
    if isinstance(error, ssl.SSLEOFError):
        return DISCONNECTED
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _BY_REASON.get(reason) or Failure(_OTHER, reason.replace("_", " ").lower() or "the TLS handshake failed")
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return TIMEOUT
    if isinstance(error, ConnectionError):
        return DISCONNECTED
    return Failure(_OTHER, str(error))
