"""Generate the reference of the file format and of the built-ins. It is part of ``docs/pipelines.md``; a test checks that it is current."""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.spark.pipelines.builtin import MODULES, builtin_named
from penstock.spark.pipelines.convert import keys_of, wanted_of
from penstock.spark.pipelines.model import PipelineHead, SinkTable, SourceTable, Step


def reference_of_files() -> str:
    """A table for each table of a file."""
    tables: dict[str, type[msgspec.Struct]] = {
        "[pipeline]": PipelineHead,
        "[source], [sources.NAME]": SourceTable,
        "[[steps]]": Step,
        "[[sinks]]": SinkTable,
    }
    return "\n".join(f"### {title}\n\n{kind.__doc__}\n\n{_table(kind)}" for title, kind in tables.items())


def reference_of_builtins() -> str:
    """A table for each built-in; a key is an option of its command, too."""
    return "\n".join(f"#### {name}\n\n{_table(builtin_named(name).arguments)}" for name in MODULES)


def _table(kind: type[msgspec.Struct]) -> str:
    hints = keys_of(kind)
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(kind):
        hint = hints[field.encode_name]
        meaning = _description(hint).replace("|", "\\|")
        lines.append(f"| `{field.encode_name}` | {wanted_of(hint)} | {_default(field)} | {meaning} |")
    return "\n".join([*lines, ""])


def _description(hint: object) -> str:
    metas = getattr(hint, "__metadata__", ())
    return next((meta.description or "" for meta in metas if isinstance(meta, msgspec.Meta)), "")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        return f'`"{value.value}"`'
    if isinstance(value, str):
        return f'`"{value}"`' if value else ""
    return f"`{value}`" if isinstance(value, int | float) else ""
