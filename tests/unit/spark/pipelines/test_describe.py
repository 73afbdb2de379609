"""The documentation says what the declarations say, and its examples are files that pass."""

import re
from pathlib import Path

import pytest

from penstock.spark.pipelines.describe import reference_of_builtins, reference_of_files
from penstock.spark.pipelines.loading import load, loads

ROOT = Path(__file__).resolve().parents[4]
DOCUMENT = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")


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
