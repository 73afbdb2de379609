"""Following a topic live, as server-sent events: a message an event, from where the client left off.

An event's ``id`` begins with the id of its message and goes on with where the other partitions stand, so that the
``Last-Event-ID`` with which a client comes back resumes all of them. A topic of more than ``RESUMED_PARTITIONS_MAX``
partitions has the message's id alone, which resumes that partition; the others begin where the request says.

Nothing is read from the log while the socket is full, and what is made at a time is bounded; a silent topic sends a comment
now and then, so that neither end takes the other for gone.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.core.partitions.reading import Tail
from penstock.core.partitions.replica import Replica
from penstock.core.publish import record_id
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import EVENTS, REQUEST_ID, Answer, Refusal, encoder
from penstock.gateways.http.server.routing import Call, CallDoc, Content, Parameter, route
from penstock.gateways.http.tarantoolmq.message_models import PARTITION_NOT_FOUND, Message, message_of
from penstock.gateways.http.tarantoolmq.topics import find_topic, in_words
from penstock.limits import KIB
from penstock.operations.records import FollowTopic
from penstock.operations.topics import DescribePartition

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

RESUMED_PARTITIONS_MAX: Final = 64
_EVENTS_AT_ONCE_MAX: Final = 500
_BYTES_AT_ONCE_MAX: Final = 256 * KIB
_KEEP_ALIVE_SECONDS: Final = 15.0
_ASKED_AT_ONCE_MAX: Final = 16
"""Partitions whose leaders are asked at a time where they end."""
_NONE_SEEN: Final = "*"
"""Stands for the message in the id of a client that has not seen any."""
_KEEP_ALIVE: Final = b": keep-alive\n\n"
_OFFSET_MAX: Final = 2**63 - 1


async def _tail(call: Call) -> Answer | Response:
    name = call.params["topic"]
    with in_words(call, name):
        await call.do(FollowTopic(name))
    topic = find_topic(call, name)
    positions = await _positions(call, topic)
    if call.is_head:
        return Answer(200, b"", EVENTS)
    events = _Events(call, topic, positions)
    call.gateway.begin_stream(events.end)
    return events


async def _positions(call: Call, topic: Topic) -> list[tuple[Replica, int]]:
    """Where to begin in each partition that is followed."""
    fields = call.query_fields()
    indexes = range(topic.partition_count)
    if "partition" in fields:
        index = call.int_field(fields, "partition", 0, 0, 2**31 - 1)
        if index >= topic.partition_count:
            raise Refusal(404, PARTITION_NOT_FOUND)
        indexes = range(index, index + 1)
    begin = fields.get("from", "latest")
    if begin not in ("earliest", "latest"):
        raise Refusal(400, "from must be earliest or latest.")
    offset: int | None = None
    if "offset" in fields:
        if len(indexes) != 1:
            raise Refusal(400, "An offset requires a partition: set the partition too.")
        offset = call.int_field(fields, "offset", 0, 0, _OFFSET_MAX)
    resumed = _resumed(call, topic)
    unknown = [index for index in indexes if offset is None and index not in resumed]
    ends: dict[int, int] = {}
    if begin == "latest":
        ends = await _ends(call, topic, unknown)
    positions: list[tuple[Replica, int]] = []
    for index in indexes:
        partition = call.gateway.broker.observe(topic.name, index)
        at = resumed.get(index, offset)
        if at is None:
            at = partition.log.start_offset if begin == "earliest" else ends.get(index, partition.high_watermark)
        positions.append((partition, at))
    return positions


async def _ends(call: Call, topic: Topic, indexes: Sequence[int]) -> dict[int, int]:
    """Where partitions end by their leaders: a copy here may not have the last of it yet."""
    found: dict[int, int] = {}
    for first in range(0, len(indexes), _ASKED_AT_ONCE_MAX):
        some = indexes[first : first + _ASKED_AT_ONCE_MAX]
        ends = await asyncio.gather(*(call.do(DescribePartition(topic.name, index)) for index in some))
        found |= {index: each.high_watermark for index, each in zip(some, ends, strict=True)}
    return found


def _resumed(call: Call, topic: Topic) -> dict[int, int]:
    """The next offset of each partition by the last event that the client saw."""
    last = (call.header(b"last-event-id") or b"").decode("latin-1").strip()
    if not last:
        return {}
    name, slash, places = last.rpartition("/")
    found: dict[int, int] = {}
    for number, place in enumerate(places.split()):
        if number == 0 and place == _NONE_SEEN:
            continue
        index, at, offset = place.partition("@")
        fits = at and all(word.isascii() and word.isdigit() and len(word) < 19 for word in (index, offset))
        if not (slash and fits and name == topic.name):
            raise Refusal(
                400,
                f"Last-Event-ID is not from an event of {topic.name}: remove it, or send the id of an event unchanged.",
            )
        # The first is the message itself, which has been seen; the others are where their partitions stand.
        found[int(index)] = int(offset) + (1 if number == 0 else 0)
    return found


class _Events(Response):
    def __init__(self, call: Call, topic: Topic, positions: list[tuple[Replica, int]]) -> None:
        super().__init__()
        self._call = call
        self._topic = topic
        self._standing = {partition.index: offset for partition, offset in positions}
        self._resumes_all = 1 < len(positions) <= RESUMED_PARTITIONS_MAX
        self._more = asyncio.Event()
        self._ended = False
        self._tail = Tail(positions, self._more.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Send events until the client goes, the topic is deleted or the gateway stops."""
        gateway = self._call.gateway
        try:
            headers = [
                (b"content-type", EVENTS),
                (b"cache-control", b"no-store"),
                (REQUEST_ID, self._call.request_id),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            # At once, so that the client knows that it is heard.
            await send({"type": "http.response.body", "body": self._greeting(), "more_body": True})
            gone = asyncio.ensure_future(self._watch(receive))
            try:
                await self._follow(send)
            finally:
                gone.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._tail.close()
            gateway.end_stream(self.end)

    def _greeting(self) -> bytes:
        """A comment, and an id without an event: whoever is cut off before the first message resumes from here."""
        name = self._topic.name
        text = f": tail of {name}\n"
        if len(self._standing) <= RESUMED_PARTITIONS_MAX:
            places = " ".join(f"{index}@{offset}" for index, offset in self._standing.items())
            text += f"id: {name}/{_NONE_SEEN} {places}\n"
        return f"{text}\n".encode()

    def end(self) -> None:
        """Nobody is to get more."""
        self._ended = True
        self._more.set()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end()

    def _taken_up(self) -> bool:
        """Whether what is not this node's copy any more, because another node leads now, is followed where it is."""
        gone, topics = self._tail.gone, self._call.gateway.broker.topics
        if self._call.gateway.broker.is_alone or topics.get_by_id(self._topic.topic_id) is None:
            return False
        while gone:
            index = gone.pop().index
            self._tail.add(self._call.gateway.broker.observe(self._topic.name, index), self._standing[index])
        return True

    def _renew(self) -> None:
        """Say that what is copied here for this reader alone is read still."""
        for index in self._standing:
            self._call.gateway.broker.observe(self._topic.name, index)

    async def _follow(self, send: Send) -> None:
        gateway = self._call.gateway
        renewed = gateway.loop.time()
        while not self._ended:
            try:
                if not gateway.broker.is_alone and gateway.loop.time() > renewed + _KEEP_ALIVE_SECONDS:
                    renewed = gateway.loop.time()
                    self._renew()
                taken = self._tail.take(_EVENTS_AT_ONCE_MAX, _BYTES_AT_ONCE_MAX)
                while not taken and self._tail.gone and self._taken_up():
                    taken = self._tail.take(_EVENTS_AT_ONCE_MAX, _BYTES_AT_ONCE_MAX)
            except PenstockError as error:
                # It comes again with every take: there is nothing more to follow.
                problem = encoder.encode({"error": error.text})
                await send(
                    {"type": "http.response.body", "body": b"event: error\ndata: %s\n\n" % problem, "more_body": True}
                )
                return
            if taken:
                events = b"".join(
                    self._event(partition, message_of(self._topic.name, partition.index, record))
                    for partition, record in taken
                )
                self._call.gateway.broker.meters.gave_out(
                    self._topic.name, self._call.caller.gateway, len(taken), len(events)
                )
                await send({"type": "http.response.body", "body": events, "more_body": True})
                continue
            if self._tail.gone:
                return
            try:
                async with asyncio.timeout(_KEEP_ALIVE_SECONDS):
                    await self._more.wait()
            except TimeoutError:
                await send({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})
            self._more.clear()

    def _event(self, partition: Replica, message: Message) -> bytes:
        index = partition.index
        standing = self._standing
        standing[index] = message.offset + 1
        event_id = record_id(self._topic.name, index, message.offset)
        if self._resumes_all:
            others = " ".join(f"{other}@{offset}" for other, offset in standing.items() if other != index)
            event_id = f"{event_id} {others}"
        return b"id: %s\ndata: %s\n\n" % (event_id.encode(), encoder.encode(message))


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /topics/:t/tail."""
    return [
        route(
            gateway,
            "GET",
            "/topics/{topic}/tail",
            _tail,
            CallDoc(
                "Messages",
                "Follow a topic live, as server-sent events",
                {200: Content("text/event-stream", Message)},
                errors=(400, 404),
                description="Each event is a message. To resume after an event, send its id as Last-Event-ID.",
                parameters=(
                    Parameter(
                        "partition", Annotated[int, Meta(ge=0, le=2**31 - 1)], "only this partition; default: all"
                    ),
                    Parameter(
                        "offset", Annotated[int, Meta(ge=0, le=_OFFSET_MAX)], "the first offset in that partition"
                    ),
                    Parameter("from", Literal["earliest", "latest"], "where to start; default: latest"),
                    Parameter("Last-Event-ID", str, "the id of the last event seen", where="header"),
                ),
            ),
        )
    ]
