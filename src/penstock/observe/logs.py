"""Log lines on stderr, for people or for programs. Data from a client can neither start a new line nor fill the disk.

A gateway sets ``request_id`` while it serves a request; each line that is logged meanwhile contains it.
"""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\n\t"}

REPEATS_MAX: Final = 20
"""Lines of one kind per minute."""
REPEATS_SECONDS: Final = 60.0
_KINDS_MAX: Final = 1000
_LIMITED: Final = (
    "penstock.kafka",
    "penstock.http",
    "penstock.tcp",
    "penstock.grpc",
    "penstock.peers",
    "penstock.cluster",
    "uvicorn",
)
"""Loggers whose lines others can cause at any rate: a client, another node, or repeated writes to a full disk."""

request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The id of the current request, if there is one."""


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _request_of(record: logging.LogRecord) -> str | None:
    """The request id of ``extra={"request_id": ...}``, for code in which setting the variable is too expensive, or of the variable."""
    given: object = getattr(record, "request_id", None)
    return given if isinstance(given, str) else request_id.get()


class TextFormatter(logging.Formatter):
    """``time level logger: text``; further lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        identity = _request_of(record)
        if identity is not None and identity not in text:
            text = f"{text} (request {identity})"
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        text = text.translate(_CONTROL).replace("\n", "\n    ")
        return f"{_stamp(record)} {record.levelname.lower():7} {record.name}: {text}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        identity = _request_of(record)
        if identity is not None:
            entry["request_id"] = identity
        if record.exc_info:
            error = record.exc_info[1]
            if error is not None:
                entry["error"] = f"{type(error).__name__}: {error}"
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _Window:
    """The lines of one kind in the current minute."""

    __slots__ = ("began", "count")

    def __init__(self, began: float) -> None:
        self.began = began
        self.count = 0


class RepeatLimit(logging.Filter):
    """Limits the lines of one kind per minute.

    For loggers whose lines others can cause, a kind is a logger and a text without its arguments; for all others, the complete
    line. The last line before the limit announces it, and the first one after the minute reports how many lines were dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], _Window] = {}
        self._lines: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.name.startswith(_LIMITED):
            windows, kind = self._windows, (record.name, str(record.msg))
        else:
            windows, kind = self._lines, (record.name, _text_of(record))
        window = windows.get(kind)
        if window is None or not 0 <= record.created - window.began < REPEATS_SECONDS:
            held_back = 0 if window is None else window.count - REPEATS_MAX
            if window is None and len(windows) >= _KINDS_MAX:
                windows.clear()
            window = windows[kind] = _Window(record.created)
            if held_back > 0:
                _append(record, f" ({held_back} more lines like this were not shown)")
        window.count += 1
        if window.count == REPEATS_MAX:
            _append(record, f" (more lines like this in the next {REPEATS_SECONDS:.0f} s are not shown)")
        return window.count <= REPEATS_MAX


def _text_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - the caller must not fail: the handler reports a line that cannot be formatted
        return str(record.msg)


def _append(record: logging.LogRecord, text: str) -> None:
    # Without arguments, the message is not formatted, so it may contain percent signs.
    record.msg, record.args = _text_of(record) + text, ()


def set_up(*, as_json: bool, level: str) -> None:
    """Send the broker's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    handler.addFilter(RepeatLimit())
    for name in ("penstock", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        # Libraries log at most warnings.
        logger.setLevel(
            level.upper() if name == "penstock" else max(logging.WARNING, logging.getLevelName(level.upper()))
        )
        logger.propagate = False
