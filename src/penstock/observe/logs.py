"""Log lines on stderr, for people or for programs. What a client sent can never start a line of its own."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\n\t"}


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """``time level logger: text``; further lines of a trace are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, one entry."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        text = text.translate(_CONTROL).replace("\n", "\n    ")
        return f"{_stamp(record)} {record.levelname.lower():7} {record.name}: {text}"


class JsonFormatter(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, one line."""
        entry = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up(*, as_json: bool, level: str) -> None:
    """Send the broker's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    for name in ("penstock", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        # What the libraries say in passing is not for an operator.
        logger.setLevel(
            level.upper() if name == "penstock" else max(logging.WARNING, logging.getLevelName(level.upper()))
        )
        logger.propagate = False
