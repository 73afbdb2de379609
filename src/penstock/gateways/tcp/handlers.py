"""The operation that each type of request asks for, and the answer to its result. Produce has a lane of its own (``produce.py``)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.partitions.reading import record_bytes
from penstock.errors import PenstockError, Reason
from penstock.gateways.tcp.answers import (
    Metrics,
    answer,
    deleted_answer,
    group_answer,
    partitions_answer,
    record,
    topic_answer,
)
from penstock.gateways.tcp.errors import INVALID_FIELD, TOO_MUCH_UNSENT, Refused
from penstock.gateways.tcp.requests import Request
from penstock.limits import KIB, PARTITIONS_PER_TOPIC_MAX
from penstock.operations.groups import CommitOffset, FetchOffsets, Heartbeat, JoinGroup, LeaveGroup
from penstock.operations.operation import Operation
from penstock.operations.records import ReadRecords
from penstock.operations.topics import CreateTopic, DeleteTopic, DescribePartition, ListTopics

if TYPE_CHECKING:
    from penstock.gateways.tcp.connection import TcpConnection

FETCH_MAX_DEFAULT: Final = 100
_LARGE_ANSWER_BYTES: Final = 64 * KIB
_FORGIVEN: Final = frozenset({Reason.GROUP_ID_NOT_FOUND, Reason.UNKNOWN_CONSUMER})


class Asking(NamedTuple):
    """An operation, and the line for its result."""

    operation: Operation[Any]
    line: Callable[[Any], bytes]
    forgiven: frozenset[Reason] = frozenset()
    """Refusals that are as good as a result of None."""


Handler = Callable[["TcpConnection", Request], Asking]


def create_topic(_: "TcpConnection", request: Request) -> Asking:
    """A topic that exists with as many partitions is as good as a new one."""
    topic, count = request.topic or "", 1 if request.partitions is None else request.partitions
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise Refused(INVALID_FIELD, f"Invalid partitions: a topic has 1 to {PARTITIONS_PER_TOPIC_MAX}, not {count}")
    return Asking(CreateTopic(topic, count), lambda made: topic_answer(made.name, made.partition_count))


def delete_topic(_: "TcpConnection", request: Request) -> Asking:
    """With its records and all offsets."""
    return Asking(DeleteTopic(request.topic or ""), deleted_answer)


def fetch(connection: "TcpConnection", request: Request) -> Asking:
    """Committed records from an offset on."""
    bounds = connection.gateway.bounds
    wanted = FETCH_MAX_DEFAULT if request.max is None else request.max
    if wanted < 1:
        raise Refused(INVALID_FIELD, f"Invalid max: give 1 or more, not {wanted}")

    def line(found: Any) -> bytes:
        size_bytes = sum(map(record_bytes, found))
        if size_bytes > _LARGE_ANSWER_BYTES and connection.gateway.unsent_bytes > bounds.unsent_bytes_max:
            raise Refused(
                TOO_MUCH_UNSENT, "Too many answers are not taken by their clients: fetch less, or try again later"
            )
        return answer({"records": [record(each.offset, each.timestamp, each.key, each.value) for each in found]})

    return Asking(
        ReadRecords(
            request.topic or "",
            request.partition or 0,
            request.offset or 0,
            min(wanted, bounds.fetch_records_max),
            bounds.fetch_bytes_max,
            from_start=False,
        ),
        line,
    )


def commit(_: "TcpConnection", request: Request) -> Asking:
    """Set the offset that the group reads next; answered once it is durable."""
    group = request.group_id or ""
    operation = CommitOffset(group, request.topic or "", request.partition or 0, request.offset or 0)
    return Asking(operation, lambda _: group_answer(group))


async def metrics(connection: "TcpConnection", request: Request) -> bytes:
    """What a partition holds; with a group, how far it is behind."""
    broker, topic, index, group = connection.broker, request.topic or "", request.partition or 0, request.group_id
    begin, end = await _ends(connection, topic, index)
    committed = None
    if group:
        found = await broker.do(FetchOffsets(group, topic, index), connection.caller)
        committed = found[0].offset if found else None
    return answer(Metrics(begin, end, end - begin, committed, end - (begin if committed is None else committed)))


async def _ends(connection: "TcpConnection", topic: str, index: int) -> tuple[int, int]:
    found = await connection.broker.do(DescribePartition(topic, index), connection.caller)
    return found.start_offset, found.high_watermark


def list_topics(_: "TcpConnection", __: Request) -> Asking:
    """The names of the users' topics, in order."""
    return Asking(ListTopics(), lambda found: answer({"topics": [topic.name for topic in found]}))


def join_group(connection: "TcpConnection", request: Request) -> Asking:
    """Join the readers of a topic; the answer has the partitions of this consumer."""
    operation = JoinGroup(
        request.group_id or "",
        request.topic or "",
        request.consumer_id or "",
        connection.gateway.settings.session_timeout_ms,
    )
    return Asking(operation, partitions_answer)


def leave_group(_: "TcpConnection", request: Request) -> Asking:
    """A consumer that is no member has left."""
    group = request.group_id or ""
    return Asking(LeaveGroup(group, request.consumer_id or ""), lambda _: group_answer(group), _FORGIVEN)


def heartbeat(_: "TcpConnection", request: Request) -> Asking:
    """The consumer is alive."""
    group = request.group_id or ""
    return Asking(Heartbeat(group, request.consumer_id or ""), lambda _: group_answer(group))


HANDLERS: Final[Mapping[str, Handler]] = {
    "createTopic": create_topic,
    "deleteTopic": delete_topic,
    "fetch": fetch,
    "commit": commit,
    "listTopics": list_topics,
    "joinGroup": join_group,
    "leaveGroup": leave_group,
    "heartbeat": heartbeat,
}


def line_of(asking: Asking, found: object) -> bytes:
    """The answer to a result. PenstockError or Refused when it is none."""
    if isinstance(found, PenstockError):
        if found.reason not in asking.forgiven:
            raise found
        found = None
    return asking.line(found)
