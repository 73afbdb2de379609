"""What each type of request does, other than produce. A handler answers with a line at once, or takes a slot and answers later."""

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Final

from penstock.core.access import Action
from penstock.core.groups.requests import OffsetToCommit, PartitionKey
from penstock.core.groups.storage import StoredDone
from penstock.core.reading import read_from, record_bytes
from penstock.core.topics import NewTopic
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
from penstock.types import Gateway, GroupId, TopicName

if TYPE_CHECKING:
    from penstock.gateways.tcp.connection import Slot, TcpConnection

FETCH_MAX_DEFAULT: Final = 100
_LARGE_ANSWER_BYTES: Final = 64 * KIB
_FORGIVEN: Final = frozenset({Reason.GROUP_ID_NOT_FOUND, Reason.UNKNOWN_CONSUMER})

Handler = Callable[["TcpConnection", Request], bytes]
SlowHandler = Callable[["TcpConnection", Request], Coroutine[object, object, bytes]]


async def create_topic(connection: "TcpConnection", request: Request) -> bytes:
    """A topic that is there already with as many partitions is as good as a new one."""
    topic, count = request.topic or "", 1 if request.partitions is None else request.partitions
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise Refused(INVALID_FIELD, f"Invalid partitions: a topic has 1 to {PARTITIONS_PER_TOPIC_MAX}, not {count}")
    broker = connection.broker
    broker.access.require_topic(connection.caller, Action.CREATE, topic)
    made = await broker.topics.create(NewTopic(topic, count), exist_ok=True)
    return topic_answer(made.name, made.partition_count)


async def delete_topic(connection: "TcpConnection", request: Request) -> bytes:
    """With its records and everybody's offsets."""
    topic = request.topic or ""
    connection.broker.access.require_topic(connection.caller, Action.DELETE, topic)
    deleted = await connection.broker.topics.delete(topic)
    return deleted_answer(deleted.name)


def fetch(connection: "TcpConnection", request: Request) -> bytes:
    """Committed records from an offset on."""
    broker, bounds = connection.broker, connection.gateway.bounds
    topic, index, offset = request.topic or "", request.partition or 0, request.offset or 0
    wanted = FETCH_MAX_DEFAULT if request.max is None else request.max
    if wanted < 1:
        raise Refused(INVALID_FIELD, f"Invalid max: give 1 or more, not {wanted}")
    broker.access.require_topic(connection.caller, Action.READ, topic)
    partition = broker.partition(topic, index)
    if offset >= partition.high_watermark:
        return answer({"records": []})
    found = read_from(partition, offset, min(wanted, bounds.fetch_records_max), bounds.fetch_bytes_max)
    size_bytes = sum(map(record_bytes, found))
    if size_bytes > _LARGE_ANSWER_BYTES and connection.gateway.unsent_bytes > bounds.unsent_bytes_max:
        raise Refused(
            TOO_MUCH_UNSENT, "Too many answers are not taken by their clients: fetch less, or try again later"
        )
    broker.meters.gave_out(topic, Gateway.TCP, len(found), size_bytes)
    return answer({"records": [record(each.offset, each.timestamp, each.key, each.value) for each in found]})


def reads_up_to(request: Request) -> int:
    """The offset behind the last record that a fetch may answer with."""
    return (request.offset or 0) + (FETCH_MAX_DEFAULT if request.max is None else request.max)


def commit(connection: "TcpConnection", request: Request, done: StoredDone) -> None:
    """Set the offset that the group reads next. ``done`` is called once it is durable. PenstockError when nothing was begun."""
    broker = connection.broker
    group, topic = GroupId(request.group_id or ""), TopicName(request.topic or "")
    index, offset = request.partition or 0, request.offset or 0
    broker.access.require_group(connection.caller, Action.READ, group)
    broker.access.require_topic(connection.caller, Action.READ, topic)
    item = OffsetToCommit(PartitionKey(topic, index), offset)
    broker.groups.commit_offset(group, item, done)


def committed(connection: "TcpConnection", request: Request, slot: "Slot", reason: Reason | None) -> None:
    """The answer to a commit."""
    if reason is None:
        slot.complete(group_answer(request.group_id or ""))
    else:
        slot.complete(connection.refused(request, PenstockError(reason), was_begun=True))


def metrics(connection: "TcpConnection", request: Request) -> bytes:
    """What a partition holds; with a group, how far it is behind."""
    topic, index = TopicName(request.topic or ""), request.partition or 0
    connection.broker.access.require_topic(connection.caller, Action.DESCRIBE, topic)
    partition = connection.broker.partition(topic, index)
    return metrics_answer(connection, request, partition.log.start_offset, partition.high_watermark)


def metrics_answer(connection: "TcpConnection", request: Request, begin: int, end: int) -> bytes:
    """The same, of a partition that begins and ends there."""
    broker, group = connection.broker, request.group_id
    stands = None
    if group:
        broker.access.require_group(connection.caller, Action.DESCRIBE, group)
        key = PartitionKey(TopicName(request.topic or ""), request.partition or 0)
        found = broker.groups.fetch_offsets(GroupId(group), [key]).get(key)
        stands = None if found is None else found.offset
    return answer(Metrics(begin, end, end - begin, stands, end - (begin if stands is None else stands)))


def list_topics(connection: "TcpConnection", _: Request) -> bytes:
    """The names of the users' topics, in order."""
    broker = connection.broker
    return answer(
        {"topics": [topic.name for topic in broker.topics if not topic.internal and _may_see(connection, topic.name)]}
    )


def _may_see(connection: "TcpConnection", topic: str) -> bool:
    access = connection.broker.access
    if access.allows_all:
        return True
    try:
        access.require_topic(connection.caller, Action.DESCRIBE, topic)
    except PenstockError:
        return False
    return True


def join_group(connection: "TcpConnection", request: Request) -> bytes:
    """Take part in reading a topic; the answer has the partitions of this consumer."""
    broker, caller = connection.broker, connection.caller
    group, topic = GroupId(request.group_id or ""), TopicName(request.topic or "")
    broker.access.require_group(caller, Action.READ, group)
    broker.access.require_topic(caller, Action.READ, topic)
    partitions = broker.groups.shared.join(
        group,
        topic,
        request.consumer_id or "",
        session_timeout_ms=connection.gateway.settings.session_timeout_ms,
        client=caller.client,
    )
    return partitions_answer(partitions)


def leave_group(connection: "TcpConnection", request: Request) -> bytes:
    """Whoever is not there has left."""
    group = GroupId(request.group_id or "")
    connection.broker.access.require_group(connection.caller, Action.READ, group)
    try:
        connection.broker.groups.shared.leave(group, request.consumer_id or "")
    except PenstockError as error:
        if error.reason not in _FORGIVEN:
            raise
    return group_answer(group)


def heartbeat(connection: "TcpConnection", request: Request) -> bytes:
    """Still there."""
    group = GroupId(request.group_id or "")
    connection.broker.access.require_group(connection.caller, Action.READ, group)
    connection.broker.groups.shared.heartbeat(group, request.consumer_id or "")
    return group_answer(group)


ENDS_MATTER: Final = frozenset({"fetch", "metrics"})
"""Requests whose answer depends on where a partition ends: acknowledged records count."""
HANDLERS: Final[Mapping[str, Handler]] = {
    "fetch": fetch,
    "metrics": metrics,
    "listTopics": list_topics,
    "joinGroup": join_group,
    "leaveGroup": leave_group,
    "heartbeat": heartbeat,
}
SLOW_HANDLERS: Final[Mapping[str, SlowHandler]] = {"createTopic": create_topic, "deleteTopic": delete_topic}
