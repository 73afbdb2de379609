"""The configs of a topic: from Kafka's texts to typed values, and how they change.

A value is the topic's override, else the broker's dynamic config, else that of the broker's configuration file (``[topic_defaults]``),
else the default of :data:`~penstock.core.topics.config_table.TOPIC_CONFIGS`. Overrides are stored as normalized text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from penstock.core.topics.config_table import (
    ALL_REPLICAS,
    SAME_AS_RETENTION,
    TOPIC_CONFIGS,
    ConfigDefinition,
    ConfigKind,
    ConfigSource,
    split_list,
)
from penstock.errors import PenstockError, Reason
from penstock.log.config import CleanupPolicy, LogConfig
from penstock.records.batch import Compression
from penstock.types import GroupId, TimestampType

_COMPRESSIONS: Final[Mapping[str, Compression | None]] = {
    "producer": None,
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """The replicas of a topic with throttled replication, by partition and node."""

    pairs: frozenset[tuple[int, int]] = frozenset()
    is_all: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``0:1,1:2``, or ``*`` for all replicas."""
        items = split_list(text)
        pairs = (item.split(":") for item in items if item != ALL_REPLICAS)
        return cls(frozenset((int(partition), int(node)) for partition, node in pairs), ALL_REPLICAS in items)

    def has(self, partition: int, node: int) -> bool:
        """Whether the replica of this partition on this node is throttled."""
        return self.is_all or (partition, node) in self.pairs


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configs that have an effect. A retention of -1 means no limit."""

    log: LogConfig
    """The configs of the logs of the topic's partitions, with the retention on the broker's own disk."""
    compression: Compression | None
    """The codec to which batches are recompressed; None keeps the producer's codec."""
    compression_level: int | None
    """None is the codec's default."""
    retention_ms: int
    retention_bytes: int
    max_message_bytes: int
    min_insync_replicas: int
    timestamp_type: TimestampType
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    unclean_election: bool = False
    """Whether a replica that may lack acknowledged records may become the leader if no other can."""
    tier_group: GroupId | None = None
    """The group whose committed offsets show what is archived and may be dropped; None if the topic has no tier."""
    throttled_leaders: ThrottledReplicas = ThrottledReplicas()
    throttled_followers: ThrottledReplicas = ThrottledReplicas()

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> Self:
        """The effective values of a topic. Both mappings were checked by :func:`check_configs`."""

        def text(name: str) -> str:
            value = overrides.get(name)
            return value if value is not None else defaults.get(name, TOPIC_CONFIGS[name].default)

        def number(name: str) -> int:
            return int(text(name))

        tier_group = GroupId(text("penstock.tier.group")) if text("penstock.tier.location") else None

        def local(name: str) -> int:
            own = number(f"local.{name}")
            return number(name) if tier_group is None or own == SAME_AS_RETENTION else own

        compression = _COMPRESSIONS[text("compression.type")]
        level = None
        if compression in (Compression.GZIP, Compression.LZ4, Compression.ZSTD):
            level = number(f"compression.{compression.name.lower()}.level")
        return cls(
            log=LogConfig(
                segment_bytes=number("segment.bytes"),
                segment_ms=number("segment.ms"),
                index_interval_bytes=number("index.interval.bytes"),
                retention_ms=local("retention.ms"),
                retention_bytes=local("retention.bytes"),
                cleanup=frozenset(CleanupPolicy(item) for item in split_list(text("cleanup.policy"))),
                delete_retention_ms=number("delete.retention.ms"),
                min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
                min_compaction_lag_ms=number("min.compaction.lag.ms"),
                max_compaction_lag_ms=number("max.compaction.lag.ms"),
                file_delete_delay_ms=number("file.delete.delay.ms"),
            ),
            compression=compression,
            compression_level=None if compression is Compression.GZIP and level == -1 else level,
            retention_ms=number("retention.ms"),
            retention_bytes=number("retention.bytes"),
            max_message_bytes=number("max.message.bytes"),
            min_insync_replicas=number("min.insync.replicas"),
            timestamp_type=TimestampType(text("message.timestamp.type")),
            timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
            unclean_election=text("unclean.leader.election.enable") == "true",
            tier_group=tier_group,
            throttled_leaders=ThrottledReplicas.parse(text("leader.replication.throttled.replicas")),
            throttled_followers=ThrottledReplicas.parse(text("follower.replication.throttled.replicas")),
        )

    @property
    def is_compacted(self) -> bool:
        """Whether every record needs a key."""
        return self.log.compacts


