"""What is told of sinks by their door."""

from typing import NamedTuple
from uuid import UUID


class Opened(NamedTuple):
    """A sink that is ready."""

    staging_topic: str
    staging_id: UUID
    """Of the staging topic: one that is made later is another, and what is staged in this one is not in it."""
    partitions: int
    last_batch_id: int | None


class Aborted(NamedTuple):
    """Whether what was staged is dropped; if not, why not."""

    aborted: bool
    why: str = ""


class Deleted(NamedTuple):
    """The sink is forgotten."""

    sink: str


class SinkStatus(NamedTuple):
    """How a sink stands."""

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
    """For how long after ``used_ms`` its last batch is remembered."""
