"""Exactly-once sinks: open one, commit or abort what is staged in it, describe and delete it."""

from uuid import UUID

import msgspec

from penstock.operations.operation import (
    SINKS_COORDINATOR,
    Action,
    Operation,
    Repeat,
    Resource,
    listing,
    on_sink,
)


class OpenedSink(msgspec.Struct, frozen=True):
    """A sink that is ready: where to stage, and the last batch that it committed.

    A staging topic that is created again later has another ``staging_id``, and what is staged in this one is not in it.
    """

    sink: str
    staging_topic: str
    staging_id: UUID
    partitions: int
    last_batch_id: int | None


class OpenSink(Operation[OpenedSink], frozen=True):
    """Open a sink; create it and its staging topic if they do not exist."""

    sink: str
    remember_ms: int | None = None

    rights = (on_sink(Action.WRITE),)
    belongs_to = SINKS_COORDINATOR
    repeat = Repeat.ALWAYS


class SinkPart(msgspec.Struct, frozen=True):
    """What goes to one partition, in this order: staging partition, base offset and number of records of whole batches."""

    topic: str
    partition: int
    staged: list[tuple[int, int, int]]


class CommittedBatch(msgspec.Struct, frozen=True):
    """The batch is in its targets. ``already``: it was before this call, which appended nothing.

    ``dropped`` counts records whose topic was deleted while the commit was under way.
    """

    committed: bool
    already: bool
    records: int
    dropped: int


class CommitSink(Operation[CommittedBatch], frozen=True):
    """Append what is staged to its targets, all of it and once. A batch id that is not greater than the last one appends nothing."""

    sink: str
    batch_id: int
    parts: list[SinkPart]
    staging_id: UUID | None = None

    rights = (on_sink(Action.WRITE),)
    belongs_to = SINKS_COORDINATOR
    repeat = Repeat.ALWAYS


class AbortedBatch(msgspec.Struct, frozen=True):
    """Whether what was staged is dropped; if not, why not."""

    aborted: bool
    why: str


class AbortSink(Operation[AbortedBatch], frozen=True):
    """Drop what is staged, unless this batch is committed or about to be."""

    sink: str
    batch_id: int

    rights = (on_sink(Action.WRITE),)
    belongs_to = SINKS_COORDINATOR


class DeleteSink(Operation[None], frozen=True):
    """Delete a sink, its staged records and the memory of its committed batches."""

    sink: str

    is_change = True
    rights = (on_sink(Action.WRITE),)
    belongs_to = SINKS_COORDINATOR


class SinkStatus(msgspec.Struct, frozen=True):
    """One sink. ``committing`` is the batch on its way to its targets, ``problem`` what keeps it from getting there.

    The sink is forgotten when it is not used for ``remember_ms`` after ``used_ms``.
    """

    sink: str
    staging_topic: str
    last_batch_id: int | None
    committed_ms: int | None
    since_ms: int
    staged_bytes: int
    committing: int | None
    problem: str | None
    used_ms: int
    remember_ms: int


class ListSinks(Operation[tuple[SinkStatus, ...]], frozen=True):
    """All sinks that the caller may describe, by name."""

    rights = (listing(Resource.SINK),)
    belongs_to = SINKS_COORDINATOR
    repeat = Repeat.ALWAYS


class DescribeSink(Operation[SinkStatus], frozen=True):
    """One sink."""

    sink: str

    rights = (on_sink(Action.DESCRIBE),)
    belongs_to = SINKS_COORDINATOR
    repeat = Repeat.ALWAYS
