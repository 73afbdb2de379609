"""A pipeline that would read what it writes is refused; a chain is not."""

from pathlib import Path

import pytest

from penstock.spark.pipelines.errors import FileErrors
from penstock.spark.pipelines.loading import loads

ENDLESS = "is also read, so the pipeline would process its own output endlessly; write to another"
ONE = '[source]\ntopics = ["orders", "more"]\nas = "o"\n'
TWO = '[sources.a]\ntopics = "a"\n[sources.b]\ntopics = "b"\n'


def told(text, overrides=None):
    try:
        loads(text, Path("p.toml"), overrides or {})
    except FileErrors as error:
        return [str(problem) for problem in error.problems]
    return []


def sink(topic, view="") -> str:
    return f'[[sinks]]\nkind = "topic"\ntopic = "{topic}"\n' + (f'from = "{view}"\n' if view else "")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (ONE + sink("more"), [f"p.toml:6: [[sinks]] topic: more {ENDLESS} topic"]),
        (ONE + '[[steps]]\nsql = "SELECT * FROM O"\n' + sink("orders"), [f"p.toml:8: [[sinks]] topic: orders {ENDLESS} topic"]),
        (ONE + '[[steps]]\ndeduplicate = ["key"]\n' + sink("orders"), [f"p.toml:8: [[sinks]] topic: orders {ENDLESS} topic"]),
        (ONE.replace('topics = ["orders", "more"]', 'pattern = "orders"') + sink("big-orders"), [f"p.toml:6: [[sinks]] topic: big-orders {ENDLESS} topic"]),
        (TWO + '[[steps]]\nsql = "SELECT * FROM a JOIN b USING (key)"\n' + sink("b"), [f"p.toml:9: [[sinks]] topic: b {ENDLESS} topic"]),
        # In a circle of two.
        (TWO + sink("b", "a") + sink("a", "b"), [f"p.toml:7: [[sinks]] topic: b {ENDLESS} topic", f"p.toml:11: [[sinks]] topic: a {ENDLESS} topic"]),
        ('[source]\nlake = "lake/"\nformat = "delta"\n[[sinks]]\nkind = "delta"\npath = "lake"\n', [f"p.toml:6: [[sinks]] path: lake {ENDLESS} folder"]),
        (
            '[source]\ntopics = "a"\nschema = "id INT"\non_bad = "dead_letter"\ndead_letters = "a"\n' + sink("x"),
            [f"p.toml:5: [source] dead_letters: a {ENDLESS} topic"],
        ),
    ],
)  # fmt: skip
def test_a_pipeline_that_reads_its_own_output_is_reported_with_its_line(text, problems) -> None:
    assert told(text) == problems


def test_set_can_close_a_circle_too() -> None:
    assert told(ONE + sink("x"), {"sinks.0.topic": "orders"}) == [f"--set: [[sinks]] topic: orders {ENDLESS} topic"]


@pytest.mark.parametrize(
    "text",
    [
        # A chain: the second source reads what the first one's sink writes.
        TWO + sink("b", "a") + sink("c", "b"),
        # Looked up, and no batch begins because of it.
        TWO.replace('"b"\n', '"b"\nstatic = true\n') + '[[steps]]\nsql = "SELECT * FROM a JOIN b USING (key)"\n' + sink("b"),
        '[source]\npattern = "^orders$"\n' + sink("big-orders"),
        '[source]\nlake = "lake"\n[[sinks]]\nkind = "delta"\npath = "lake2"\n',
        # Of the same name, and not the same.
        '[source]\nlake = "orders"\n' + sink("orders"),
    ],
)  # fmt: skip
def test_a_chain_is_not_a_circle(text) -> None:
    assert told(text) == []
