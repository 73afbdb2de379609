"""The table of rights in docs/security.md is the one that the operations declare."""

import re
from pathlib import Path

import pytest

from penstock.operations.catalogue import CATALOGUE
from penstock.operations.operation import AnyOperation, Resource, Right

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "security.md"


def words(right: Right) -> str:
    """A right as the document writes it."""
    action, resource = (part.value.replace("_", "-") for part in (right.action, right.resource))
    if not right.field and not right.any_name and right.resource is not Resource.CLUSTER:
        return f"none; only each {resource} with `{action}` is listed"
    text = f"`{action} {resource}`"
    if right.each:
        text += " of each"
    elif right.any_name:
        text += " of any name"
    elif right.resource is Resource.CLUSTER and right.field:
        text += f" if `{right.field}` is set"
    return f"{text} or `{right.or_cluster.value.replace('_', '-')} cluster`" if right.or_cluster else text


def declared() -> dict[str, str]:
    return {name: ", ".join(map(words, operation.rights)) for name, operation in CATALOGUE.items()}


def documented(text: str) -> dict[str, str]:
    """Each operation and its rights, from rows such as ``| DeleteTopic, DeleteGroups | rights |``."""
    return {
        name: rights
        for names, rights in re.findall(r"^\| ([A-Z]\w+(?:, [A-Z]\w+)*) \| (.+) \|$", text, flags=re.MULTILINE)
        for name in names.split(", ")
        if name in CATALOGUE
    }


def table(rights: dict[str, str]) -> str:
    """The rows that the document should have."""
    rows: dict[str, list[str]] = {}
    for name, needed in rights.items():
        rows.setdefault(needed, []).append(name)
    return "\n".join(f"| {', '.join(names)} | {needed} |" for needed, names in rows.items())


def test_the_table_of_rights_is_the_declared_one() -> None:
    assert documented(DOCUMENT.read_text(encoding="utf-8")) == declared(), f"write this table:\n{table(declared())}"


@pytest.mark.parametrize("change", ["| CreateTopic, ", "`read group`"])
def test_a_table_that_lacks_something_is_noticed(change: str) -> None:
    rows = table(declared())
    assert change in rows
    assert documented(rows.replace(change, "| ", 1)) != declared()


def test_every_operation_declares_rights() -> None:
    unasked: list[type[AnyOperation[object]]] = [operation for operation in CATALOGUE.values() if not operation.rights]
    assert unasked == []
