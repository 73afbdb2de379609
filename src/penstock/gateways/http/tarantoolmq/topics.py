"""Topics: list, create, show and delete them. They are shared with all other APIs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, Literal
from uuid import UUID, uuid5

from msgspec import Meta, Struct

from penstock.core.security.access import AccessDenied
from penstock.core.security.lanes import authorise_lane
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.errors import Refusal, UnknownTopic
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall, body_of, required
from penstock.gateways.http.tarantoolmq.models import PARTITION_NOT_FOUND
from penstock.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from penstock.operations.operation import Action
from penstock.operations.topics import CreateTopic, DeleteTopic, DescribeTopic, ListTopics, TopicDescription

TOPIC_NOT_FOUND: Final = "Topic not found"
TOPIC_NAME: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": TOPIC_NAME_CHARS_MAX,
    "pattern": "^[a-zA-Z0-9._-]+$",
}
"""Valid topic names, for the OpenAPI document."""
_RETENTION_SECONDS_MAX = (2**63 - 1) // 1000
_RETENTION_BYTES_MAX = 2**63 - 1


class TopicRequest(Struct, frozen=True):
    """The settings of a new topic. The defaults are configured."""

    name: Annotated[str, Meta(examples=["orders"])] | None = None
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_PER_TOPIC_MAX)] | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=32)] | None = None
    retention_seconds: Annotated[int, Meta(ge=-1, le=_RETENTION_SECONDS_MAX, description="-1: forever")] | None = None
    retention_bytes: (
        Annotated[int, Meta(ge=-1, le=_RETENTION_BYTES_MAX, description="per partition; -1: no limit")] | None
    ) = None


class TopicModel(Struct, frozen=True, rename={"topic_id": "id"}):
    """A topic. Times are in unix seconds; a retention of -1 is unlimited."""

    topic_id: UUID
    name: str
    partitions: int
    replication_factor: int
    retention_seconds: int
    retention_bytes: int
    created_at: int
    updated_at: int


class PartitionModel(Struct, frozen=True, rename={"record_id": "id"}):
    """A partition: its leader and its replicas."""

    record_id: UUID
    topic_name: str
    partition_id: int
    leader: int
    replicas: list[int]
    is_active: bool
    created_at: int


class TopicList(Struct, frozen=True):
    """All topics except internal ones, by name."""

    topics: list[TopicModel]


class TopicDetails(Struct, frozen=True):
    """A topic with its partitions."""

    topic: TopicModel
    partitions: list[PartitionModel]


class Deleted(Struct, frozen=True):
    """The topic was deleted, with its records and offsets."""

    deleted: Literal[True]


CALLS: Final = ApiCalls("Topics")


def find_topic(call: HttpCall, name: str, action: Action) -> Topic:
    """The topic in a path; 404 if it does not exist, which only those may know that have the right to the action."""
    topic = call.gateway.broker.topics.get(name)
    if topic is None:
        authorise_lane(call.gateway.broker, call.caller, action, name)
        raise UnknownTopic(name, TOPIC_NOT_FOUND)
    return topic


@contextmanager
def translated_errors(call: HttpCall, topic: str, no_partition: int = 404) -> Iterator[None]:
    """Replace the error for an unknown topic or partition by this API's own; ``no_partition`` is the status for a partition."""
    try:
        yield
    except PenstockError as error:
        if error.reason is not Reason.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        if topic in call.gateway.broker.topics:
            raise Refusal(no_partition, PARTITION_NOT_FOUND) from None
        raise Refusal(404, TOPIC_NOT_FOUND) from None


def model_of(topic: TopicDescription) -> TopicModel:
    """A topic in the form of this API."""
    retention_ms = topic.retention_ms
    return TopicModel(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        retention_seconds=-1 if retention_ms < 0 else retention_ms // 1000,
        retention_bytes=topic.retention_bytes,
        created_at=topic.created_ms // 1000,
        updated_at=topic.updated_ms // 1000,
    )


@CALLS.get("/topics", CallDoc("List the topics", {200: TopicList}))
async def _list(call: HttpCall) -> Answer:
    return json_answer(TopicList([model_of(topic) for topic in await call.do(ListTopics())]))


@CALLS.post(
    "/topics",
    CallDoc(
        "Create a topic",
        {201: TopicModel},
        errors=(400, 409, 429),
        description="If the topic exists with the requested settings, it is returned unchanged. If it exists with other settings, the call is a conflict, and nothing changes.",
        body=required(TopicRequest, name=TOPIC_NAME),
    ),
)
async def _create(call: HttpCall) -> Answer:
    asked = body_of(TopicRequest, call)
    if not asked.name:
        raise Refusal(400, "Missing topic name")
    settings = call.gateway.settings
    made = await call.do(
        CreateTopic(
            asked.name,
            asked.partitions,
            asked.replication_factor,
            _configs(asked.retention_seconds, asked.retention_bytes),
            settings.default_partitions,
            _replication_factor(call),
            _configs(settings.default_retention_seconds, settings.default_retention_bytes),
        )
    )
    return json_answer(model_of(made), 201)


def _replication_factor(call: HttpCall) -> int | None:
    """The default replication factor. The 1 in the default configuration means the cluster's own default, if there is a cluster."""
    configured = call.gateway.settings.default_replication_factor
    return None if configured == 1 and not call.gateway.broker.is_alone else configured


def _configs(retention_seconds: int | None, retention_bytes: int | None) -> dict[str, str | None]:
    configs: dict[str, str | None] = {}
    if retention_seconds is not None:
        configs["retention.ms"] = str(-1 if retention_seconds < 0 else retention_seconds * 1000)
    if retention_bytes is not None:
        configs["retention.bytes"] = str(retention_bytes)
    return configs


@CALLS.get("/topics/{topic}", CallDoc("Show a topic and its partitions", {200: TopicDetails}, errors=(404,)))
async def _get(call: HttpCall) -> Answer:
    name = call.params["topic"]
    with translated_errors(call, name):
        found = await call.do(DescribeTopic(name))
    topic = found.topic
    partitions = [
        PartitionModel(
            record_id=uuid5(topic.topic_id, str(partition.partition)),
            topic_name=topic.name,
            partition_id=partition.partition,
            leader=partition.leader,
            replicas=list(partition.replicas),
            is_active=partition.leader >= 0,
            created_at=topic.created_ms // 1000,
        )
        for partition in found.partitions
    ]
    return json_answer(TopicDetails(model_of(topic), partitions))


@CALLS.delete(
    "/topics/{topic}", CallDoc("Delete a topic with its records and offsets", {200: Deleted}, errors=(400, 404))
)
async def _delete(call: HttpCall) -> Answer:
    name = call.params["topic"]
    try:
        with translated_errors(call, name):
            await call.do(DeleteTopic(name))
    except AccessDenied:
        raise
    except PenstockError:
        # Another client deleted it just before.
        if name not in call.gateway.broker.topics:
            raise Refusal(404, TOPIC_NOT_FOUND) from None
        raise
    return json_answer(Deleted(deleted=True))
