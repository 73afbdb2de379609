"""``penstock pipeline replay``: copies a range of old records to a topic, from the broker, from a lake, or from both.

The first and the last offset of each partition are determined at the start and stored in the checkpoint. After a crash, the same command
continues, and every record is in the target once. After the end of a replay, the same command starts a new one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.pipelines.builtin import Arguments, Builtin, WrongArgument, argument, option, understood
from penstock.spark.pipelines.errors import PipelineError, PipelineUsageError
from penstock.spark.pipelines.values import moment_ms

if TYPE_CHECKING:
    from penstock.spark.lake.replaying import Replay, ReplayRequest
    from penstock.spark.pipelines.run import Execution

BATCH_OFFSETS: Final = 500_000
"""The default size of a batch."""
_TABLE: Final = ("topic", "to", "offsets")


class ReplaySource(StrEnum):
    """The source of old records."""

    BROKER = "broker"
    LAKE = "lake"
    BOTH = "both"


class ReplayArguments(Arguments, frozen=True):
    """The arguments of ``replay``."""

    topic: Annotated[str, argument("TOPIC", "The topic whose records are copied.")]
    to: Annotated[str, option("The topic to write; it is created if it does not exist.", metavar="TOPIC")]
    from_offset: Annotated[int | None, option("Start at this offset of each partition.", metavar="N")] = None
    to_offset: Annotated[int | None, option("Stop before this offset.", metavar="N")] = None
    from_time: Annotated[str, option("Start at the first record at or after this time.", metavar="TIME")] = ""
    to_time: Annotated[str, option("Stop before the first record at or after this time.", metavar="TIME")] = ""
    partition: Annotated[int | None, option("Copy only this partition.", metavar="N")] = None
    source: Annotated[
        ReplaySource | None,
        option("Where to read from; defaults to both if the topic has a tier, otherwise to the broker."),
    ] = None
    lake: Annotated[str, option("The lake; defaults to the topic's tier.", metavar="PATH")] = ""
    format: Annotated[LakeFormat, option("The format of --lake.")] = LakeFormat.PARQUET
    rate: Annotated[int | None, option("Records per second; unlimited by default.", metavar="N")] = None


def run(arguments: ReplayArguments, context: Execution) -> None:
    """Copy a range of old records to a topic, with their keys, headers and timestamps, in order, exactly once.

    Without a range, it copies all records that exist now. A record keeps its partition if the target has as many. If it is interrupted, the same
    command continues. Times are written as 2026-03-01T12:00:00Z. A topic can be copied to itself only with an end, or from a lake.
    """
    wanted = _wanted(arguments)
    from penstock.spark.lake import replaying

    try:
        replay = replaying.begin(wanted, context.brokers, context.checkpoint, context.note)
    except LakeError as error:
        raise PipelineError(str(error)) from error
    if replay.total:
        context.note(f"{replay.total} offsets of {arguments.topic} to {arguments.to}")
        _send(arguments, context, replay)
    replaying.finish(replay)
    # An offset may have no record, because of transactions and compaction.
    context.emit([{"topic": arguments.topic, "to": arguments.to, "offsets": replay.total}], _TABLE)
    done = f"replayed {replay.total:,} offsets of {arguments.topic} to {arguments.to}"
    context.note(done if replay.total else "there are no records in this range")


def check(arguments: ReplayArguments) -> tuple[int | None, int | None]:
    """Check the arguments, and return the two times in milliseconds, if they are set."""
    if arguments.lake and arguments.source is ReplaySource.BROKER:
        raise PipelineUsageError("replay: --lake requires --source lake or both")
    for flag, offset, time in (
        ("from", arguments.from_offset, arguments.from_time),
        ("to", arguments.to_offset, arguments.to_time),
    ):
        if offset is not None and time:
            raise PipelineUsageError(f"replay: specify --{flag}-offset or --{flag}-time, not both")
        if offset is not None and offset < 0:
            raise WrongArgument(f"{flag}_offset", f"{offset} is too small; specify 0 or more")
    from_ms = understood("from_time", moment_ms, arguments.from_time) if arguments.from_time else None
    to_ms = understood("to_time", moment_ms, arguments.to_time) if arguments.to_time else None
    for flag, first, end in (("offset", arguments.from_offset, arguments.to_offset), ("time", from_ms, to_ms)):
        if first is not None and end is not None and first > end:
            raise WrongArgument(
                f"to_{flag}", f"The range ends before it starts; --from-{flag} must not be after --to-{flag}"
            )
    ends = arguments.to_offset is not None or bool(arguments.to_time)
    if arguments.to == arguments.topic and not ends and arguments.source is not ReplaySource.LAKE:
        # The copies are after such an end. Without one, the next run would copy them again.
        raise PipelineUsageError(
            f"replay: copying {arguments.topic} to itself without an end would duplicate all records, and again on each run: specify --to-offset or --to-time, "
            "another --to, or --source lake to bring back what only the lake has"
        )
    if arguments.rate is not None and arguments.rate < 1:
        raise WrongArgument("rate", f"{arguments.rate} is too small; specify 1 or more")
    return from_ms, to_ms


def _wanted(arguments: ReplayArguments) -> ReplayRequest:
    from penstock.spark.lake.replaying import ReplayRequest
    from penstock.spark.lake.store import absolute

    from_ms, to_ms = check(arguments)
    return ReplayRequest(
        topic=arguments.topic,
        to=arguments.to,
        partition=arguments.partition,
        from_offset=arguments.from_offset,
        to_offset=arguments.to_offset,
        from_ms=from_ms,
        to_ms=to_ms,
        broker=arguments.source is not ReplaySource.LAKE,
        lake=arguments.source is not ReplaySource.BROKER,
        lake_needed=arguments.source in (ReplaySource.LAKE, ReplaySource.BOTH),
        location=absolute(arguments.lake) if arguments.lake else "",
        format=arguments.format.value,
    )


def _send(arguments: ReplayArguments, context: Execution, replay: Replay) -> None:
    from penstock.spark.lake.replaying import Sending

    progress = context.progress(f"replaying {arguments.topic}", replay.total)
    batch_offsets = arguments.rate or BATCH_OFFSETS
    for phase in replay.phases:
        sending = Sending(context.spark(), replay, phase, context.brokers, batch_offsets)
        query = sending.start(every_ms=1_000 if arguments.rate else 0)
        try:
            for sent in sending.follow(query):
                progress.advance(sent, f"from the {phase.source}")
        finally:
            query.stop()


BUILTIN = Builtin("replay", ReplayArguments, run, streams=False, check=check)
