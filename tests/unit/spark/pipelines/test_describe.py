"""The documentation says what the declarations say, and its examples are files that pass."""

import re
from enum import Enum
from pathlib import Path

import msgspec
import pytest

from penstock.spark.pipelines.builtin import SUMMARIES, builtin_named
from penstock.spark.pipelines.convert import keys_of, wanted_of
from penstock.spark.pipelines.loading import load, loads
from penstock.spark.pipelines.model import PipelineHead, SinkTable, SourceTable, Step

ROOT = Path(__file__).resolve().parents[4]
DOCUMENT = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")


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
    return "\n".join(f"#### {name}\n\n{_table(builtin_named(name).arguments)}" for name in SUMMARIES)


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


def test_the_reference_is_that_of_the_declarations() -> None:
    assert reference_of_files() in DOCUMENT
    assert reference_of_builtins() in DOCUMENT


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "pipelines").glob("*.toml")), ids=lambda path: path.name)
def test_every_example_passes(path) -> None:
    assert load(path).head.name


def test_every_file_in_the_documentation_passes() -> None:
    found = re.findall(r"```toml\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    assert len(found) == 2
    for text in found:
        assert loads(text, Path("documented.toml"), {})
