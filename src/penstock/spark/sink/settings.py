"""The options of a sink, read once on the driver and sent to the tasks.

As in Spark's Kafka connector, every ``kafka.*`` option of a producer is accepted. Those that would change what this sink does itself are
refused with the reason, and those that have no meaning here (``kafka.linger.ms``: nothing waits) have no effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.records.batch import Compression
from penstock.spark.errors import OptionError
from penstock.spark.options import SparkOptions, options_of
from penstock.types import Acks

if TYPE_CHECKING:
    from collections.abc import Mapping

REFUSED: Final[Mapping[str, str]] = {
    "kafka.key.serializer": "a key is written as the bytes of its column: cast the column 'key' instead",
    "kafka.value.serializer": "a value is written as the bytes of its column: cast the column 'value' instead",
    "kafka.interceptor.classes": "Java classes are not supported: change the rows before they are written",
    "kafka.partitioner.class": "Java classes are not supported: select partitions with a column 'partition'",
    "kafka.transactional.id": "writes are already exactly-once: remove this option (and leave exactlyOnce at true)",
}
ACKS: Final[Mapping[str, Acks]] = {"all": Acks.ALL, "-1": Acks.ALL, "1": Acks.LEADER, "0": Acks.NONE}
CODECS: Final[Mapping[str, Compression]] = {codec.name.lower(): codec for codec in Compression}
SINK_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """The options of a write."""

    options: Mapping[str, str] = field(repr=False)
    """As they come from Spark, with the credentials; tasks use them to connect."""
    topic: str | None
    exactly_once: bool
    keep_timestamp: bool
    compression: Compression
    acks: Acks
    batch_bytes: int | None
    sink_name: str | None
    batch_id: int | None
    http: str | None = None
    """The HTTP API of the brokers; None: as they say."""


def settings_of(given: Mapping[str, str]) -> WriterSettings:
    """The checked options."""
    options = options_of(given)
    options.refuse(REFUSED)
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("The option 'topic' is empty: set it to the topic to write to")
    exactly_once = options.flag("exactlyOnce", default=True)
    sink_name, batch_id = _sink(options, exactly_once=exactly_once)
    return WriterSettings(
        options=dict(given),
        topic=None if topic is None else topic.strip(),
        exactly_once=exactly_once,
        keep_timestamp=options.flag("keepTimestamp", default=False),
        compression=options.choice("kafka.compression.type", CODECS, default=Compression.NONE),
        acks=options.choice("kafka.acks", ACKS, default=Acks.ALL),
        batch_bytes=options.integer("kafka.batch.size", at_least=1),
        sink_name=sink_name,
        batch_id=batch_id,
        http=options.get("http", "").strip() or None,
    )


def _sink(options: SparkOptions, *, exactly_once: bool) -> tuple[str | None, int | None]:
    name = options.get("sinkName")
    batch_id = options.integer("batchId", at_least=0)
    if name is not None and SINK_NAME.fullmatch(name) is None:
        raise OptionError(f"The option 'sinkName' is {name!r}: write 1 to 200 letters, digits, '.', '_' or '-'")
    if not exactly_once and (name is not None or batch_id is not None):
        raise OptionError("The options 'sinkName' and 'batchId' require exactlyOnce=true")
    return name, batch_id
