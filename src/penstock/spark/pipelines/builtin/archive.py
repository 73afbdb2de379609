"""``penstock pipeline archive``: copies topics to a lake, each record once, and with ``--tier`` removes them from the broker.

Every batch is one commit of the lake that stores the query and the batch. Then the group ``penstock.archive.<name>`` commits what the lake
has. So a crash loses and duplicates nothing, and the group's lag is the number of records to archive. With a tier, the broker keeps a
segment until the group has committed all of it, and ``format("penstock")`` reads the rest from the lake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from penstock.spark.connections import new_cluster
from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.pipelines.builtin import Arguments, Builtin, WrongArgument, argument, option, understood
from penstock.spark.pipelines.errors import PipelineError, PipelineUsageError
from penstock.spark.pipelines.preflight import CLIENT_ID, check_topics
from penstock.spark.pipelines.values import duration_ms

if TYPE_CHECKING:
    from penstock.spark.lake.archiving import Start
    from penstock.spark.pipelines.run import Execution

GROUP_PREFIX: Final = "penstock.archive."
BATCH_OFFSETS: Final = 5_000_000
"""The default size of a batch, which Spark repeats after a crash."""


class ArchiveArguments(Arguments, frozen=True):
    """The arguments of ``archive``."""

    topics: Annotated[tuple[str, ...], argument("TOPIC...", "The topics to archive.")]
    to: Annotated[str, option("The lake: a folder or a URI.", metavar="PATH")]
    format: Annotated[LakeFormat, option("The format of the lake.")] = LakeFormat.PARQUET
    tier: Annotated[bool, option("Let the broker delete archived records; Spark then reads them from the lake.")] = (
        False
    )
    local_retention: Annotated[
        str,
        option(
            "With --tier: how long the broker keeps archived records; defaults to the topic's retention.",
            metavar="TIME",
        ),
    ] = ""
    skip_lost: Annotated[bool, option("Skip records that the broker deleted before they were archived.")] = False
    catalog: Annotated[
        tuple[str, ...],
        option("A property of the Iceberg catalog; can be repeated.", metavar="NAME=VALUE"),
    ] = ()


def run(arguments: ArchiveArguments, context: Execution) -> None:
    """Copy topics to a lake, by topic and day, each record exactly once, across any crash.

    It continues where it stopped. The lag of the group penstock.archive.NAME shows its progress. Read the lake with any program for its format, or
    with spark.read.format("penstock-lake"). With --tier, the broker deletes archived records after --local-retention, and no others: while the archive
    does not run, the broker's disk fills. Then format("penstock") reads old offsets from the lake and new ones from the broker.
    """
    options = _checked(arguments)
    group = GROUP_PREFIX + context.name
    try:
        starting = _prepare(arguments, context, options, group)
    except LakeError as error:
        raise PipelineError(str(error)) from error
    context.note(f"{starting.lag} records to archive; the lag of group {group} shows the progress")
    source = {
        "subscribe": ",".join(arguments.topics),
        "startingOffsets": starting.offsets,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": str(not arguments.skip_lost).lower(),
    }
    if context.rate is None:
        source["maxOffsetsPerTrigger"] = str(BATCH_OFFSETS)
    writer = (
        context.read_stream(source)
        .writeStream.format("penstock-lake")
        .options(**options)
        .options(**context.brokers)
        .option("archive.group", group)
    )
    context.follow([context.start(writer)])


def _prepare(arguments: ArchiveArguments, context: Execution, options: dict[str, str], group: str) -> Start:
    """Prepare the lake, the group and the tier, before Spark starts."""
    from penstock.spark.lake import archiving
    from penstock.spark.lake.datasource import lake_of
    from penstock.spark.options import SparkOptions

    lake = lake_of(SparkOptions(options))
    with new_cluster(context.brokers, CLIENT_ID) as cluster:
        check_topics(context.brokers, set(arguments.topics), set())
        archiving.check_tier(cluster, lake, arguments.topics, group, sets_tier=arguments.tier)
        archiving.check_checkpoint(lake, context.checkpoint)
        starting = archiving.prepare(cluster, lake, arguments.topics, group)
        archiving.remember(lake, context.checkpoint)
        if arguments.tier:
            kept_ms = duration_ms(arguments.local_retention) if arguments.local_retention else None
            archiving.set_tier(cluster, lake, arguments.topics, group, kept_ms)
    return starting


def _checked(arguments: ArchiveArguments) -> dict[str, str]:
    """The options of the lake."""
    from penstock.spark.lake.store import absolute

    if not arguments.topics:
        raise PipelineUsageError("archive: specify the topics to archive")
    if arguments.local_retention and not arguments.tier:
        raise PipelineUsageError("archive: --local-retention requires --tier")
    if arguments.catalog and arguments.tier:
        # A topic's configs contain the location of its tier, but not its catalog.
        raise PipelineUsageError(
            "archive: readers of a tier do not know --catalog: configure the catalog penstock of pyiceberg wherever Spark runs "
            "(PYICEBERG_CATALOG__PENSTOCK__URI), and omit --catalog"
        )
    understood("local_retention", duration_ms, arguments.local_retention or "0s")
    # A relative path refers to this folder, also for Spark's workers.
    options = {"path": absolute(arguments.to), "lake": arguments.format.value}
    for each in arguments.catalog:
        name, equals, value = each.partition("=")
        if not equals:
            raise WrongArgument("catalog", f"{each} is not of the form NAME=VALUE, for example uri=http://catalog:8181")
        options[f"catalog.{name.strip()}"] = value.strip()
    return options


BUILTIN = Builtin("archive", ArchiveArguments, run, streams=True, check=_checked)
