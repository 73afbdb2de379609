"""Exactly-once sinks, over HTTP: tasks stage batches by producing to the sink's staging topic, and one caller commits them.

Every call can be repeated, since a batch id is committed only once. So this client repeats a request itself after a broken connection or
a timeout, for at most ``timeout_ms``.
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
    TlsFailed,
)
from penstock.client.http import HttpClient, HttpSession, v1_path
from penstock.client.security import UNSECURED, ClientSecurity
from penstock.operations.sinks import AbortedBatch as Aborted
from penstock.operations.sinks import CommittedBatch as Committed
from penstock.operations.sinks import OpenedSink as Opened
from penstock.operations.sinks import SinkPart as StagedPart
from penstock.operations.sinks import SinkStatus

__all__ = ["Aborted", "Committed", "Opened", "SinkClient", "SinkStatus", "StagedPart"]

COMMIT_TIMEOUT_MS: Final = 10 * 60_000
"""A commit of many gigabytes takes long."""
ANSWER_TIMEOUT_MS: Final = 60_000
"""Longer than the broker lets a request wait by default: it then answers that the commit continues."""
OPEN_TIMEOUT_MS: Final = 30_000
"""How long opening a sink waits for a broker that may be starting; the address may also be wrong."""
_PAUSE_MS_MIN: Final = 50
_PAUSE_MS_MAX: Final = 2_000

_TOO_MANY_STATUS: Final = 429
"""A limit on sinks or commits is reached, which does not change by waiting."""

T = TypeVar("T")


class _Sinks(msgspec.Struct):
    sinks: list[SinkStatus]


class SinkClient(HttpClient):
    """The sinks of a broker or cluster. ``address`` is its HTTP listeners, as ``discovery.http_addresses`` returns them."""

    def __init__(
        self,
        address: Address | str,
        *,
        timeout_ms: int = COMMIT_TIMEOUT_MS,
        away_ms: int = COMMIT_TIMEOUT_MS,
        security: ClientSecurity = UNSECURED,
    ) -> None:
        """``away_ms`` is how long a broker may be unreachable: 0 if a person waits."""
        super().__init__(str(address), timeout_ms=min(ANSWER_TIMEOUT_MS, timeout_ms), security=security)
        self._timeout_ms = timeout_ms
        self._away_ms = away_ms

    def open(self, sink: str, *, remember_ms: int | None = None) -> Opened:
        """Open a sink; create it and its staging topic if they do not exist.

        ``remember_ms`` is how long it is remembered without use; None: as set when it was opened before, or by the broker.
        """
        body = {"remember_ms": remember_ms}
        return self._ask(lambda http: http.post(v1_path("sinks", sink, "open"), body, Opened), away_ms=OPEN_TIMEOUT_MS)

    def commit(
        self,
        sink: str,
        batch_id: int,
        parts: Sequence[StagedPart],
        *,
        staging_id: UUID,
        on_wait: Callable[[ClientError], None] | None = None,
    ) -> Committed:
        """Append the staged records to their targets, exactly once.

        ``staging_id`` is from :meth:`open`: if that staging topic was deleted, the commit is refused, and the batch must be staged again.
        ``on_wait`` is called with each error that is retried.
        """
        body = {"batch_id": batch_id, "parts": list(parts), "staging_id": staging_id}
        return self._ask(lambda http: http.post(v1_path("sinks", sink, "commit"), body, Committed), on_wait=on_wait)

    def abort(self, sink: str, batch_id: int) -> Aborted:
        """Drop the staged records, unless the batch is committed or being committed."""
        return self._ask(lambda http: http.post(v1_path("sinks", sink, "abort"), {"batch_id": batch_id}, Aborted))

    def list(self) -> "list[SinkStatus]":
        """All sinks, by name."""
        return self._ask(lambda http: http.get(v1_path("sinks"), _Sinks)).sinks

    def status(self, sink: str) -> SinkStatus:
        """One sink."""
        return self._ask(lambda http: http.get(v1_path("sinks", sink), SinkStatus))

    def delete(self, sink: str) -> None:
        """Delete a sink with its staged records and the id of its last batch."""
        self._ask(lambda http: http.delete(v1_path("sinks", sink)))

    def _ask(
        self,
        ask: Callable[[HttpSession], T],
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
            except (NotPenstock, TlsFailed):
                raise
            except CannotConnect as error:
                failure: ClientError = error
                if away_deadline is None:
                    away_deadline = min(deadline, monotonic() + away_ms / 1000)
                if monotonic() + pause_ms / 1000 > away_deadline:
                    raise
            except ClientError as error:
                failure = error
                away_deadline = None
                may_help = error.retriable or isinstance(error, ConnectionLost | RequestTimeout)
                if isinstance(error, RequestRefused) and error.status == _TOO_MANY_STATUS:
                    may_help = False
                if not may_help or monotonic() + pause_ms / 1000 > deadline:
                    raise
            if on_wait is not None:
                on_wait(failure)
            sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, _PAUSE_MS_MAX)
