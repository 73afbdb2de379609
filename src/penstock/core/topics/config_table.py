"""Definitions of configs: name, kind, default, and accepted values. All values are text, as in Kafka.

:data:`TOPIC_CONFIGS` has every topic config of Kafka 4, because tools list and compare all of them, and our own, which begin with
``penstock.``. The documentation of a config without effect says so. One that is not supported (Kafka's remote storage) accepts only
its default.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import Final

from penstock import limits
from penstock.errors import PenstockError, Reason
from penstock.types import TimestampType

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
NO_LIMIT: Final = -1
SAME_AS_RETENTION: Final = -2
"""In ``local.retention.*``."""

DAY_MS: Final = 24 * 60 * 60 * 1000
_KEPT: Final = " Accepted and listed, but has no effect"
ALL_REPLICAS: Final = "*"
_THROTTLED: Final = re.compile(r"\*|[0-9]{1,10}:[0-9]{1,10}", re.ASCII)
_THROTTLED_TEXT: Final = "pairs of partition:broker, separated by commas, or *"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


class ConfigKind(Enum):
    """The type of a config's value."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"


class ConfigSource(Enum):
    """Where a value was set, strongest first."""

    TOPIC = "set on the topic"
    GROUP = "set on the group"
    DYNAMIC_BROKER = "set dynamically on the broker"
    DYNAMIC_DEFAULT = "set dynamically for all brokers"
    STATIC_BROKER = "set in the broker's configuration"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """One config. ``broker_names`` are Kafka's names of the broker-wide value of a topic config.

    A LIST with ``choices`` needs at least one of them, unless ``may_be_empty``. A STRING, or each item of a LIST, must match ``pattern``,
    which ``pattern_text`` describes. ``is_inert``: accepted and listed, but without effect.
    """

    name: str
    kind: ConfigKind
    default: str
    documentation: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    broker_names: tuple[str, ...] = ()
    fixed: bool = False
    may_be_empty: bool = False
    pattern: re.Pattern[str] | None = None
    pattern_text: str = ""
    is_inert: bool = False

    def check(self, text: str) -> str:
        """The normalized text, or ``INVALID_CONFIG`` with the accepted values."""
        plain = text.strip()
        chars_max = limits.CONFIG_LIST_CHARS_MAX if self.kind is ConfigKind.LIST else limits.CONFIG_CHARS_MAX
        if len(plain) > chars_max:
            raise PenstockError(
                Reason.INVALID_CONFIG,
                f"{self.name} cannot have {len(plain)} characters: expected {self.accepts()}, with at most {chars_max} characters",
            )
        accepted = False
        match self.kind:
            case ConfigKind.BOOLEAN:
                plain = plain.lower()
                accepted = plain in ("true", "false")
            case ConfigKind.INT | ConfigKind.LONG:
                accepted = _INTEGER.fullmatch(plain) is not None and self._within(int(plain))
            case ConfigKind.DOUBLE:
                accepted = self._is_number(plain)
            case ConfigKind.LIST:
                items = split_list(plain)
                plain = ",".join(items)
                accepted = all(self._is_choice(item) for item in items) and (
                    bool(items) or self.may_be_empty or not self.choices
                )
            case ConfigKind.STRING:
                accepted = self._is_choice(plain)
        if self.fixed:
            accepted = accepted and plain == self.default
        if not accepted:
            raise PenstockError(
                Reason.INVALID_CONFIG, f"{self.name} cannot be {text[:100]!r}: expected {self.accepts()}."
            )
        return plain

    def accepts(self) -> str:
        """The accepted values, in words."""
        if self.fixed:
            return f"{self.default!r} only, because the feature is not supported"
        match self.kind:
            case ConfigKind.BOOLEAN:
                return "true or false"
            case ConfigKind.STRING | ConfigKind.LIST if self.pattern_text:
                return self.pattern_text
            case ConfigKind.STRING | ConfigKind.LIST if self.choices:
                wanted = ", ".join(self.choices)
                some = "any of" if self.may_be_empty else "one or more of"
                return f"{some} {wanted}" if self.kind is ConfigKind.LIST else f"one of {wanted}"
            case ConfigKind.LIST:
                return "strings separated by commas"
            case ConfigKind.STRING:
                return "text"
            case _:
                what = "a number" if self.kind is ConfigKind.DOUBLE else "an integer"
                low, high = self._bounds()
                return f"{what} from {low} to {high}"

    def _is_choice(self, text: str) -> bool:
        if self.pattern is not None:
            return self.pattern.fullmatch(text) is not None
        return not self.choices or text in self.choices

    def _bounds(self) -> tuple[float, float]:
        most = INT_MAX if self.kind is ConfigKind.INT else LONG_MAX
        return (-most if self.low is None else self.low), (most if self.high is None else self.high)

    def _within(self, number: float) -> bool:
        low, high = self._bounds()
        return low <= number <= high

    def _is_number(self, text: str) -> bool:
        try:
            number = float(text)
        except ValueError:
            return False
        return isfinite(number) and self._within(number)


