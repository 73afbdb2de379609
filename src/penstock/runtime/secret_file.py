"""Files with secrets: small, and readable by their owner alone."""

import os
import stat
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.limits import KIB

_BYTES_MAX: Final = 4 * KIB
_ROOT: Final = 0


def read_secret(path: str) -> str:
    """The text in a file, without the line end. INVALID_CONFIG if it cannot be read, or others can read it."""
    try:
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            _check(path, state)
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno is not None else str(error)
        raise PenstockError(Reason.INVALID_CONFIG, f"The file {path} cannot be read: {why}") from None
    if len(text) > _BYTES_MAX:
        raise PenstockError(Reason.INVALID_CONFIG, f"The file {path} is longer than {_BYTES_MAX} bytes")
    try:
        found = text.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise PenstockError(Reason.INVALID_CONFIG, f"The file {path} is not UTF-8") from None
    if not found:
        raise PenstockError(Reason.INVALID_CONFIG, f"The file {path} is empty")
    return found


def _check(path: str, state: os.stat_result) -> None:
    """A pipe, such as one from ``<(...)``, belongs to the process that opened it."""
    if not stat.S_ISREG(state.st_mode):
        return
    allowed = stat.S_IRWXU | (stat.S_IRGRP if state.st_uid == _ROOT else 0)
    if stat.S_IMODE(state.st_mode) & ~allowed:
        raise PenstockError(
            Reason.INVALID_CONFIG, f"Others can read or write {path}, which has a secret: run chmod 600 {path}"
        )
