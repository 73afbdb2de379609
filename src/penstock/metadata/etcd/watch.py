"""Follows every change of a cluster's keys, in order, without losing or repeating one, over lost connections and compactions.

There is one watch, from a revision on. When its stream ends, another begins behind the last revision that was delivered. When etcd has
compacted that revision away, all keys are read, and what is different from what was known is delivered as if it had just happened: the last
state of each key, which is all that a subscriber may count on.

The changes of one revision are delivered together, as one transaction made them.

Only events move the revision on. What etcd says of its progress is not to be trusted: before 3.4.25 and 3.5.8 its answer to that question may
overtake events below the revision that it names, and some later releases do not answer at all.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
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
"""When a watch is silent for so long, its member is asked whether it lives."""
_LEADER_REQUIRED: Final = (("hasleader", "true"),)
"""A member that is cut off from the others is to end the watch, not to be silent."""

NEVER_DELETED: Final = "cluster"
"""The key that is there for as long as the cluster is."""


class SetBackError(Exception):
    """etcd has not what it had."""


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
        """The mod revision of every key, as it was last delivered."""
        self._task: asyncio.Task[None] | None = None
        self._advanced = asyncio.Event()
        self.problem: PenstockError | None = None
        """Why changes are followed no more; None while they are."""
        self.revision = 0
        """Everything up to here was delivered."""

    def start(self, found: Range) -> None:
        """Follow from what was read."""
        self.revision = found.revision
        self._known = {entry.key: entry.mod_revision for entry in found.entries}
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Follow no more."""
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
            except SetBackError as error:
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
                    # This member is behind and catches up, or all of them are.
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
        """What comes next; None when the stream is over, or its member is left.

        A quiet watch and a dead one look alike, so the member is asked: an error when it says nothing to that either.
        """
        # Not cancelled by a timeout: that would end the stream.
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
            # The stream may have failed in the same moment: nobody asks for that any more.
            reading.add_done_callback(_forget)
            reading.cancel()

    def _take(self, raw: list[pb.Event]) -> None:
        """Deliver events, those of one revision together."""
        together: list[Event] = []
        for each in raw:
            event = self._event(each)
            if event.revision <= self.revision:
                continue
            if together and together[-1].revision != event.revision:
                self._give(together)
                together = []
            together.append(event)
        if together:
            self._give(together)

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
        """The revisions in between are gone: read what is there now, and deliver the difference."""
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
        """Raises when etcd was emptied, or restored from a backup.

        Its keys are not what the nodes have agreed on since then. Told as changes they would say that topics were deleted, and their records
        would be.
        """
        now = {entry.key: entry.mod_revision for entry in found.entries}
        if (
            found.revision >= self.revision
            and all(now.get(key, revision) >= revision for key, revision in self._known.items())
            and (NEVER_DELETED in now or NEVER_DELETED not in self._known)
        ):
            return
        raise SetBackError(
            f"etcd was at revision {self.revision} and is at {found.revision} without the agreed state: it was emptied or restored from a backup. This node no longer follows it and has changed nothing. Restore etcd to its latest state, then restart all nodes"
        )


def _forget(reading: "asyncio.Future[object]") -> None:
    if not reading.cancelled():
        reading.exception()
