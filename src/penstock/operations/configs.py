"""Configs that were set on topics, groups and nodes while the broker runs."""

import msgspec

from penstock.operations.operation import (
    ANY_NODE,
    Action,
    Operation,
    Repeat,
    on_cluster,
    on_group,
    on_topic,
)

ALL_NODES = ""
"""The node of configs that hold for all of them."""


class DescribeConfigs(Operation[dict[str, str]], frozen=True):
    """What was set on one topic, group or node itself."""

    topic: str | None = None
    group: str | None = None
    node: str | None = None

    rights = (
        on_topic(Action.DESCRIBE_CONFIGS),
        on_group(Action.DESCRIBE_CONFIGS),
        on_cluster(Action.DESCRIBE_CONFIGS, "node"),
    )
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class ConfigEdit(msgspec.Struct, frozen=True):
    """A change of one config: set it (0), delete it (1), or append to (2) or subtract from (3) its list."""

    name: str
    kind: int
    value: str | None = None


class AlterConfigs(Operation[None], frozen=True):
    """Change some configs of one topic, group or node: all of them, or none if one cannot be changed."""

    edits: tuple[ConfigEdit, ...]
    topic: str | None = None
    group: str | None = None
    node: str | None = None
    validate_only: bool = False

    rights = (on_topic(Action.ALTER_CONFIGS), on_group(Action.ALTER_CONFIGS), on_cluster(Action.ALTER_CONFIGS, "node"))
    belongs_to = ANY_NODE


class ReplaceConfigs(Operation[None], frozen=True):
    """Give one topic, group or node these configs and no others. Each needs a value."""

    configs: dict[str, str | None]
    topic: str | None = None
    group: str | None = None
    node: str | None = None
    validate_only: bool = False

    rights = (on_topic(Action.ALTER_CONFIGS), on_group(Action.ALTER_CONFIGS), on_cluster(Action.ALTER_CONFIGS, "node"))
    belongs_to = ANY_NODE


class ConfiguredResources(msgspec.Struct, frozen=True):
    """The topics, and the groups that have configs."""

    topics: tuple[str, ...]
    groups: tuple[str, ...]


class ListConfiguredResources(Operation[ConfiguredResources], frozen=True):
    """The topics and groups with configs that the caller may describe."""

    rights = (on_cluster(Action.DESCRIBE_CONFIGS),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS
