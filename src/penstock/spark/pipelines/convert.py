"""Converts a table of a file to a struct, or reports all its problems, each with the line and what to write instead."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from datetime import date, datetime
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from penstock.spark.pipelines.locate import Path

Report = Callable[[Path, str], None]
S = TypeVar("S", bound=msgspec.Struct)


def table_of(kind: type[S], value: object, path: Path, report: Report) -> S | None:
    """The struct; None if a problem was reported."""
    if not isinstance(value, dict):
        report(
            path,
            f"{named(path)}: got {shown(value)}, expected a table: write [{named(path).strip('[]')}] on a separate line",
        )
        return None
    types_by_key = keys_of(kind)
    found: dict[str, object] = {}
    right = True
    for key, given in value.items():
        if key not in types_by_key:
            report((*path, key), f"{named(path)} {key}: unknown; {suggestion(key, types_by_key)}")
            right = False
            continue
        plain = given.isoformat() if isinstance(given, date | datetime) else given
        try:
            found[key] = msgspec.convert(plain, types_by_key[key])
        except msgspec.ValidationError:
            wanted = wanted_of(types_by_key[key])
            report(
                (*path, key),
                f"{named(path)} {key}: got {shown(given)}, expected {wanted}{_hint(given, types_by_key[key])}",
            )
            right = False
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in value:
            wanted = wanted_of(types_by_key[field.encode_name])
            report(
                path,
                f"{named(path)} {field.encode_name} is missing; write {field.encode_name} = {_example(types_by_key[field.encode_name], wanted)}",
            )
            right = False
    return msgspec.convert(found, kind) if right else None


def keys_of(kind: type[msgspec.Struct]) -> dict[str, object]:
    """The annotated type of each key, by its name in a file."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def named(path: Path) -> str:
    """The name of a table in a file: ``[source]``, ``[[steps]]``, ``[sources.orders]``."""
    name = ".".join(part for part in path if isinstance(part, str))
    return f"[[{name}]]" if path and isinstance(path[-1], int) else f"[{name}]"


def suggestion(name: str, known: Iterable[str]) -> str:
    """A similar name, or all names."""
    listed = list(known)
    close = get_close_matches(name, listed, n=1)
    return f"did you mean {close[0]}?" if close else f"available: {', '.join(listed)}"


def bare(kind: object) -> object:
    """A type without its description."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def choices_of(kind: object) -> list[str]:
    """The values of an enum; empty for other types."""
    plain = bare(kind)
    return [str(member.value) for member in plain] if isinstance(plain, type) and issubclass(plain, Enum) else []


def wanted_of(kind: object) -> str:
    """A type in words."""
    plain = bare(kind)
    choices = choices_of(plain)
    if choices:
        return _either([f'"{choice}"' for choice in choices])
    origin = get_origin(plain)
    if origin in (Union, types.UnionType):
        return _either([wanted_of(each) for each in get_args(plain) if each is not type(None)])
    if origin in (list, tuple):
        return "a list of strings"
    if origin is dict or plain is dict:
        return "a table"
    names: dict[object, str] = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
    return names.get(plain, str(plain))


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _hint(given: object, kind: object) -> str:
    if isinstance(given, str):
        close = get_close_matches(given.lower(), choices_of(kind), n=1)
        if close:
            return f'; did you mean "{close[0]}"?'
        if given.isdigit() and wanted_of(kind) in ("an integer", "a number"):
            return f"; write {given} without quotes"
        if given in ("true", "false") and bare(kind) is bool:
            return f"; write {given} without quotes"
        if wanted_of(kind) == "a list of strings":
            return f'; write ["{given}"]'
    if isinstance(given, int | float) and not isinstance(given, bool) and bare(kind) is str:
        return f'; write "{given}"'
    return ""


def _example(kind: object, wanted: str) -> str:
    choices = choices_of(kind)
    if choices:
        return wanted
    return {"a string": '"..."', "a list of strings": '["..."]'}.get(wanted, wanted)


def shown(value: object) -> str:
    """A value as in a file, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    text = f'"{value}"' if isinstance(value, str) else str(value).replace("'", '"')
    return text if len(text) <= 60 else text[:56] + ' ..."'
