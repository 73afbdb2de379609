"""The metadata store of a broker that is alone: one SQLite file, written by one thread.

On disk: ``metadata.sqlite`` with its ``-wal`` and ``-shm`` files. Table ``entries`` contains the keys; table ``store`` has
one row with the revision. ``application_id`` identifies the file as ours, ``user_version`` its layout.

Invariant: what ``txn`` returned survives kill -9 and power loss (WAL with synchronous=FULL), and the events of the
transactions are delivered on the event loop in the order in which they were committed. Transactions that wait at the
same time share one commit, and so one sync; each keeps its own revision.

Only the store's thread uses the connection. Results return through the event loop's queue, in order.
"""

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar, TypeVarTuple

from penstock.errors import PenstockError, Reason
from penstock.limits import METADATA_BUSY_MS_MAX, METADATA_COMMIT_TXNS_MAX
from penstock.metadata.port import (
    UNBOUNDED,
    Compare,
    Delete,
    Entry,
    Event,
    Operation,
    Put,
    Range,
    Subscriber,
    TxnResult,
    Unsubscribe,
    check_txn,
)
from penstock.metadata.subscribers import Subscribers

APPLICATION_ID = int.from_bytes(b"PENS", "big")
LAYOUT_VERSION = 1

_FILE_MODE: Final = 0o600
_DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class _Database:
    """The blocking part: only SQL. Used by the store's thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        _create_private(path)
        self._connection = sqlite3.connect(path, timeout=METADATA_BUSY_MS_MAX / 1000, isolation_level=None)
        try:
            self._prepare()
            _keep_private(path)
            (self.revision,) = self._connection.execute("SELECT revision FROM store").fetchone()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        connection = self._connection
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (layout_version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application_id != APPLICATION_ID:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"{self.path} is the database of another program. Move it away or choose another data directory.",
            )
        if layout_version > LAYOUT_VERSION:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"{self.path} has layout {layout_version}, written by a newer Penstock; this version supports layouts up to {LAYOUT_VERSION}. Start the newer version.",
            )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if not tables:
            self._create()
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise PenstockError(Reason.STORAGE_ERROR, _damaged_text(self.path, str(verdict)))

    def _create(self) -> None:
        # One transaction: a crash in the middle leaves an empty database, which is created again at the next start.
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(
            "CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,"
            " mod_revision INTEGER NOT NULL) WITHOUT ROWID"
        )
        self._connection.execute(
            "CREATE TABLE store (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL)"
        )
        self._connection.execute("INSERT INTO store VALUES (1, 1)")
        self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        self._connection.execute("COMMIT")
        _sync_directory_of(self.path)

    def begin(self, *, writes: bool) -> None:
        # IMMEDIATE takes the write lock at once: a deferred transaction could fail later, when it may no longer wait.
        self._connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        (self.revision,) = self._connection.execute("SELECT revision FROM store").fetchone()

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def range(self, prefix: str) -> Range:
        low = prefix.encode()
        query = "SELECT key, value, create_revision, mod_revision FROM entries"
        # No UTF-8 text contains the byte 0xff, so it bounds everything that starts with the prefix.
        rows = self._connection.execute(query + " WHERE key >= ? AND key < ? ORDER BY key", (low, low + b"\xff"))
        return Range(
            self.revision,
            tuple(Entry(key.decode(), value, created, modified) for key, value, created, modified in rows),
        )

    def get(self, key: str) -> Entry | None:
        row = self._connection.execute(
            "SELECT value, create_revision, mod_revision FROM entries WHERE key = ?", (key.encode(),)
        ).fetchone()
        return None if row is None else Entry(key, *row)

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> tuple[TxnResult, list[Event]]:
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(False, self.revision), []
        revision = self.revision + 1
        events = [event for operation in operations if (event := self._apply(operation, revision)) is not None]
        if events:
            self._connection.execute("UPDATE store SET revision = ?", (revision,))
            self.revision = revision
        return TxnResult(True, self.revision), events

    def _holds(self, compare: Compare) -> bool:
        return compare.holds(*self._revisions(compare.key.encode()))

    def _revisions(self, key: bytes) -> tuple[int, int]:
        row: tuple[int, int] | None = self._connection.execute(
            "SELECT create_revision, mod_revision FROM entries WHERE key = ?", (key,)
        ).fetchone()
        return row or (0, 0)

    def _apply(self, operation: Operation, revision: int) -> Event | None:
        key = operation.key.encode()
        created, _ = self._revisions(key)
        match operation:
            case Put(value=value):
                entry = Entry(operation.key, bytes(value), created or revision, revision)
                self._connection.execute(
                    "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
                    (key, entry.value, entry.create_revision, entry.mod_revision),
                )
                return Event(operation.key, revision, entry)
            case Delete():
                if not created:
                    return None
                self._connection.execute("DELETE FROM entries WHERE key = ?", (key,))
                return Event(operation.key, revision, None)


_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


@dataclass(slots=True)
class _StoreCall(Generic[_T]):
    """One call of the store, sent to the thread and back."""

    run: Callable[[_Database], tuple[_T, list[Event]]]
    """Called in the thread, inside a transaction of the database."""
    writes: bool
    future: "asyncio.Future[_T]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    outcome: tuple[_T, list[Event]] | None = None

    def finish(self, subscribers: Subscribers, error: PenstockError | None) -> None:
        """On the event loop, after the commit. The events are delivered even if the caller was cancelled."""
        try:
            if error is None and self.outcome is not None:
                subscribers.deliver(self.outcome[1])
        finally:
            if not self.future.done():
                if error is not None:
                    self.future.set_exception(error)
                else:
                    assert self.outcome is not None
                    self.future.set_result(self.outcome[0])


class SqliteStore:
    """A :class:`~penstock.metadata.port.MetadataStore` in one file. Made by :meth:`open`, on the event loop that will use it."""

    operations_max: Final = UNBOUNDED

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_StoreCall[Any] | None] = queue.SimpleQueue()
        self._subscribers = Subscribers()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        # A daemon thread, so that a broker can end without closing the store; what was acknowledged is committed.
        self._thread = threading.Thread(target=self._work, name="penstock-metadata", daemon=True)

    @classmethod
    async def open(cls, path: str) -> Self:
        """Open the store, creating the file if it is absent. STORAGE_ERROR says what is wrong with it."""
        store = cls(path)
        store._thread.start()
        await store._opened
        return store

    async def range(self, prefix: str) -> Range:
        return await self._submit(_StoreCall(lambda database: (database.range(prefix), []), writes=False))

    async def get(self, key: str) -> Entry | None:
        return await self._submit(_StoreCall(lambda database: (database.get(key), []), writes=False))

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        check_txn(compares, operations)
        # Copies: the caller may change its lists while the thread reads them.
        wanted, changes = tuple(compares), tuple(operations)
        return await self._submit(_StoreCall(lambda database: database.txn(wanted, changes), writes=bool(changes)))

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        return self._subscribers.add(prefix, subscriber)

    async def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    async def _submit(self, job: _StoreCall[_T]) -> _T:
        if self._closing:
            raise PenstockError(Reason.STORAGE_ERROR, "The metadata store is closed; the broker is shutting down.")
        self._jobs.put(job)
        return await job.future

    # In the thread.

    def _work(self) -> None:
        try:
            database = _Database(self._path)
        except (sqlite3.Error, PenstockError) as error:
            self._on_loop(self._fail_open, _explain(self._path, error))
            return
        self._on_loop(self._settle, self._opened)
        while jobs := self._next_jobs():
            failure = self._run_jobs(database, jobs)
            self._on_loop(self._finish, jobs, failure)
        database.close()
        self._on_loop(self._settle, self._ended)

    def _next_jobs(self) -> list[_StoreCall[Any]]:
        """Wait for a job and take all that are queued after it; empty when the store closes."""
        first = self._jobs.get()
        if first is None:
            return []
        jobs = [first]
        while len(jobs) < METADATA_COMMIT_TXNS_MAX:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)
                break
            jobs.append(job)
        return jobs

    def _run_jobs(self, database: _Database, jobs: list[_StoreCall[Any]]) -> PenstockError | None:
        try:
            database.begin(writes=any(job.writes for job in jobs))
            for job in jobs:
                job.outcome = job.run(database)
            database.commit()
        except Exception as error:  # noqa: BLE001 (every caller receives it, and the thread continues)
            explained = _explain(self._path, error)
            try:
                database.rollback()
            except sqlite3.Error as second:
                explained = _explain(self._path, second)
            return explained
        return None

    def _on_loop(self, call: Callable[[*_Ts], object], *arguments: *_Ts) -> None:
        # RuntimeError: the loop is closed, so nothing waits for the result.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    # On the event loop again, called by the thread.

    def _finish(self, jobs: list[_StoreCall[Any]], error: PenstockError | None) -> None:
        for job in jobs:
            job.finish(self._subscribers, error)

    def _fail_open(self, error: PenstockError) -> None:
        self._closing = True
        self._settle(self._ended)
        if not self._opened.done():
            self._opened.set_exception(error)

    def _settle(self, future: "asyncio.Future[None]") -> None:
        if not future.done():
            future.set_result(None)


def _create_private(path: str) -> None:
    """Create the file, which has what passwords are checked with, for the broker's own user alone."""
    # Whatever else is wrong, SQLite says when it opens the file.
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE))


