"""Parses the texts in a file: durations, triggers, start positions, schemas. A ValueError describes what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final

import msgspec

CORRUPT: Final = "_corrupt"
"""The column with the whole value if it does not match its schema."""
RECORD_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of a record, which follow the fields of its JSON value, with an underscore; headers are optional."""
_DURATION: Final = re.compile(
    r"(\d+)\s*(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)", re.IGNORECASE
)
_UNIT_MS: Final = {"ms": 1, "mi": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TYPES: Final = (
    *("STRING", "INT", "INTEGER", "BIGINT", "LONG", "SMALLINT", "SHORT", "TINYINT", "BYTE", "DOUBLE", "FLOAT", "REAL"),
    *("DECIMAL", "DEC", "NUMERIC", "BOOLEAN", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "BINARY"),
    *("ARRAY", "MAP", "STRUCT", "VARIANT", "INTERVAL", "VOID"),
)
_TEXT_TYPES: Final = ("CHAR", "CHARACTER", "VARCHAR", "TEXT")
_MAP: Final = re.compile(r"\bMAP\s*<\s*(\w+)", re.IGNORECASE)
_FIELD: Final = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s:`]+)\s*:?\s*([A-Za-z_]\w*)?", re.DOTALL)
_ONCE: Final = ("once", "available-now", "available now", "availablenow")


@dataclass(frozen=True, slots=True)
class Trigger:
    """When batches run: ``once`` reads the existing records and ends; otherwise at this interval, 0 without pauses."""

    once: bool = False
    every_ms: int = 0


def duration_ms(text: str) -> int:
    """``"10s"``, ``"5 minutes"``, ``"250ms"``."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'"{text}" is not a duration such as "10s", "5 minutes" or "2 hours"')
    unit = found[2].lower()
    scale = _UNIT_MS["ms" if unit.startswith("mill") or unit == "ms" else unit[0]]
    return int(found[1]) * scale


def interval_of(text: str) -> str:
    """A duration for Spark."""
    return f"{duration_ms(text)} milliseconds"


def trigger_of(text: str) -> Trigger:
    """``"once"``, ``"available-now"``, a duration, or nothing."""
    if text.strip().lower() in _ONCE:
        return Trigger(once=True)
    if not text.strip():
        return Trigger()
    try:
        return Trigger(every_ms=duration_ms(text))
    except ValueError:
        raise ValueError(f'"{text}" is not a duration such as "10s", or "once"') from None


def start_options(start: str | Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """The options of the source for the start of its first run."""
    if isinstance(start, Mapping):
        return {"startingOffsets": json.dumps(start)}
    text = start.strip()
    if text in ("earliest", "latest"):
        return {"startingOffsets": text}
    if text.startswith("{"):
        return {"startingOffsets": json.dumps(_offsets(text))}
    unix_ms = moment_ms(text, '"earliest", "latest", a time such as "2026-03-01T12:00:00Z", or offsets')
    return {"startingTimestamp": str(unix_ms), "startingOffsetsByTimestampStrategy": "latest"}


def _offsets(text: str) -> dict[str, dict[str, int]]:
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except msgspec.ValidationError:
        raise ValueError('The offsets must be numbers by topic and partition; write {"orders": {"0": 42}}') from None
    except msgspec.DecodeError as error:
        raise ValueError(f'The offsets are not JSON ({error}); write {{"orders": {{"0": 42}}}}') from None


def moment_ms(text: str, wanted: str = 'a time such as "2026-03-01T12:00:00Z", or a date such as "2026-03-01"') -> int:
    """Milliseconds since 1970 of a date (midnight, UTC) or of a time with a zone. ``wanted`` lists all valid forms."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f'"{text}" is not {wanted}') from None
    if moment.tzinfo is None:
        if "T" in text or ":" in text:
            raise ValueError(f'The time "{text}" has no time zone; write "{text}Z" for UTC, or "{text}+02:00"')
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def check_schema(text: str) -> None:
    """Check the fields of a JSON value as far as possible without Spark: each has a unique name and a type that exists."""
    names: set[str] = set()
    for part in _fields(text):
        if not part.strip():
            raise ValueError('There is an extra comma; write "id INT, amount DOUBLE"')
        found = _FIELD.match(part)
        if found is None or found[2] is None:
            raise ValueError(f'"{part.strip()}" has no type; write "{part.strip()} STRING"')
        if found[2].upper() in _TEXT_TYPES:
            raise ValueError(
                f"{found[1]} has the type {found[2]}, which Spark does not read from JSON; write {found[1]} STRING"
            )
        for keys in _MAP.findall(part):
            if keys.upper() != "STRING":
                raise ValueError(
                    f"{found[1]} is a map with {keys} keys, but keys in JSON are strings; write MAP<STRING, ...>"
                )
        if found[2].upper() not in _TYPES:
            close = get_close_matches(found[2].upper(), _TYPES, n=1)
            meant = (
                f"did you mean {close[0]}?"
                if close
                else "use one of Spark's types, such as STRING, INT, DOUBLE or TIMESTAMP"
            )
            raise ValueError(f"{found[1]} has the unknown type {found[2]}; {meant}")
        # Spark ignores the case of names.
        name = found[1].strip("`").lower()
        if name in names:
            raise ValueError(f"{found[1]} appears twice; name each field once (upper and lower case are the same)")
        names.add(name)
    for name in RECORD_COLUMNS:
        if f"_{name}" in names:
            raise ValueError(f"_{name} is a column of every record and added automatically; remove it")
    if CORRUPT in names:
        raise ValueError(f"{CORRUPT} is added automatically and contains values that do not match; remove it")


def _fields(text: str) -> list[str]:
    """The parts between commas outside of brackets and quotes."""
    parts, depth, start, quote = [], 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise ValueError(f"The brackets do not match in {text!r}")
    return [*parts, text[start:]]
