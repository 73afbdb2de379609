"""The ``Authorization`` of HTTP and the metadata of gRPC: ``Basic`` with a user and a password, ``Bearer`` with an API key or a token."""

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence
from typing import Final

from penstock.core.security.identity import Bearer, Credential, Password, Secret
from penstock.errors import PenstockError, Reason

NAME: Final = b"authorization"

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")


def credential_in(given: Sequence[bytes]) -> Credential | None:
    """The credential in all values of the header; None without one. AUTHENTICATION_FAILED if it cannot be read."""
    if not given:
        return None
    scheme, _, rest = given[0].strip().partition(b" ")
    rest = rest.strip()
    if len(given) == 1 and scheme.lower() == b"bearer" and _TOKEN.fullmatch(rest):
        return Bearer(Secret(rest))
    if len(given) == 1 and scheme.lower() == b"basic":
        found = _password(rest)
        if found is not None:
            return found
    raise PenstockError(
        Reason.AUTHENTICATION_FAILED,
        "The Authorization header cannot be read; send Basic with a user and a password, or Bearer with an API key or token",
    )


def _password(encoded: bytes) -> Password | None:
    try:
        user, colon, password = b64decode(encoded, validate=True).partition(b":")
        return Password(user.decode(), Secret(password)) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None
