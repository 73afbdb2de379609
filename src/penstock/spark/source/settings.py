"""The options of a query that reads, checked before any broker is asked.

An option of Kafka's client (``kafka.*``) that has no effect here is accepted with a warning. One that would change what is read is
refused with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.client.read_ahead import BYTES_MAX
from penstock.spark.errors import LOG, OptionError
from penstock.spark.options import SparkOptions
from penstock.spark.security import USED as SECURITY
from penstock.spark.source.bounds import Bound, BoundKind, check_batch, ending, starting
from penstock.spark.source.selection import Selection, selection_of

FETCH_WAIT_MS_DEFAULT: Final = 500
POLL_TIMEOUT_MS_DEFAULT: Final = 120_000
TRIGGER_DELAY_MS_DEFAULT: Final = 15 * 60_000
_INT32_MAX: Final = 2**31 - 1
"""The largest value in the protocol; a larger one means the same."""

REFUSED: Final = {
    "kafka.auto.offset.reset": (
        "set startingOffsets to earliest or latest instead: the query tracks its own offsets, so that nothing is missed when topics or partitions are added"
    ),
    "kafka.key.deserializer": "keys are read as bytes; cast them in the query, for example CAST(key AS STRING)",
    "kafka.value.deserializer": "values are read as bytes; cast them in the query, for example CAST(value AS STRING)",
    "kafka.enable.auto.commit": "offsets are stored in the checkpoint; kafka.group.id also commits them for a group",
    "kafka.interceptor.classes": "an interceptor could change the records",
}
USED: Final = frozenset(
    {
        "kafka.bootstrap.servers",
        "kafka.client.id",
        "kafka.fetch.max.wait.ms",
        "kafka.group.id",
        "kafka.isolation.level",
        "kafka.max.partition.fetch.bytes",
        "kafka.request.timeout.ms",
        "kafka.socket.connection.setup.timeout.ms",
        *SECURITY,
    }
)
_ISOLATION_LEVELS: Final = {"read_committed": True, "read_uncommitted": False}
_BATCH_IGNORES: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_STREAM_REFUSES: Final = ("endingOffsets", "endingOffsetsByTimestamp")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The options of a read. They go to tasks with the reader."""

    options: SparkOptions = field(repr=False)
    """With the credentials, which tasks need to connect."""
    selection: Selection
    start: Bound
    end: Bound
    fail_on_data_loss: bool
    read_committed: bool
    group: str | None
    min_partitions: int | None
    partition_records_max: int | None
    trigger_offsets_max: int | None
    trigger_offsets_min: int | None
    trigger_delay_ms: int
    fetch_bytes_max: int
    fetch_wait_ms: int
    poll_timeout_ms: int


def include_headers(options: SparkOptions) -> bool:
    """Whether a query without a schema has the column ``headers``."""
    return options.flag("includeHeaders", default=False)


def batch_settings(options: SparkOptions) -> SourceSettings:
    """The settings of a batch query."""
    settings = _settings(options, BoundKind.EARLIEST)
    check_batch(settings.start, settings.end)
    for name in _BATCH_IGNORES:
        if name in options:
            LOG.warning("the option %s is for streams and has no effect in a batch query", name)
    return settings


def stream_settings(options: SparkOptions) -> SourceSettings:
    """The settings of a stream."""
    for name in _STREAM_REFUSES:
        if name in options:
            raise OptionError(
                f"The option {name} is for batch queries: a stream has no end; use the trigger availableNow"
            )
    return _settings(options, BoundKind.LATEST)


def check_general(options: SparkOptions) -> None:
    """Check options that batch queries and streams share, when the table is loaded."""
    selection_of(options)
    _ = options.bootstrap
    include_headers(options)
    options.refuse(REFUSED)


def _settings(options: SparkOptions, default_start: BoundKind) -> SourceSettings:
    check_general(options)
    _warn_of_unused(options)
    offsets_max = options.integer("maxOffsetsPerTrigger", at_least=1)
    offsets_min = options.integer("minOffsetsPerTrigger", at_least=0)
    if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
        raise OptionError(f"minOffsetsPerTrigger ({offsets_min}) is above maxOffsetsPerTrigger ({offsets_max})")
    return SourceSettings(
        options=options,
        selection=selection_of(options),
        start=starting(options, default_start),
        end=ending(options),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        read_committed=options.choice("kafka.isolation.level", _ISOLATION_LEVELS, default=False),
        group=options.get("kafka.group.id") or None,
        min_partitions=options.integer("minPartitions", at_least=1),
        partition_records_max=options.integer("maxRecordsPerPartition", at_least=1),
        trigger_offsets_max=offsets_max,
        trigger_offsets_min=offsets_min,
        trigger_delay_ms=options.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS_DEFAULT),
        fetch_bytes_max=min(options.integer("kafka.max.partition.fetch.bytes", BYTES_MAX, at_least=1), _INT32_MAX),
        fetch_wait_ms=min(options.integer("kafka.fetch.max.wait.ms", FETCH_WAIT_MS_DEFAULT), _INT32_MAX),
        poll_timeout_ms=options.integer("kafkaConsumer.pollTimeoutMs", POLL_TIMEOUT_MS_DEFAULT, at_least=1),
    )


def _warn_of_unused(options: SparkOptions) -> None:
    unused = sorted(name for name in options if name.startswith("kafka.") and name not in USED)
    if unused:
        LOG.warning("these options of Kafka's client have no effect here: %s", ", ".join(unused))
    if "kafka.group.id" in options and "groupIdPrefix" in options:
        LOG.warning("groupIdPrefix has no effect together with kafka.group.id")
