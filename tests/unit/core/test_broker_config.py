"""Which configs of a broker can change while it runs, and what is said of the others."""

import re
from pathlib import Path

import pytest

from penstock.core.broker_config import _IN_THE_FILE, BROKER_CONFIGS, broker_config, topic_values
from penstock.core.topics.config_table import TOPIC_CONFIGS
from penstock.errors import PenstockError, Reason
from penstock.settings import Settings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("num.partitions", "Set topics.partitions in the broker's configuration file and restart it"),
        ("log.retention.hours", "Set log.retention.ms instead"),
        ("log.flush.interval.ms", "Set log.flush in the broker's configuration file"),
        ("num.network.threads", "This broker has no setting for it"),
        ("leader.replication.throttled.replicas", "This broker has no setting for it"),
    ],
)
def test_a_config_that_cannot_change_is_refused_by_name_with_what_to_do(name: str, text: str) -> None:
    with pytest.raises(PenstockError) as refused:
        broker_config(name)
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert refused.value.text.startswith(f"{name} cannot be changed dynamically. {text}")


@pytest.mark.parametrize("path", sorted(set(_IN_THE_FILE.values())))
def test_every_setting_that_a_refusal_names_exists(path: str) -> None:
    section, name = path.split(".")
    assert hasattr(getattr(Settings(), section), name)


def test_every_config_that_can_change_has_an_effect_here() -> None:
    inert = {name for definition in TOPIC_CONFIGS.values() if definition.is_inert for name in definition.broker_names}
    assert not inert & BROKER_CONFIGS.keys()


def test_the_documentation_lists_every_config_that_can_change() -> None:
    text = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    section = text.split("## Changing settings while the broker runs")[1].split("\n## ")[0]
    table = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([^`]+)`", table)) == set(BROKER_CONFIGS)


def test_broker_wide_values_are_those_of_topic_configs() -> None:
    values = {"log.retention.ms": "5", "message.max.bytes": "6", "max.connections": "7"}
    assert topic_values(values) == {"retention.ms": "5", "max.message.bytes": "6"}
