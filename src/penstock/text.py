"""Bytes in JSON, the same everywhere: as text if they are UTF-8, otherwise as base64, with an encoding that says so."""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Final, Literal, overload

BASE64: Final = "base64"


@overload
def text_of(data: bytes) -> tuple[str, Literal["base64"] | None]: ...
@overload
def text_of(data: bytes | None) -> tuple[str | None, Literal["base64"] | None]: ...
def text_of(data: bytes | None) -> tuple[str | None, Literal["base64"] | None]:
    """Bytes as text, and the encoding; the encoding is None for UTF-8 and for null."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return b64encode(data).decode("ascii"), BASE64


def texts_of(headers: Iterable[tuple[str, bytes | None]]) -> tuple[dict[str, str | None], dict[str, Any]]:
    """The headers of a record as text, and the encodings of those that are not UTF-8. The last value of each name counts."""
    texts: dict[str, str | None] = {}
    encodings: dict[str, Any] = {}
    for name, value in headers:
        encodings.pop(name, None)
        texts[name], encoding = text_of(value)
        if encoding is not None:
            encodings[name] = encoding
    return texts, encodings


def bytes_of(text: str, encoding: str | None) -> bytes:
    """Text as bytes. ValueError if it is not valid base64 although its encoding says so."""
    return b64decode(text, validate=True) if encoding == BASE64 else text.encode()
