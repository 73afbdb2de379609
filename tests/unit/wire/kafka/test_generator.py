import importlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]


@pytest.fixture
def generator(monkeypatch):
    pytest.importorskip("kio", reason="the generator reads the schemas that kio carries: pip install '.[dev]'")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("generate_kafka_codec")
    for name in [name for name in sys.modules if name.startswith(("generate_kafka_codec", "kafka_codec"))]:
        del sys.modules[name]


def test_the_committed_codec_is_what_the_generator_writes(generator) -> None:
    assert generator.stale(generator.generate()) == [], "run: python tools/generate_kafka_codec.py"


def test_the_same_schemas_give_the_same_bytes(generator) -> None:
    assert generator.generate() == generator.generate()


def test_a_changed_missing_or_left_over_module_is_noticed(generator) -> None:
    sources = generator.generate()
    sources["fetch_generated.py"] = sources["fetch_generated.py"].replace(">ihqqqB", ">ihqqqb")
    del sources["produce_generated.py"]
    sources["new_generated.py"] = ""
    assert generator.stale(sources) == ["fetch_generated.py", "new_generated.py", "produce_generated.py"]
