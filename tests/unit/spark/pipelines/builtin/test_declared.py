"""Built-ins are found by name, declared once, and imported without Spark."""

import subprocess
import sys

import msgspec
import pytest

from penstock.spark.pipelines.builtin import SUMMARIES, Arguments, Builtin, builtin_named
from penstock.spark.pipelines.convert import keys_of, wanted_of


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_built_in_is_what_its_name_says_and_every_field_says_what_it_is_for(name) -> None:
    builtin = builtin_named(name)
    assert isinstance(builtin, Builtin)
    assert issubclass(builtin.arguments, Arguments)
    assert builtin.run.__doc__, "the command's help"
    for key, kind in keys_of(builtin.arguments).items():
        assert kind.__metadata__[0].description.endswith((".", "]")), key  # type: ignore[attr-defined]
        assert wanted_of(kind)


def test_checking_files_and_helping_imports_no_spark() -> None:
    program = (
        "import sys\n"
        "from penstock.spark.pipelines.builtin import SUMMARIES, builtin_named\n"
        "import penstock.spark.pipelines.loading, penstock.spark.pipelines.registry, penstock.cli.pipeline\n"
        "[builtin_named(name) for name in SUMMARIES]\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'deltalake', 'pyiceberg'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_a_pipeline_works_on_is_in_its_name() -> None:
    transform = msgspec.convert(
        {"from": ["a", "b=c"], "sql": "SELECT 1", "to": "d"}, builtin_named("transform").arguments
    )
    assert transform.subject() == "a-c-d"
    stats = msgspec.convert({"topics": ["a", "b"]}, builtin_named("stats").arguments)
    assert stats.subject() == "a-b"
