"""GET /topics/T/tail: follow a topic live, as server-sent events, one for each message.

The ``id`` of an event is the id of its message, followed by the next offset of each other partition. A client that sends it back
as ``Last-Event-ID`` resumes all partitions. If the topic has more than ``RESUMED_PARTITIONS_MAX`` partitions, the id is the message's
alone and resumes only its partition; the others start where the request says.

Nothing is read from the log while the socket is full, and the size of each read is bounded. If there are no messages, a comment
is sent now and then, so that neither side takes the connection for dead.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta
from starlette.responses import Response
from starlette.types import Send

from penstock.core.operations.open_streams import KeptRight
from penstock.core.partitions.reading import Tail
from penstock.core.partitions.replica import Replica
from penstock.core.publish import record_id
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import EVENTS, Answer, encoder
from penstock.gateways.http.server.errors import Refusal
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, Content, HttpCall, Parameter
from penstock.gateways.http.server.streams import StreamedAnswer, piece
from penstock.gateways.http.tarantoolmq.models import PARTITION_NOT_FOUND, Message, message_of
from penstock.gateways.http.tarantoolmq.topics import find_topic, translated_errors
from penstock.gateways.pacing import pace
from penstock.limits import KIB
from penstock.operations.operation import Action
from penstock.operations.records import FollowTopic
from penstock.operations.topics import DescribePartition
from penstock.records.records import Record

RESUMED_PARTITIONS_MAX: Final = 64
_EVENTS_AT_ONCE_MAX: Final = 500
_BYTES_AT_ONCE_MAX: Final = 256 * KIB
_KEEP_ALIVE_SECONDS: Final = 15.0
_ASKED_AT_ONCE_MAX: Final = 16
"""Leaders that are asked at the same time for the end of their partition."""
_NONE_SEEN: Final = "*"
"""Replaces the message id in an event id before the first message."""
_KEEP_ALIVE: Final = b": keep-alive\n\n"
_OFFSET_MAX: Final = 2**63 - 1


CALLS: Final = ApiCalls("Messages")


@CALLS.get(
    "/topics/{topic}/tail",
    CallDoc(
        "Follow a topic live, as server-sent events",
        {200: Content("text/event-stream", Message)},
        errors=(400, 404),
        description="Each event is a message. To resume after an event, send its id as Last-Event-ID.",
        parameters=(
            Parameter("partition", Annotated[int, Meta(ge=0, le=2**31 - 1)], "only this partition; default: all"),
            Parameter("offset", Annotated[int, Meta(ge=0, le=_OFFSET_MAX)], "the first offset in that partition"),
            Parameter("from", Literal["earliest", "latest"], "where to start; default: latest"),
            Parameter("Last-Event-ID", str, "the id of the last event seen", where="header"),
        ),
    ),
)
async def _tail(call: HttpCall) -> Answer | Response:
    name = call.params["topic"]
    with translated_errors(call, name):
        await call.do(FollowTopic(name))
    topic = find_topic(call, name, Action.READ)
    positions = await _positions(call, topic)
    if call.is_head:
        return Answer(200, b"", EVENTS)
    events = _Events(call, topic, positions)
    events.begin()
    return events


async def _positions(call: HttpCall, topic: Topic) -> list[tuple[Replica, int]]:
    """The first offset to read in each partition that is followed."""
    fields = call.query_fields()
    indexes = range(topic.partition_count)
    if "partition" in fields:
        index = call.int_field(fields, "partition", 0, 0, 2**31 - 1)
        if index >= topic.partition_count:
            raise Refusal(404, PARTITION_NOT_FOUND)
        indexes = range(index, index + 1)
    begin = fields.get("from", "latest")
    if begin not in ("earliest", "latest"):
        raise Refusal(400, "The value of from must be earliest or latest")
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


async def _ends(call: HttpCall, topic: Topic, indexes: Sequence[int]) -> dict[int, int]:
    """The ends of partitions as their leaders report them: the copies on this node may lack the last records."""
    found: dict[int, int] = {}
    for first in range(0, len(indexes), _ASKED_AT_ONCE_MAX):
        some = indexes[first : first + _ASKED_AT_ONCE_MAX]
        ends = await asyncio.gather(*(call.do(DescribePartition(topic.name, index)) for index in some))
        found |= {index: each.high_watermark for index, each in zip(some, ends, strict=True)}
    return found


def _resumed(call: HttpCall, topic: Topic) -> dict[int, int]:
    """The next offset of each partition, from the last event that the client received."""
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
        # The first is the message itself, which the client has; the others are next offsets.
        found[int(index)] = int(offset) + (1 if number == 0 else 0)
    return found


class _Events(StreamedAnswer):
    def __init__(self, call: HttpCall, topic: Topic, positions: list[tuple[Replica, int]]) -> None:
        super().__init__(call, EVENTS, (b"cache-control", b"no-store"))
        self._broker = call.gateway.broker
        self._topic = topic
        self._next_offsets = {partition.index: offset for partition, offset in positions}
        self._resumes_all = 1 < len(positions) <= RESUMED_PARTITIONS_MAX
        self._more = asyncio.Event()
        self._ended = False
        self._tail = Tail(positions, self._more.set)
        self._right = KeptRight(self._broker, FollowTopic(topic.name), call.caller)

    def _greeting(self) -> bytes:
        """A comment, and an id without an event: a client that is disconnected before the first message resumes from here."""
        name = self._topic.name
        text = f": tail of {name}\n"
        if len(self._next_offsets) <= RESUMED_PARTITIONS_MAX:
            places = " ".join(f"{index}@{offset}" for index, offset in self._next_offsets.items())
            text += f"id: {name}/{_NONE_SEEN} {places}\n"
        return f"{text}\n".encode()

    def end(self) -> None:
        """Send no more events."""
        self._ended = True
        self._more.set()

    def close(self) -> None:
        """Read nothing more."""
        self._tail.close()

    def _follows_elsewhere(self) -> bool:
        """Whether the partitions that this node has lost, because another node leads them now, are followed there."""
        if self._broker.is_alone or self._broker.topics.get_by_id(self._topic.topic_id) is None:
            return False
        while self._tail.gone:
            index = self._tail.gone.pop().index
            self._tail.add(self._broker.observe(self._topic.name, index), self._next_offsets[index])
        return True

    def _take(self) -> list[tuple[Replica, Record]]:
        taken = self._tail.take(_EVENTS_AT_ONCE_MAX, _BYTES_AT_ONCE_MAX)
        while not taken and self._tail.gone and self._follows_elsewhere():
            taken = self._tail.take(_EVENTS_AT_ONCE_MAX, _BYTES_AT_ONCE_MAX)
        return taken

    async def send_pieces(self, send: Send) -> None:
        """Send events until the client disconnects, the topic is deleted or the gateway stops."""
        # At once, so that the client sees that its request was accepted.
        await send(piece(self._greeting()))
        now = self.call.gateway.loop.time
        renewed = now()
        while not self._ended:
            try:
                if not self._broker.is_alone and now() > renewed + _KEEP_ALIVE_SECONDS:
                    renewed = now()
                    for index in self._next_offsets:
                        # What is copied to this node only for this reader is still being read.
                        self._broker.observe(self._topic.name, index)
                self._right.check()
                taken = self._take()
            except PenstockError as error:
                # Every further read would fail, too.
                problem = encoder.encode({"error": error.text})
                await send(piece(b"event: error\ndata: %s\n\n" % problem))
                return
            if taken:
                events = b"".join(
                    self._event(partition, message_of(self._topic.name, partition.index, record))
                    for partition, record in taken
                )
                self._broker.meters.gave_out(self._topic.name, self.call.caller.gateway, len(taken), len(events))
                await send(piece(events))
                if self._broker.quotas.is_on:
                    caller = self.call.caller
                    self._broker.quotas.consumed(caller, len(events))
                    await pace(self._broker.quotas, caller, self._more, lambda: self._ended)
                continue
            if self._tail.gone:
                return
            try:
                async with asyncio.timeout(_KEEP_ALIVE_SECONDS):
                    await self._more.wait()
            except TimeoutError:
                await send(piece(_KEEP_ALIVE))
            self._more.clear()

    def _event(self, partition: Replica, message: Message) -> bytes:
        index = partition.index
        self._next_offsets[index] = message.offset + 1
        event_id = record_id(self._topic.name, index, message.offset)
        if self._resumes_all:
            others = " ".join(f"{other}@{offset}" for other, offset in self._next_offsets.items() if other != index)
            event_id = f"{event_id} {others}"
        return b"id: %s\ndata: %s\n\n" % (event_id.encode(), encoder.encode(message))
