"""Bytes in JSON, the same everywhere: UTF-8 is given as it is, anything else as base64, with a word beside it that says so."""

from base64 import b64decode, b64encode
from typing import Final, Literal, overload

BASE64: Final = "base64"


@overload
def text_of(data: bytes) -> tuple[str, Literal["base64"] | None]: ...
@overload
def text_of(data: bytes | None) -> tuple[str | None, Literal["base64"] | None]: ...
def text_of(data: bytes | None) -> tuple[str | None, Literal["base64"] | None]:
    """Bytes as text, and its encoding; None for what is text already, and for nothing."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return b64encode(data).decode("ascii"), BASE64


def bytes_of(text: str, encoding: str | None) -> bytes:
    """Text as bytes. ValueError when it is not the base64 that its encoding says."""
    return b64decode(text, validate=True) if encoding == BASE64 else text.encode()
