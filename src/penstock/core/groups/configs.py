"""Configs of groups, by Kafka's names and with Kafka's limits.

They belong to the newer group protocols, which are not supported yet: the configs are stored and listed, but have no effect.
"""

import re
from collections.abc import Mapping
from typing import Final

from penstock.core.topics.config import ConfigSynonym, ConfigValue, described
from penstock.core.topics.config_table import ConfigDefinition, ConfigKind, ConfigSource, config_table
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX

_LATER: Final = "Stored and listed, but has no effect: the protocol of these groups is not supported yet."
_RESET: Final = re.compile(
    r"latest|earliest|by_duration:P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d{0,9})?S)?)?", re.IGNORECASE
)


def _number(name: str, default: int, low: int, high: int | None, text: str) -> ConfigDefinition:
    return ConfigDefinition(name, ConfigKind.INT, str(default), f"{text} {_LATER}", low=low, high=high)


def _of_members(kind: str, members: str) -> list[ConfigDefinition]:
    """The configs that the groups of each newer protocol have."""
    return [
        _number(f"{kind}.session.timeout.ms", 45_000, 45_000, 60_000, f"A member of {members} without a heartbeat for this long is removed."),
        _number(f"{kind}.heartbeat.interval.ms", 5_000, 5_000, 15_000, f"How often a member of {members} sends a heartbeat."),
        _number(f"{kind}.assignment.interval.ms", 1_000, 0, 15_000, f"The minimum time between two assignments of {members}."),
    ]  # fmt: skip


GROUP_CONFIGS: Final = config_table(
    *_of_members("consumer", "a consumer group"),
    *_of_members("share", "a share group"),
    *_of_members("streams", "a streams group"),
    ConfigDefinition(
        "share.auto.offset.reset",
        ConfigKind.STRING,
        "latest",
        f"The starting position of a share group. {_LATER}",
        pattern=_RESET,
        pattern_text="latest, earliest, or by_duration: with an ISO 8601 duration such as by_duration:PT1H",
    ),
    _number("share.delivery.count.limit", 5, 2, 10, "The maximum number of deliveries of a record to a share group."),
    ConfigDefinition(
        "share.isolation.level",
        ConfigKind.STRING,
        "read_uncommitted",
        f"Whether a share group reads records of open transactions. {_LATER}",
        choices=("read_committed", "read_uncommitted"),
    ),
    _number(
        "share.partition.max.record.locks", 2_000, 100, 4_000, "The maximum number of in-flight records per partition."
    ),
    _number(
        "share.record.lock.duration.ms",
        30_000,
        15_000,
        60_000,
        "How long a record is locked by a member of a share group.",
    ),
    ConfigDefinition(
        "share.renew.acknowledge.enable",
        ConfigKind.BOOLEAN,
        "true",
        f"Whether a member of a share group can extend the lock of a record. {_LATER}",
    ),
    _number("streams.initial.rebalance.delay.ms", 3_000, 0, None, "How long an empty streams group waits for members."),
    _number("streams.num.standby.replicas", 0, 0, 2, "The number of standby replicas of each task of a streams group."),
)


def group_config(name: str) -> ConfigDefinition:
    """The config of that name, or ``INVALID_CONFIG``."""
    definition = GROUP_CONFIGS.get(name)
    if definition is None:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"There is no group config {name[:100]!r}. Describe the group's configs to see their names",
        )
    return definition


def check_group_name(name: str) -> None:
    """``INVALID_GROUP_ID`` unless a group can have this name."""
    if not 0 < len(name) <= GROUP_ID_CHARS_MAX:
        raise PenstockError(
            Reason.INVALID_GROUP_ID, f"The name of a group has 1 to {GROUP_ID_CHARS_MAX} characters. Name one group"
        )


def check_group_configs(values: Mapping[str, str]) -> dict[str, str]:
    """The normalized values."""
    return {name: group_config(name).check(value) for name, value in values.items()}


def describe_group_configs(values: Mapping[str, str]) -> list[ConfigValue]:
    """All group configs by name, with their values and where these were set."""
    found = []
    for name, definition in GROUP_CONFIGS.items():
        own = [ConfigSynonym(name, values[name], ConfigSource.GROUP)] if name in values else []
        default = ConfigSynonym(name, definition.default, ConfigSource.DEFAULT)
        found.append(described(definition, [*own, default]))
    return found
