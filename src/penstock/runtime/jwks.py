"""Fetches the keys of an identity provider in a thread: from a file, or over https without redirects; bounded in bytes and time."""

import asyncio
import http.client
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from penstock.limits import JWKS_BYTES_MAX, JWKS_FETCH_SECONDS_MAX, KIB
from penstock.settings import OauthSettings

_STEP_SECONDS: Final = 5.0
"""For connecting, and for each read."""
_PART_BYTES: Final = 16 * KIB


def key_source(settings: OauthSettings) -> Callable[[], Awaitable[bytes]]:
    """What :class:`~penstock.core.security.tokens.Tokens` fetches with."""

    async def fetch() -> bytes:
        if settings.jwks_file:
            return await asyncio.to_thread(_read, settings.jwks_file)
        return await asyncio.to_thread(_get, settings.jwks_url)

    return fetch


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return _bounded(file.read(JWKS_BYTES_MAX + 1))


def _get(url: str) -> bytes:
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise OSError("The address does not begin with https://")
    ends = time.monotonic() + JWKS_FETCH_SECONDS_MAX
    connection = http.client.HTTPSConnection(
        parts.hostname, parts.port, timeout=_STEP_SECONDS, context=ssl.create_default_context()
    )
    try:
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection.request("GET", target, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise OSError(f"The provider answered {response.status}; redirects are not followed")
        found = b""
        while part := response.read1(_PART_BYTES):
            found = _bounded(found + part)
            if time.monotonic() > ends:
                raise OSError("The provider sends too slowly")
        return found
    except http.client.HTTPException as error:
        raise OSError(f"The provider's answer is not HTTP: {type(error).__name__}") from None
    finally:
        connection.close()


def _bounded(found: bytes) -> bytes:
    if len(found) > JWKS_BYTES_MAX:
        raise OSError(f"There are more than {JWKS_BYTES_MAX} bytes")
    return found
