"""Settings for people: nothing undocumented, and an example file that is true."""

import re
from pathlib import Path

import msgspec

from penstock.config import load
from penstock.config.describe import describe, example_toml, reference
from penstock.settings import SECTIONS, Settings, SourceKind

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_setting_is_described() -> None:
    described = list(describe(Settings()))
    assert [setting.path for setting in described if not setting.description] == []
    assert {setting.path for setting in described} == {
        f"{name}.{field.name}" for name, section in SECTIONS.items() for field in msgspec.structs.fields(section)
    }


def test_every_section_has_a_sentence() -> None:
    assert [name for name, section in SECTIONS.items() if not section.__doc__] == []


def test_values_are_as_json_has_them() -> None:
    shown = {setting.path: setting for setting in describe(load(None, {}, {"listeners.tcp": "off", "log.flush": "os"}))}
    assert shown["listeners.tcp"].plain == "off"
    assert shown["listeners.kafka"].plain == "127.0.0.1:9092"
    assert (shown["log.flush"].plain, shown["log.flush"].default) == ("os", "sync")
    assert shown["topics.auto_create"].plain is True
    assert shown["log.flush"].source.kind is SourceKind.FLAG


def test_topic_defaults_are_listed_when_set() -> None:
    settings = load(None, {"PENSTOCK__TOPIC_DEFAULTS__RETENTION_MS": "5"})
    (setting,) = [each for each in describe(settings) if each.path.startswith("topic_defaults")]
    assert (setting.path, setting.plain) == ("topic_defaults.retention.ms", "5")


def test_the_example_changes_nothing_as_it_is(tmp_path) -> None:
    (tmp_path / "example.toml").write_text(example_toml())
    assert load(tmp_path / "example.toml") == Settings()


def test_the_example_with_every_setting_uncommented_is_the_defaults(tmp_path) -> None:
    text = re.sub(r'^# (?=[a-z_]+ = |"[a-z.]+" = )', "", example_toml(), flags=re.MULTILINE)
    (tmp_path / "example.toml").write_text(text)
    settings = load(tmp_path / "example.toml")
    defaults = Settings()
    for name in SECTIONS:
        assert getattr(settings, name) == getattr(defaults, name)
    assert len(settings.sources) == len(list(describe(defaults))) + 2, "two topic defaults are shown as examples"


def test_the_documented_example_is_the_one_that_the_command_prints() -> None:
    assert (DOCS / "penstock.toml").read_text() == example_toml(), (
        "write it anew: penstock config example > docs/penstock.toml"
    )


def test_the_documentation_has_every_setting() -> None:
    assert reference().rstrip() in (DOCS / "configuration.md").read_text(), (
        "put penstock.config.describe.reference() into it anew"
    )
