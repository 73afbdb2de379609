"""Follows every change of a cluster's keys, in order, without losing or repeating one, over lost connections and compactions.

There is one watch, from a revision on. When its stream ends, another begins behind the last revision that was delivered. When etcd has
compacted that revision away, all keys are read, and what is different from what was known is delivered as if it had just happened: the last
state of each key, which is all that a subscriber may count on.

The changes of one revision are delivered together, as one transaction made them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
import grpc.aio

from penstock.errors import PenstockError
from penstock.metadata.etcd.endpoints import Endpoints
from penstock.metadata.port import Entry, Event, Range
from penstock.wire.etcd import etcd_generated as pb

logger = logging.getLogger("penstock.metadata")

_PAUSE_SECONDS: Final = 0.1
_PROGRESS_SECONDS: Final = 3.0
"""A watch that is silent for so long is asked whether it lives."""

Deliver = Callable[[list[Event]], None]


class Watch:
    """The one watch of a store. ``read_all`` reads every key under the prefix."""

    def __init__(
        self,
        endpoints: Endpoints,
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
                await self._follow(member.watch(wait_for_ready=False))
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                why = "a watch is silent"
                if isinstance(error, grpc.aio.AioRpcError):
                    why = f"{error.code().name.lower()}: {error.details()}"
                self._endpoints.failed(member, why)
            except PenstockError as error:
                logger.warning("changes are not followed: %s", error.text)
            except Exception:
                logger.exception("changes are not followed; it is tried again")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self, stream: "grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]") -> None:
        try:
            create = pb.WatchCreateRequest(
                key=self._prefix, range_end=self._range_end, start_revision=self.revision + 1, fragment=True
            )
            await stream.write(pb.WatchRequest(create_request=create))
            held: list[pb.Event] = []
            while True:
                response = await self._next(stream)
                if response is grpc.aio.EOF:
                    return
                if response.canceled:
                    if response.compact_revision:
                        await self._catch_up()
                    return
                held.extend(response.events)
                if response.fragment:
                    continue
                self._take(held)
                held = []
                # Its own answer to the creation tells a revision that events below it may still follow.
                if not response.created and not response.events:
                    self._reach(response.header.revision)
        finally:
            stream.cancel()

    @staticmethod
    async def _next(stream: "grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]") -> pb.WatchResponse:
        """What comes next. A quiet watch and a dead one look alike: it is asked, and TimeoutError when it says nothing to that either."""
        # Not cancelled by a timeout: that would end the stream.
        reading = asyncio.ensure_future(stream.read())
        try:
            for is_asked in (False, True):
                done, _ = await asyncio.wait({reading}, timeout=_PROGRESS_SECONDS)
                if done:
                    return reading.result()  # type: ignore[no-any-return]
                if not is_asked:
                    await stream.write(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            raise TimeoutError
        finally:
            if not reading.done():
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
                self._known[event.key] = event.revision
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
        logger.info("etcd has compacted revision %d: reading all keys at %d", self.revision, found.revision)
        there = {entry.key for entry in found.entries}
        events = [Event(key, found.revision, None) for key in self._known if key not in there]
        events += [
            Event(entry.key, entry.mod_revision, entry)
            for entry in found.entries
            if self._known.get(entry.key) != entry.mod_revision
        ]
        # As one change, at the revision at which all of it was read.
        if events:
            self._give([Event(event.key, found.revision, event.entry) for event in events])
        self._reach(found.revision)
