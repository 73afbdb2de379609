"""Recognises clients of other protocols by the first bytes that they send."""

from typing import Final

from penstock.gateways.tcp.errors import WRONG_PROTOCOL, Refused

_METHODS: Final = (
    *(b"GET ", b"HEAD ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ", b"OPTIONS ", b"TRACE ", b"CONNECT ", b"PRI "),
)
"""Web pages cannot make a browser use another method without a preflight request, which is OPTIONS."""
TLS: Final = b"\x16\x03"
"""A handshake. Its bytes may contain lines that a server chose: the ticket of an earlier session."""

OPENING_BYTES: Final = max(map(len, _METHODS))
"""The number of first bytes that are enough to tell."""


def wrong_protocol(opening: bytes) -> Refused | None:
    """Why a connection that begins with these bytes is refused; None if it may be JSON. Fewer bytes may not tell yet."""
    if opening.startswith(_METHODS):
        return Refused(
            WRONG_PROTOCOL, "This listener takes lines of JSON, not HTTP; send HTTP requests to the listener for HTTP"
        )
    if opening.startswith(TLS):
        return Refused(WRONG_PROTOCOL, "This listener does not use TLS; connect without it")
    return None
