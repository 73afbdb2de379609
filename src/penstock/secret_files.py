"""Files with secrets: private keys, passwords, tokens. A file that other users of the machine can read is refused."""

import os
import stat
from typing import Final

from penstock.errors import PenstockError, Reason

SECRET_BYTES_MAX: Final = 64 * 1024
"""The longest secrets are a private key with its certificate chain, and a token with many groups."""
_OTHERS: Final = stat.S_IRWXO | stat.S_IRWXG
_OTHERS_OF_ROOTS: Final = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
"""A file of root may be readable by the group that the service runs in."""


def read_secret(path: str) -> bytes:
    """The content of the file. ValueError says what is wrong with it and never shows the content."""
    try:
        # The permissions are those of the file that is read, whatever happens to its name meanwhile.
        with open(path, "rb") as file:
            _check(path, os.fstat(file.fileno()))
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {os.strerror(error.errno or 0).lower()}") from None
    if len(content) > SECRET_BYTES_MAX:
        raise ValueError(f"{path} has more than {SECRET_BYTES_MAX} bytes; check that it is the right file")
    return content


def read_secret_text(path: str) -> str:
    """The text in the file, without the line end. INVALID_CONFIG says what is wrong with the file."""
    try:
        found = read_secret(path).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise PenstockError(Reason.INVALID_CONFIG, f"The file {path} is not UTF-8") from None
    except ValueError as error:
        raise PenstockError(Reason.INVALID_CONFIG, str(error)) from None
    if not found:
        raise PenstockError(Reason.INVALID_CONFIG, f"The file {path} is empty")
    return found


def _check(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        # A pipe, such as one from <(...), belongs to the process that opened it.
        return
    forbidden = _OTHERS_OF_ROOTS if found.st_uid == 0 else _OTHERS
    if stat.S_IMODE(found.st_mode) & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        raise ValueError(f"Other users can read {path} (mode {mode:04o}): protect it with chmod 600 {path}")
