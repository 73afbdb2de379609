"""Exactly-once sinks, over HTTP: tasks stage batches by plain Produce to the sink's staging topic, and one caller commits them.

Every call may be made again: a batch id that is committed is not committed twice, whoever asks. So this client asks again by
itself when a connection broke or the broker had no time, until ``timeout_ms`` is over.
"""

from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from penstock.address import Address
from penstock.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    NotPenstock,
    RequestRefused,
    RequestTimeout,
)
from penstock.client.http import HttpClient, HttpConnection, v1_path
from penstock.operations.sinks import AbortedBatch as Aborted
from penstock.operations.sinks import CommittedBatch as Committed
from penstock.operations.sinks import OpenedSink as Opened
from penstock.operations.sinks import SinkPart as StagedPart
from penstock.operations.sinks import SinkStatus

__all__ = ["Aborted", "Committed", "Opened", "SinkClient", "SinkStatus", "StagedPart"]

COMMIT_TIMEOUT_MS: Final = 10 * 60_000
"""A commit of many gigabytes takes its time."""
ANSWER_TIMEOUT_MS: Final = 60_000
"""Longer than the broker lets a request wait by default: then it says that it goes on."""
OPEN_TIMEOUT_MS: Final = 30_000
"""For how long nobody may be there when a sink is opened: a broker that starts, not an address that is wrong."""
_PAUSE_MS_MIN: Final = 50
_PAUSE_MS_MAX: Final = 2_000

_TOO_MANY_STATUS: Final = 429
"""A bound on sinks or commits, about which somebody must do something: waiting does not help."""

T = TypeVar("T")


class _Sinks(msgspec.Struct):
    sinks: list[SinkStatus]


class SinkClient(HttpClient):
    """Sinks of one broker or cluster. ``address`` is its HTTP listeners, as ``discovery.http_addresses`` finds them."""

    def __init__(
        self, address: Address | str, *, timeout_ms: int = COMMIT_TIMEOUT_MS, away_ms: int = COMMIT_TIMEOUT_MS
    ) -> None:
        """``away_ms`` is for how long nobody may be there: 0 for a person who waits."""
        super().__init__(str(address), timeout_ms=min(ANSWER_TIMEOUT_MS, timeout_ms))
        self._timeout_ms = timeout_ms
        self._away_ms = away_ms

    def open(self, sink: str, *, remember_ms: int | None = None) -> Opened:
        """Make the sink and its staging topic if they are not there.

        ``remember_ms`` is for how long it has to be remembered when nobody uses it; None: as long as the broker's settings say, or
        as was said before.
        """
        body = {"remember_ms": remember_ms}
        return self._ask(
            lambda http: http.post(v1_path("sinks", sink, "open"), body, Opened),
            away_ms=OPEN_TIMEOUT_MS,
        )

    def commit(
        self,
        sink: str,
        batch_id: int,
        parts: Sequence[StagedPart],
        *,
        staging_id: UUID,
        on_wait: Callable[[ClientError], None] | None = None,
    ) -> Committed:
        """Append what is staged to its targets: once, whatever happens, when this returns.

        ``staging_id`` is what :meth:`open` told: if that staging topic is gone, this is refused, and the batch must be staged again.
        ``on_wait`` hears of each answer that is not the last word, for whoever waits would like to know what for.
        """
        body = {"batch_id": batch_id, "parts": list(parts), "staging_id": staging_id}
        return self._ask(lambda http: http.post(v1_path("sinks", sink, "commit"), body, Committed), on_wait=on_wait)

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

    def _ask(
        self,
        ask: Callable[[HttpConnection], T],
        *,
        away_ms: int = COMMIT_TIMEOUT_MS,
        on_wait: Callable[[ClientError], None] | None = None,
    ) -> T:
        away_ms = min(away_ms, self._away_ms)
        deadline = monotonic() + self._timeout_ms / 1000
        away_deadline: float | None = None
        pause_ms = _PAUSE_MS_MIN
        while True:
            try:
                return ask(self._http)
            except NotPenstock:
                raise
            except CannotConnect as error:
                met: ClientError = error
                if away_deadline is None:
                    away_deadline = min(deadline, monotonic() + away_ms / 1000)
                if monotonic() + pause_ms / 1000 > away_deadline:
                    raise
            except ClientError as error:
                met = error
                away_deadline = None
                may_help = error.retriable or isinstance(error, ConnectionLost | RequestTimeout)
                if isinstance(error, RequestRefused) and error.status == _TOO_MANY_STATUS:
                    may_help = False
                if not may_help or monotonic() + pause_ms / 1000 > deadline:
                    raise
            if on_wait is not None:
                on_wait(met)
            sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, _PAUSE_MS_MAX)