def check_configs(values: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The normalized values. ``INVALID_CONFIG`` names the first unknown or invalid one.

    ``defaults`` are the broker's values: the combination of both is checked too.
    """
    plain = {name: _definition(name).check(value) for name, value in values.items()}
    config = TopicConfig.resolve(plain, defaults)
    least_ms, most_ms = config.log.min_compaction_lag_ms, config.log.max_compaction_lag_ms
    if least_ms > most_ms:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"min.compaction.lag.ms ({least_ms}) cannot be above max.compaction.lag.ms ({most_ms})",
        )
    if config.tier_group is not None:
        _check_tier(config, config.tier_group)
    return plain


def _check_tier(config: TopicConfig, group: GroupId) -> None:
    if not group:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            "penstock.tier.location also requires penstock.tier.group: the offsets of that group show what is archived.",
        )
    if config.is_compacted:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            "A compacted topic cannot have a tier: compaction deletes records before they are archived. "
            "Set cleanup.policy to delete, or delete penstock.tier.location.",
        )


def _definition(name: str) -> ConfigDefinition:
    definition = TOPIC_CONFIGS.get(name)
    if definition is None:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"There is no topic config {name[:100]!r}. Describe the topic's configs to see their names.",
        )
    return definition


class ChangeKind(Enum):
    """The kind of a config change."""

    SET = "set"
    DELETE = "delete"
    APPEND = "append"
    SUBTRACT = "subtract"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one config; DELETE ignores ``value``."""

    name: str
    kind: ChangeKind
    value: str | None = None


def apply_changes(
    overrides: Mapping[str, str], defaults: Mapping[str, str], changes: Sequence[ConfigChange]
) -> dict[str, str]:
    """The overrides of a topic after all changes, checked together; an error if any change is invalid."""
    return check_configs(change_values(overrides, changes, _definition, defaults), defaults)


def change_values(
    values: Mapping[str, str],
    changes: Sequence[ConfigChange],
    definition_of: Callable[[str], ConfigDefinition],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    """The values after all changes, unchecked. ``defaults`` has the lists that APPEND and SUBTRACT change if there is no value."""
    result = dict(values)
    seen: set[str] = set()
    for change in changes:
        if change.name in seen:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"{change.name[:100]} is changed twice in one request. Change it once."
            )
        seen.add(change.name)
        definition = definition_of(change.name)
        if change.kind is ChangeKind.DELETE:
            result.pop(change.name, None)
            continue
        if change.value is None:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"{change.name} needs a value. Delete the config to restore its default."
            )
        if change.kind is ChangeKind.SET:
            result[change.name] = change.value
        else:
            current = result.get(change.name, defaults.get(change.name, definition.default))
            result[change.name] = _changed_list(definition, current, change.kind, change.value)
    return result


def _changed_list(definition: ConfigDefinition, current: str, kind: ChangeKind, value: str) -> str:
    if definition.kind is not ConfigKind.LIST:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"{definition.name} is not a list: {kind.value} does not apply to it. Set it instead.",
        )
    items, given = split_list(current), split_list(value)
    if kind is ChangeKind.APPEND:
        known = set(items)
        return ",".join([*items, *(item for item in given if item not in known)])
    unwanted = set(given)
    return ",".join(item for item in items if item not in unwanted)


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value of a config, and where it was set."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A config with its effective value and all values that were set for it, strongest first."""

    name: str
    kind: ConfigKind
    value: str
    source: ConfigSource
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]
    read_only: bool = False


ConfigLayer = tuple[ConfigSource, Mapping[str, str]]
"""Values by name, and where they were set. A sequence of layers is in order, strongest first."""


def describe_topic_configs(overrides: Mapping[str, str], layers: Sequence[ConfigLayer]) -> list[ConfigValue]:
    """All topic configs by name, with their values and where these were set. ``layers`` are the broker's."""
    return [_describe(definition, overrides.get(name), layers) for name, definition in TOPIC_CONFIGS.items()]


def _describe(definition: ConfigDefinition, override: str | None, layers: Sequence[ConfigLayer]) -> ConfigValue:
    broker_name = definition.broker_names[0] if definition.broker_names else definition.name
    own = [] if override is None else [ConfigSynonym(definition.name, override, ConfigSource.TOPIC)]
    broker_wide = [
        ConfigSynonym(broker_name, values[definition.name], source)
        for source, values in layers
        if definition.name in values
    ]
    default = ConfigSynonym(broker_name, definition.default, ConfigSource.DEFAULT)
    return described(definition, [*own, *broker_wide, default])


def described(definition: ConfigDefinition, synonyms: Sequence[ConfigSynonym]) -> ConfigValue:
    """A config with all values that were set for it, strongest first."""
    strongest = synonyms[0]
    return ConfigValue(
        definition.name,
        definition.kind,
        strongest.value,
        strongest.source,
        definition.documentation,
        tuple(synonyms),
        read_only=definition.fixed,
    )
