"""Configs of groups."""

import pytest

from penstock.core.groups.configs import GROUP_CONFIGS, check_group_configs, describe_group_configs
from penstock.core.topics.config_table import ConfigSource
from penstock.errors import PenstockError, Reason


@pytest.mark.parametrize("value", ["latest", "EARLIEST", "by_duration:PT1H", "by_duration:P1DT2H3M4.5S"])
def test_where_a_share_group_begins(value: str) -> None:
    assert check_group_configs({"share.auto.offset.reset": value}) == {"share.auto.offset.reset": value}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("share.auto.offset.reset", "none", "by_duration:PT1H"),
        ("share.auto.offset.reset", "by_duration:P", "by_duration:PT1H"),
        ("consumer.session.timeout.ms", "44999", "from 45000 to 60000"),
        ("streams.num.standby.replicas", "3", "from 0 to 2"),
        ("share.isolation.level", "none", "one of read_committed, read_uncommitted"),
        ("session.timeout.ms", "45000", "no group config"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_what_is_allowed(name: str, value: str, text: str) -> None:
    with pytest.raises(PenstockError, match=text) as refused:
        check_group_configs({name: value})
    assert refused.value.reason is Reason.INVALID_CONFIG


def test_a_description_lists_every_config_with_its_source() -> None:
    values = describe_group_configs({"share.delivery.count.limit": "7"})
    assert [value.name for value in values] == list(GROUP_CONFIGS)
    sources = {value.name: value.source for value in values}
    assert sources.pop("share.delivery.count.limit") is ConfigSource.GROUP
    assert set(sources.values()) == {ConfigSource.DEFAULT}
