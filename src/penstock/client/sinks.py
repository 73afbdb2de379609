"""Exactly-once sinks, over HTTP: tasks stage batches by plain Produce to the sink's staging topic, and one caller commits them.

Every call may be made again: a batch id that is committed is not committed twice, whoever asks. So this client asks again by
itself when a connection broke or the broker had no time, until ``timeout_ms`` is over.
"""

from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Final, TypeVar

import msgspec

from penstock.address import Address
from penstock.client.errors import CannotConnect, ClientError, ConnectionLost, NotPenstock, RequestTimeout
from penstock.client.http import HttpClient, HttpConnection, v1_path

COMMIT_TIMEOUT_MS: Final = 10 * 60_000
"""A commit of many gigabytes takes its time."""
ANSWER_TIMEOUT_MS: Final = 60_000
"""Longer than the broker lets a request wait by default: then it says that it goes on."""
OPEN_TIMEOUT_MS: Final = 30_000
"""For how long nobody may be there when a sink is opened: a broker that starts, not an address that is wrong."""
_PAUSE_MS_MIN: Final = 50
_PAUSE_MS_MAX: Final = 2_000

T = TypeVar("T")


class StagedPart(msgspec.Struct, frozen=True):
    """What goes to one partition of a topic, in this order: staged batches as (staging partition, base offset, records)."""

    topic: str
    partition: int
    staged: list[tuple[int, int, int]]


class Opened(msgspec.Struct, frozen=True):
    """A sink that is ready: where to stage, and the last batch that it committed."""

    sink: str
    staging_topic: str
    partitions: int
    last_batch_id: int | None


class Committed(msgspec.Struct, frozen=True):
    """A batch is in its targets. ``already``: it was before this call, which appended nothing.

    ``dropped`` are records whose topic was deleted while the commit was under way.
    """

    committed: bool
    already: bool
    records: int
    dropped: int = 0


class Aborted(msgspec.Struct, frozen=True):
    """Whether what was staged is dropped; if not, why not."""

    aborted: bool
    why: str = ""


class SinkStatus(msgspec.Struct, frozen=True):
    """How a sink stands. ``committing`` is the batch that is on its way to its targets, ``problem`` what keeps it."""

    sink: str
    staging_topic: str
    last_batch_id: int | None
    committed_ms: int | None
    since_ms: int
    staged_bytes: int
    committing: int | None = None
    problem: str | None = None


class _Sinks(msgspec.Struct):
    sinks: list[SinkStatus]


class SinkClient(HttpClient):
    """Sinks of one broker. ``address`` is its HTTP listener, as ``discovery.http_address`` finds it."""

    def __init__(self, address: Address | str, *, timeout_ms: int = COMMIT_TIMEOUT_MS) -> None:
        super().__init__(str(address), timeout_ms=min(ANSWER_TIMEOUT_MS, timeout_ms))
        self._timeout_ms = timeout_ms

    def open(self, sink: str) -> Opened:
        """Make the sink and its staging topic if they are not there."""
        return self._ask(
            lambda http: http.post(v1_path("sinks", sink, "open"), {}, Opened),
            away_ms=OPEN_TIMEOUT_MS,
        )

    def commit(self, sink: str, batch_id: int, parts: Sequence[StagedPart]) -> Committed:
        """Append what is staged to its targets: once, whatever happens, when this returns."""
        body = {"batch_id": batch_id, "parts": list(parts)}
        return self._ask(lambda http: http.post(v1_path("sinks", sink, "commit"), body, Committed))

    def abort(self, sink: str, batch_id: int) -> Aborted:
        """Drop what is staged, unless the batch is committed or about to be."""
        return self._ask(lambda http: http.post(v1_path("sinks", sink, "abort"), {"batch_id": batch_id}, Aborted))

    def list(self) -> "list[SinkStatus]":
        """Every sink, by name."""
        return self._ask(lambda http: http.get(v1_path("sinks"), _Sinks)).sinks

    def status(self, sink: str) -> SinkStatus:
        """One of them."""
        return self._ask(lambda http: http.get(v1_path("sinks", sink), SinkStatus))

    def delete(self, sink: str) -> None:
        """Forget a sink with all that is staged in it, and the batches that it committed: the next one is a new one."""
        self._ask(lambda http: http.delete(v1_path("sinks", sink)))

    def _ask(self, ask: Callable[[HttpConnection], T], *, away_ms: int | None = None) -> T:
        """``away_ms`` is for how long nobody may be there, where that is less than all the time there is."""
        deadline = monotonic() + self._timeout_ms / 1000
        away_deadline: float | None = None
        pause_ms = _PAUSE_MS_MIN
        while True:
            try:
                return ask(self._http)
            except NotPenstock:
                raise
            except CannotConnect:
                if away_deadline is None:
                    away_deadline = deadline if away_ms is None else min(deadline, monotonic() + away_ms / 1000)
                if monotonic() + pause_ms / 1000 > away_deadline:
                    raise
            except ClientError as error:
                away_deadline = None
                may_help = error.retriable or isinstance(error, ConnectionLost | RequestTimeout)
                if not may_help or monotonic() + pause_ms / 1000 > deadline:
                    raise
            sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, _PAUSE_MS_MAX)