def _keep_private(path: str) -> None:
    """Take the rights of others to a file that an earlier version created. SQLite gives the mode of the first to the others."""
    for each in (path, f"{path}-wal", f"{path}-shm"):
        # By name: closing a descriptor would end the locks that this process has on the file.
        with contextlib.suppress(OSError):
            os.chmod(each, _FILE_MODE)


def _sync_directory_of(path: str) -> None:
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _damaged_text(path: str, detail: str) -> str:
    return (
        f"The metadata store {path} is damaged ({detail}). The records in the topics' folders are untouched. Stop the broker,"
        f" keep a copy of {path} and its -wal file, and restore it from a backup, or rescue it with"
        f" `sqlite3 {path} .recover | sqlite3 rescued.sqlite` and put the result in its place."
    )


def _explain(path: str, error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGED_CODES:
        text = _damaged_text(path, str(error))
    elif code in _BUSY_CODES:
        text = f"The metadata store {path} is held by another process. Close that process, then try again."
    elif code == sqlite3.SQLITE_FULL:
        text = f"There is no space left for the metadata store {path}. Free some disk space, then try again."
    else:
        text = f"The metadata store {path} failed: {error}. Check the disk and the permissions of the file, then try again."
    return PenstockError(Reason.STORAGE_ERROR, text)
