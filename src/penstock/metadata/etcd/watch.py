"""Follows every change of a cluster's keys, in order, without losing or repeating one, despite lost connections and compactions.

There is one watch, from a revision on. When its stream ends, another one starts after the last delivered revision. If etcd has
compacted that revision, all keys are read, and the differences are delivered as if they had just happened: the last state of
each key, which is all that a subscriber may rely on.

The changes of one revision are delivered together, because one transaction made them.

Only events advance the revision. etcd's progress notifications cannot be trusted: before 3.4.25 and 3.5.8 they may arrive before
events of lower revisions, and some later releases do not send them at all.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Final, TypeAlias

import grpc
import grpc.aio

from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd.endpoints import ANSWER_SECONDS, EtcdEndpoints, StoreMember, words_of
from penstock.metadata.port import Entry, Event, Range
from penstock.wire.etcd import etcd_generated as pb

logger = logging.getLogger("penstock.metadata")

_PAUSE_SECONDS: Final = 0.1
_SILENCE_SECONDS: Final = 3.0
"""After so long without events the member's status is requested."""
_LEADER_REQUIRED: Final = (("hasleader", "true"),)
"""A member without a connection to the others must end the watch."""

NEVER_DELETED: Final = "cluster"
"""The key that exists as long as the cluster."""


class EtcdRestoredError(Exception):
    """etcd has lost some of the agreed state."""


Deliver = Callable[[list[Event]], None]
_Stream: TypeAlias = "grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]"


class Watch:
    """The one watch of a store. ``read_all`` reads every key under the prefix."""

    def __init__(
        self,
        endpoints: EtcdEndpoints,
        prefix: bytes,
        range_end: bytes,
        entry_of: Callable[[pb.KeyValue], Entry],
        read_all: Callable[[], Awaitable[Range]],
        deliver: Deliver,
    ) -> None:
        self._endpoints = endpoints
        self._prefix = prefix
        self._range_end = range_end
        self._entry_of = entry_of
        self._read_all = read_all
        self._deliver = deliver
        self._known: dict[str, int] = {}
        """The last delivered mod revision of every key."""
        self._task: asyncio.Task[None] | None = None
        self._advanced = asyncio.Event()
        self.problem: PenstockError | None = None
        """Why changes are not followed any more; None while they are."""
        self.revision = 0
        """Everything up to this revision was delivered."""

    def start(self, found: Range) -> None:
        """Follow changes after this range."""
        self.revision = found.revision
        self._known = {entry.key: entry.mod_revision for entry in found.entries}
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop following changes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def reached(self, revision: int, seconds: float) -> bool:
        """Whether everything up to ``revision`` is delivered, within this time."""
        try:
            async with asyncio.timeout(seconds):
                while self.revision < revision:
                    self._advanced.clear()
                    await self._advanced.wait()
        except TimeoutError:
            return False
        return True

    async def _run(self) -> None:
        while True:
            member = self._endpoints.current
            try:
                await self._follow(member)
            except EtcdRestoredError as error:
                logger.critical("%s", error)
                self.problem = PenstockError(Reason.STORAGE_ERROR, str(error))
                return
            except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
                self._endpoints.failed(member, words_of(error))
            except PenstockError as error:
                logger.warning("the watch for changes failed: %s", error.text)
            except Exception:
                logger.exception("the watch for changes failed; retrying")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self, member: StoreMember) -> None:
        """Follow with one member, until it fails or another one is used."""
        stream: _Stream = member.watch(metadata=_LEADER_REQUIRED)
        leaving = asyncio.create_task(member.left.wait())
        try:
            create = pb.WatchCreateRequest(
                key=self._prefix, range_end=self._range_end, start_revision=self.revision + 1, fragment=True
            )
            async with asyncio.timeout(ANSWER_SECONDS):
                await stream.write(pb.WatchRequest(create_request=create))
            held: list[pb.Event] = []
            while True:
                response = await self._next(stream, member, leaving)
                if response is None:
                    return
                if response.canceled:
                    if response.compact_revision:
                        await self._catch_up()
                    return
                if response.created and response.header.revision < self.revision:
                    # Either this member has not caught up yet, or etcd has lost revisions.
                    self._check_not_set_back(await self._read_all())
                held.extend(response.events)
                if not response.fragment:
                    self._take(held)
                    held = []
        finally:
            leaving.cancel()
            stream.cancel()

    @staticmethod
    async def _next(stream: _Stream, member: StoreMember, leaving: "asyncio.Task[bool]") -> pb.WatchResponse | None:
        """The next response; None if the stream has ended, or another member is used.

        A watch without events looks like a dead one, so the member's status is requested, which raises if it does not respond.
        """
        # Not with a timeout: that would cancel the stream.
        reading = asyncio.ensure_future(stream.read())
        try:
            while True:
                await asyncio.wait({reading, leaving}, timeout=_SILENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    response: pb.WatchResponse = reading.result()
                    return None if response is grpc.aio.EOF else response
                if leaving.done():
                    return None
                await member.status(pb.StatusRequest(), timeout=ANSWER_SECONDS)
        finally:
            # The stream may have failed at the same moment, which does not matter any more.
            reading.add_done_callback(_forget)
            reading.cancel()

    def _take(self, raw: list[pb.Event]) -> None:
        """Deliver events, those of one revision together."""
        for revision, events in groupby(map(self._event, raw), key=lambda event: event.revision):
            if revision > self.revision:
                self._give(list(events))

    def _event(self, raw: pb.Event) -> Event:
        entry = self._entry_of(raw.kv)
        if raw.type == pb.Event.DELETE:
            return Event(entry.key, raw.kv.mod_revision, None)
        return Event(entry.key, raw.kv.mod_revision, entry)

    def _give(self, events: list[Event]) -> None:
        for event in events:
            if event.entry is None:
                self._known.pop(event.key, None)
            else:
                self._known[event.key] = event.entry.mod_revision
        try:
            self._deliver(events)
        finally:
            self._reach(events[-1].revision)

    def _reach(self, revision: int) -> None:
        if revision > self.revision:
            self.revision = revision
            self._advanced.set()

    async def _catch_up(self) -> None:
        """The revisions in between were compacted: read all keys, and deliver the differences."""
        found = await self._read_all()
        logger.info("etcd has compacted revision %d: reading all keys at revision %d", self.revision, found.revision)
        self._check_not_set_back(found)
        there = {entry.key for entry in found.entries}
        # As one change, at the revision at which all of it was read.
        events = [Event(key, found.revision, None) for key in self._known if key not in there]
        events += [
            Event(entry.key, found.revision, entry)
            for entry in found.entries
            if self._known.get(entry.key) != entry.mod_revision
        ]
        if events:
            self._give(events)
        self._reach(found.revision)

    def _check_not_set_back(self, found: Range) -> None:
        """Raises if etcd was emptied, or restored from a backup.

        Its keys then lack what the nodes have agreed on since. Delivered as changes, they would delete topics and their records.
        """
        now = {entry.key: entry.mod_revision for entry in found.entries}
        if (
            found.revision >= self.revision
            and all(now.get(key, revision) >= revision for key, revision in self._known.items())
            and (NEVER_DELETED in now or NEVER_DELETED not in self._known)
        ):
            return
        raise EtcdRestoredError(
            f"The revision of etcd changed from {self.revision} to {found.revision} without the agreed state: etcd was emptied or restored from a backup. This node no longer follows it and has changed nothing. Restore etcd to its latest state, then restart all nodes"
        )


def _forget(reading: "asyncio.Future[object]") -> None:
    if not reading.cancelled():
        reading.exception()
