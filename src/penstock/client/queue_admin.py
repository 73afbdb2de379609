"""Inspection of queues and administration of dead letters, over HTTP.

Fields that a later broker adds to its answers are ignored.
"""

from collections.abc import Generator
from contextlib import closing

import msgspec

from penstock.client.errors import ConnectionLost, RequestRefused
from penstock.client.http import Fields, HttpClient, v1_path
from penstock.client.queue import RecordBody
from penstock.operations.dead_letters import DeadLetterTopic, Progress, RedrivePlan
from penstock.operations.queues import KnownStates, QueueStatus


class PeekedRecord(RecordBody, frozen=True, kw_only=True):
    """An unfinished record of a queue."""

    topic: str
    state: str
    owner: str | None = None
    until_ms: int | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Why a record is not delivered: a state for programs, and a sentence for people."""

    id: str
    topic: str
    partition: int
    offset: int
    group: str
    state: str
    sentence: str
    owner: str | None = None
    until_ms: int | None = None
    attempts: int | None = None
    last_error: str | None = None


class DeadLetter(RecordBody, frozen=True, kw_only=True):
    """A record of a dead-letter topic."""

    dead_letter_topic: str
    original_topic: str
    original_partition: int
    original_offset: int | None
    original_group: str | None
    routed_at_ms: int


class Chosen(msgspec.Struct, frozen=True):
    """Dead letters by their offsets in one partition of the dead-letter topic."""

    partition: int
    offsets: list[int]


class Wanted(msgspec.Struct, frozen=True):
    """Selects dead letters; None matches any. A reason that ends in ``*`` selects by its beginning.

    ``chosen`` lists at most 10,000 of them; :meth:`QueueAdmin.dead_letters` does not support it.
    """

    reason: str | None = None
    group: str | None = None
    partition: int | None = None
    offset: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    max_records: int | None = None
    chosen: list[Chosen] | None = None


EVERYTHING = Wanted()


class _Queues(msgspec.Struct):
    queues: list[QueueStatus]


class _Peeked(msgspec.Struct):
    records: list[PeekedRecord]


class _DeadLetterTopics(msgspec.Struct):
    topics: list[DeadLetterTopic]


class _DeadLetters(msgspec.Struct):
    records: list[DeadLetter]


class _JobLine(msgspec.Struct):
    """A line about a redrive or purge: its progress, or why it cannot continue."""

    total: int = 0
    finished: int = 0
    failed: int = 0
    skipped: int = 0
    done: bool = False
    last_failure: str | msgspec.UnsetType = msgspec.UNSET
    error: str | None = None
    message: str = ""


class QueueAdmin(HttpClient):
    """Administers queues. Topics are always the original topics, not their dead-letter topics."""

    def queues(self) -> list[QueueStatus]:
        """All queues, that is, all topics and groups that were ever consumed with leases."""
        return self._http.get(v1_path("queues"), _Queues).queues

    def queue(self, topic: str, group: str) -> QueueStatus:
        """One queue."""
        return self._http.get(v1_path("queues", topic, group), QueueStatus)

    def peek(self, topic: str, group: str, max_records: int = 100) -> list[PeekedRecord]:
        """The unfinished records; nothing changes."""
        return self._http.get(v1_path("queues", topic, group, "peek"), _Peeked, {"max_records": max_records}).records

    def states(self, topic: str, group: str, partition: int, from_offset: int = 0) -> KnownStates:
        """The states of the records of a partition, as many as fit into a response; the next ones start at ``next_offset``."""
        query = {"partition": partition, "offset": from_offset}
        return self._http.get(v1_path("queues", topic, group, "states"), KnownStates, query)

    def why(self, topic: str, partition: int, offset: int, group: str, principal: str | None = None) -> Explanation:
        """Why a record is not being delivered, to the group or to one principal that works in it."""
        query = {"topic": topic, "partition": partition, "offset": offset, "group": group, "principal": principal}
        return self._http.get("/v1/why", Explanation, query)

    def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """The topics that have dead letters."""
        return self._http.get(v1_path("dlq"), _DeadLetterTopics).topics

    def dead_letters(self, topic: str, wanted: Wanted = EVERYTHING) -> list[DeadLetter]:
        """Open dead letters of a topic; at most 100, unless ``max_records`` is given."""
        return self._http.get(v1_path("dlq", topic), _DeadLetters, _fields(wanted)).records

    def plan(self, topic: str, wanted: Wanted = EVERYTHING) -> RedrivePlan:
        """The dead letters that a redrive or purge would select, counted by reason. Nothing changes."""
        return self._http.post(v1_path("dlq", topic, "plan"), _fields(wanted), RedrivePlan)

    def redrive(
        self, topic: str, wanted: Wanted = EVERYTHING, *, rate_per_second: float = 0.0
    ) -> Generator[Progress, None, None]:
        """Send dead letters back to their topic while the iterator is read; closing the iterator stops it.

        A rate of 0 is unlimited. A second run continues with the records that are still open.
        """
        return self._job(v1_path("dlq", topic, "redrive"), {**_fields(wanted), "rate_per_second": rate_per_second})

    def purge(self, topic: str, wanted: Wanted = EVERYTHING) -> Generator[Progress, None, None]:
        """Discard dead letters while the iterator is read."""
        return self._job(v1_path("dlq", topic, "purge"), _fields(wanted))

    def _job(self, path: str, body: Fields) -> Generator[Progress, None, None]:
        with closing(self._http.stream("POST", path, _JobLine, body=body)) as lines:
            for line in lines:
                if line.error is not None:
                    raise RequestRefused(200, line.error, line.message or line.error)
                yield Progress(line.total, line.finished, line.failed, line.skipped, line.done, line.last_failure)
                if line.done:
                    return
        raise ConnectionLost("The broker stopped before the operation was complete; run it again to continue")


def _fields(wanted: Wanted) -> Fields:
    return msgspec.structs.asdict(wanted)