def split_list(text: str) -> list[str]:
    """The items of a LIST config, without duplicates, in their order."""
    return list(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def config_table(*definitions: ConfigDefinition) -> Mapping[str, ConfigDefinition]:
    """The definitions by name. Every default is normalized."""
    table = {definition.name: definition for definition in sorted(definitions, key=lambda one: one.name)}
    assert len(table) == len(definitions), "a config is defined twice"
    for definition in definitions:
        assert definition.check(definition.default) == definition.default
    return table


TOPIC_CONFIGS: Final = config_table(
    ConfigDefinition(
        "cleanup.policy",
        ConfigKind.LIST,
        "delete",
        "What happens to old records: 'delete' deletes whole segments by retention, 'compact' keeps the last record of each key; both can be combined; empty keeps everything.",
        choices=("compact", "delete"),
        may_be_empty=True,
        broker_names=("log.cleanup.policy",),
    ),
    ConfigDefinition(
        "compression.gzip.level",
        ConfigKind.INT,
        "-1",
        "The compression level if compression.type is gzip; -1 is gzip's default.",
        low=-1,
        high=9,
        broker_names=("compression.gzip.level",),
    ),
    ConfigDefinition(
        "compression.lz4.level",
        ConfigKind.INT,
        "9",
        "The compression level if compression.type is lz4.",
        low=1,
        high=17,
        broker_names=("compression.lz4.level",),
    ),
    ConfigDefinition(
        "compression.type",
        ConfigKind.STRING,
        "producer",
        "How batches are compressed: 'producer' keeps the producer's codec, 'uncompressed' decompresses batches, and the name of a codec recompresses them.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_names=("compression.type",),
    ),
    ConfigDefinition(
        "compression.zstd.level",
        ConfigKind.INT,
        "3",
        "The compression level if compression.type is zstd.",
        low=-131072,
        high=22,
        broker_names=("compression.zstd.level",),
    ),
    ConfigDefinition(
        "delete.retention.ms",
        ConfigKind.LONG,
        str(DAY_MS),
        "How long compaction keeps a tombstone, so that slow readers see the deletion.",
        low=0,
        broker_names=("log.cleaner.delete.retention.ms",),
    ),
    ConfigDefinition(
        "file.delete.delay.ms",
        ConfigKind.LONG,
        "60000",
        "How long the files of a deleted segment are kept before they are removed.",
        low=0,
        broker_names=("log.segment.delete.delay.ms",),
    ),
    ConfigDefinition(
        "flush.messages",
        ConfigKind.LONG,
        str(LONG_MAX),
        f"Sync after this many records.{_KEPT}: log.flush in the broker's configuration decides when records are synced.",
        low=1,
        is_inert=True,
        broker_names=("log.flush.interval.messages",),
    ),
    ConfigDefinition(
        "flush.ms",
        ConfigKind.LONG,
        str(LONG_MAX),
        f"Sync after this many milliseconds.{_KEPT}: log.flush in the broker's configuration decides when records are synced.",
        low=0,
        is_inert=True,
        broker_names=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    ConfigDefinition(
        "follower.replication.throttled.replicas",
        ConfigKind.LIST,
        "",
        "Replicas, as partition:broker, to which the broker's follower.replication.throttled.rate applies while they are not in sync.",
        pattern=_THROTTLED,
        pattern_text=_THROTTLED_TEXT,
    ),
    ConfigDefinition(
        "index.interval.bytes",
        ConfigKind.INT,
        str(limits.INDEX_INTERVAL_BYTES_DEFAULT),
        "The number of bytes of the log between two index entries.",
        low=0,
        broker_names=("log.index.interval.bytes",),
    ),
    ConfigDefinition(
        "leader.replication.throttled.replicas",
        ConfigKind.LIST,
        "",
        "Leaders, as partition:broker, to which the broker's leader.replication.throttled.rate applies when they send to replicas that are not in sync.",
        pattern=_THROTTLED,
        pattern_text=_THROTTLED_TEXT,
    ),
    ConfigDefinition(
        "local.retention.bytes",
        ConfigKind.LONG,
        "-2",
        "The number of bytes of archived records that a partition with a tier (penstock.tier.location) keeps on the broker's disk; -2 uses retention.bytes.",
        low=SAME_AS_RETENTION,
        broker_names=("log.local.retention.bytes",),
    ),
    ConfigDefinition(
        "local.retention.ms",
        ConfigKind.LONG,
        "-2",
        "How long a topic with a tier (penstock.tier.location) keeps archived records on the broker's disk; -2 uses retention.ms.",
        low=SAME_AS_RETENTION,
        broker_names=("log.local.retention.ms",),
    ),
    ConfigDefinition(
        "max.compaction.lag.ms",
        ConfigKind.LONG,
        str(LONG_MAX),
        "The longest time that a record can remain uncompacted.",
        low=1,
        broker_names=("log.cleaner.max.compaction.lag.ms",),
    ),
    ConfigDefinition(
        "max.message.bytes",
        ConfigKind.INT,
        str(limits.MESSAGE_BYTES_DEFAULT),
        "The largest batch, as sent by the producer (compressed or not).",
        low=0,
        broker_names=("message.max.bytes",),
    ),
    ConfigDefinition(
        "message.timestamp.after.max.ms",
        ConfigKind.LONG,
        "3600000",
        "How far a record's timestamp may be ahead of the broker's clock.",
        low=0,
        broker_names=("log.message.timestamp.after.max.ms",),
    ),
    ConfigDefinition(
        "message.timestamp.before.max.ms",
        ConfigKind.LONG,
        str(LONG_MAX),
        "How far a record's timestamp may be behind the broker's clock.",
        low=0,
        broker_names=("log.message.timestamp.before.max.ms",),
    ),
    ConfigDefinition(
        "message.timestamp.type",
        ConfigKind.STRING,
        TimestampType.CREATE_TIME.value,
        "The source of a record's timestamp: the clock of the producer or of the broker.",
        choices=tuple(one.value for one in TimestampType),
        broker_names=("log.message.timestamp.type",),
    ),
    ConfigDefinition(
        "min.cleanable.dirty.ratio",
        ConfigKind.DOUBLE,
        "0.5",
        "The fraction of the log that must be new since the last compaction before it is compacted again.",
        low=0,
        high=1,
        broker_names=("log.cleaner.min.cleanable.ratio",),
    ),
    ConfigDefinition(
        "min.compaction.lag.ms",
        ConfigKind.LONG,
        "0",
        "The shortest time that a record remains uncompacted.",
        low=0,
        broker_names=("log.cleaner.min.compaction.lag.ms",),
    ),
    ConfigDefinition(
        "min.insync.replicas",
        ConfigKind.INT,
        "1",
        "With acks=all, the number of replicas that must be in sync for a record to be acknowledged.",
        low=1,
        broker_names=("min.insync.replicas",),
    ),
    ConfigDefinition(
        "penstock.tier.format",
        ConfigKind.STRING,
        "parquet",
        "The format of the lake at penstock.tier.location.",
        choices=("parquet", "delta", "iceberg"),
    ),
    ConfigDefinition(
        "penstock.tier.group",
        ConfigKind.STRING,
        "",
        "The group whose committed offsets show how much of this topic is in the lake: retention never deletes later records.",
    ),
    ConfigDefinition(
        "penstock.tier.location",
        ConfigKind.STRING,
        "",
        "The lake with the older records of this topic, as a path or URI that Spark can reach; empty: no tier. Set by 'penstock pipeline archive --tier'.",
    ),
    ConfigDefinition(
        "preallocate",
        ConfigKind.BOOLEAN,
        "false",
        f"Preallocate the file of a segment.{_KEPT}: files grow as they are written.",
        is_inert=True,
        broker_names=("log.preallocate",),
    ),
    ConfigDefinition(
        "remote.log.copy.disable",
        ConfigKind.BOOLEAN,
        "false",
        "Stop copying to Kafka's remote storage. Not supported; see penstock.tier.location.",
        fixed=True,
    ),
    ConfigDefinition(
        "remote.log.delete.on.disable",
        ConfigKind.BOOLEAN,
        "false",
        "Delete the data in Kafka's remote storage when it is disabled. Not supported.",
        fixed=True,
    ),
    ConfigDefinition(
        "remote.storage.enable",
        ConfigKind.BOOLEAN,
        "false",
        "Keep old segments in Kafka's remote storage. Not supported: penstock.tier.location keeps old records in a lake.",
        fixed=True,
    ),
    ConfigDefinition(
        "retention.bytes",
        ConfigKind.LONG,
        str(NO_LIMIT),
        "The number of bytes that a partition retains with cleanup.policy=delete; -1: no limit.",
        low=NO_LIMIT,
        broker_names=("log.retention.bytes",),
    ),
    ConfigDefinition(
        "retention.ms",
        ConfigKind.LONG,
        str(7 * DAY_MS),
        "How long records are retained with cleanup.policy=delete; -1: forever.",
        low=NO_LIMIT,
        broker_names=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    ConfigDefinition(
        "segment.bytes",
        ConfigKind.INT,
        str(limits.SEGMENT_BYTES_DEFAULT),
        "The size at which a new segment starts. Retention and compaction work on whole segments.",
        low=limits.SEGMENT_BYTES_MIN,
        high=limits.SEGMENT_BYTES_MAX,
        broker_names=("log.segment.bytes",),
    ),
    ConfigDefinition(
        "segment.index.bytes",
        ConfigKind.INT,
        "10485760",
        f"The largest size of an index file.{_KEPT}: an index grows with its segment.",
        low=4,
        is_inert=True,
        broker_names=("log.index.size.max.bytes",),
    ),
    ConfigDefinition(
        "segment.jitter.ms",
        ConfigKind.LONG,
        "0",
        f"The maximum random reduction of segment.ms.{_KEPT}.",
        low=0,
        is_inert=True,
        broker_names=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    ConfigDefinition(
        "segment.ms",
        ConfigKind.LONG,
        str(7 * DAY_MS),
        "The age at which a new segment starts, so that old records can be deleted or compacted.",
        low=1,
        broker_names=("log.roll.ms", "log.roll.hours"),
    ),
    ConfigDefinition(
        "unclean.leader.election.enable",
        ConfigKind.BOOLEAN,
        "false",
        "Allow a replica that may lack acknowledged records to become the leader if no other can. Has no effect on a single broker.",
        broker_names=("unclean.leader.election.enable",),
    ),
)
