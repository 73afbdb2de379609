"""The operation for each type of request, and the answer to its result. ``connection.py`` handles produce."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.partitions.reading import record_bytes
from penstock.errors import PenstockError, Reason
from penstock.gateways.tcp.answers import answer, record
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


class Command(NamedTuple):
    """The operation for a request, and the line for its result."""

    operation: Operation[Any]
    line: Callable[[Any], bytes]
    forgiven: frozenset[Reason] = frozenset()
    """Errors that count as a result of None."""


Handler = Callable[["TcpConnection", Request], Command]


def create_topic(_: "TcpConnection", request: Request) -> Command:
    """Create a topic, or do nothing if it exists with the same number of partitions."""
    topic, count = request.topic or "", 1 if request.partitions is None else request.partitions
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise Refused(INVALID_FIELD, f"Invalid partitions: a topic has 1 to {PARTITIONS_PER_TOPIC_MAX}, not {count}")
    return Command(
        CreateTopic(topic, count), lambda made: answer({"topic": made.name, "partitions": made.partition_count})
    )


def delete_topic(_: "TcpConnection", request: Request) -> Command:
    """Delete a topic with its records and offsets."""
    return Command(DeleteTopic(request.topic or ""), lambda name: answer({"topic": name}))


def fetch(connection: "TcpConnection", request: Request) -> Command:
    """Read committed records from an offset on."""
    bounds = connection.gateway.bounds
    wanted = FETCH_MAX_DEFAULT if request.max is None else request.max
    if wanted < 1:
        raise Refused(INVALID_FIELD, f"Invalid max: give 1 or more, not {wanted}")

    def line(found: Any) -> bytes:
        size_bytes = sum(map(record_bytes, found))
        if size_bytes > _LARGE_ANSWER_BYTES and connection.gateway.unsent_bytes > bounds.unsent_bytes_max:
            raise Refused(
                TOO_MUCH_UNSENT, "Too many answers have not been read by their clients: fetch less, or try again later"
            )
        return answer({"records": [record(each.offset, each.timestamp, each.key, each.value) for each in found]})

    return Command(
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


def commit(_: "TcpConnection", request: Request) -> Command:
    """Set the offset that the group reads next; answered once it is stored."""
    group = request.group_id or ""
    operation = CommitOffset(group, request.topic or "", request.partition or 0, request.offset or 0)
    return Command(operation, lambda _: answer({"groupId": group}))


async def metrics(connection: "TcpConnection", request: Request) -> bytes:
    """Show the offsets of a partition, and the lag of a group."""
    broker, topic, index, group = connection.broker, request.topic or "", request.partition or 0, request.group_id
    partition = await broker.do(DescribePartition(topic, index), connection.caller)
    begin, end = partition.start_offset, partition.high_watermark
    committed = None
    if group:
        found = await broker.do(FetchOffsets(group, topic, index), connection.caller)
        committed = found[0].offset if found else None
    return answer(
        {
            "beginOffset": begin,
            "endOffset": end,
            "size": end - begin,
            "committedOffset": committed,
            "lag": end - (begin if committed is None else committed),
        }
    )


def list_topics(_: "TcpConnection", __: Request) -> Command:
    """List the names of all topics except internal ones, sorted."""
    return Command(ListTopics(), lambda found: answer({"topics": [topic.name for topic in found]}))


def join_group(connection: "TcpConnection", request: Request) -> Command:
    """Join a group to read a topic; the answer has the partitions of this consumer."""
    operation = JoinGroup(
        request.group_id or "",
        request.topic or "",
        request.consumer_id or "",
        connection.gateway.settings.session_timeout_ms,
    )
    return Command(operation, lambda partitions: answer({"partitions": partitions}))


def leave_group(_: "TcpConnection", request: Request) -> Command:
    """Leave a group; does nothing if the consumer is not a member."""
    group = request.group_id or ""
    return Command(LeaveGroup(group, request.consumer_id or ""), lambda _: answer({"groupId": group}), _FORGIVEN)


def heartbeat(_: "TcpConnection", request: Request) -> Command:
    """Keep a consumer in its group."""
    group = request.group_id or ""
    return Command(Heartbeat(group, request.consumer_id or ""), lambda _: answer({"groupId": group}))


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


def line_of(command: Command, found: object) -> bytes:
    """The answer to a result. PenstockError or Refused if the operation failed."""
    if isinstance(found, PenstockError):
        if found.reason not in command.forgiven:
            raise found
        found = None
    return command.line(found)
