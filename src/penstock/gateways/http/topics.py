"""Topics over HTTP: list, create, look at, delete. A topic made here is the same in every other API."""

from typing import TYPE_CHECKING, Annotated, Final, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta, Struct
from starlette.routing import Route

from penstock.core.access import Action
from penstock.core.topics import NewTopic, Topic
from penstock.errors import PenstockError
from penstock.gateways.http.answers import Answer, Refusal, UnknownTopic, json_answer
from penstock.gateways.http.routing import Call, CallDoc, decoded, required, route
from penstock.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

TOPIC_NOT_FOUND: Final = "Topic not found"
TOPIC_NAME: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": TOPIC_NAME_CHARS_MAX,
    "pattern": "^[a-zA-Z0-9._-]+$",
}
"""What a topic's name may be, for the OpenAPI document."""
_RETENTION_SECONDS_MAX = (2**63 - 1) // 1000
_RETENTION_BYTES_MAX = 2**63 - 1


class TopicRequest(Struct, frozen=True):
    """What a topic is to be. What is left out comes from the broker's configuration."""

    name: Annotated[str, Meta(examples=["orders"])] | None = None
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_PER_TOPIC_MAX)] | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=32)] | None = None
    retention_seconds: Annotated[int, Meta(ge=-1, le=_RETENTION_SECONDS_MAX, description="-1: forever")] | None = None
    retention_bytes: (
        Annotated[int, Meta(ge=-1, le=_RETENTION_BYTES_MAX, description="per partition; -1: no limit")] | None
    ) = None


class TopicModel(Struct, frozen=True, rename={"topic_id": "id"}):
    """A topic. Times are unix seconds; -1 in a retention is no bound."""

    topic_id: UUID
    name: str
    partitions: int
    replication_factor: int
    retention_seconds: int
    retention_bytes: int
    created_at: int
    updated_at: int


class PartitionModel(Struct, frozen=True, rename={"record_id": "id"}):
    """A partition: who leads it, and who has it."""

    record_id: UUID
    topic_name: str
    partition_id: int
    leader: int
    replicas: list[int]
    is_active: bool
    created_at: int


class TopicList(Struct, frozen=True):
    """All topics but the broker's own, by name."""

    topics: list[TopicModel]


class TopicDetails(Struct, frozen=True):
    """A topic with its partitions."""

    topic: TopicModel
    partitions: list[PartitionModel]


class Deleted(Struct, frozen=True):
    """It is gone, with its records and offsets."""

    deleted: Literal[True]


_decoder = msgspec.json.Decoder(TopicRequest)


def find_topic(call: Call, name: str, action: Action) -> Topic:
    """The topic of a path or body, for one who may do this to it; 404 when there is none."""
    broker = call.gateway.broker
    broker.access.require_topic(call.caller, action, name)
    topic = broker.topics.get(name)
    if topic is None:
        raise UnknownTopic(name, 404, TOPIC_NOT_FOUND)
    return topic


def model_of(topic: Topic) -> TopicModel:
    """A topic as this API shows it."""
    retention_ms = topic.config.retention_ms
    return TopicModel(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        retention_seconds=-1 if retention_ms < 0 else retention_ms // 1000,
        retention_bytes=topic.config.retention_bytes,
        created_at=topic.created_ms // 1000,
        updated_at=topic.updated_ms // 1000,
    )


async def _list(call: Call) -> Answer:
    broker = call.gateway.broker
    broker.access.require_cluster(call.caller, Action.DESCRIBE)
    return json_answer(TopicList([model_of(topic) for topic in broker.topics if not topic.internal]))


async def _create(call: Call) -> Answer:
    asked: TopicRequest = decoded(_decoder, call.body) if call.body.strip() else TopicRequest()
    if not asked.name:
        raise Refusal(400, "Missing topic name")
    broker, settings = call.gateway.broker, call.gateway.settings
    broker.access.require_topic(call.caller, Action.CREATE, asked.name)
    if asked.name in broker.topics:
        # What was left out was not asked for, so it cannot be a conflict.
        topic = await broker.topics.create(_new_topic(asked), exist_ok=True)
    else:
        whole = TopicRequest(
            asked.name,
            settings.default_partitions if asked.partitions is None else asked.partitions,
            _replication_factor(call) if asked.replication_factor is None else asked.replication_factor,
            settings.default_retention_seconds if asked.retention_seconds is None else asked.retention_seconds,
            settings.default_retention_bytes if asked.retention_bytes is None else asked.retention_bytes,
        )
        topic = await broker.topics.create(_new_topic(whole), exist_ok=True)
    return json_answer(model_of(topic), 201)


def _replication_factor(call: Call) -> int | None:
    """One copy is the default of a broker that is alone. Unless a cluster's operator asked for more, it has its own default."""
    configured = call.gateway.settings.default_replication_factor
    return None if configured == 1 and call.gateway.broker.cluster is not None else configured


def _new_topic(asked: TopicRequest) -> NewTopic:
    configs: dict[str, str | None] = {}
    if asked.retention_seconds is not None:
        seconds = asked.retention_seconds
        configs["retention.ms"] = str(-1 if seconds < 0 else seconds * 1000)
    if asked.retention_bytes is not None:
        configs["retention.bytes"] = str(asked.retention_bytes)
    assert asked.name
    return NewTopic(
        asked.name,
        -1 if asked.partitions is None else asked.partitions,
        -1 if asked.replication_factor is None else asked.replication_factor,
        configs,
    )


async def _get(call: Call) -> Answer:
    topic = find_topic(call, call.params["topic"], Action.DESCRIBE)
    partitions = [
        PartitionModel(
            record_id=uuid5(topic.topic_id, str(index)),
            topic_name=topic.name,
            partition_id=index,
            leader=record.leader,
            replicas=list(record.replicas),
            is_active=record.leader >= 0,
            created_at=topic.created_ms // 1000,
        )
        for index, record in enumerate(call.gateway.broker.topics.partitions(topic))
    ]
    return json_answer(TopicDetails(model_of(topic), partitions))


async def _delete(call: Call) -> Answer:
    name = call.params["topic"]
    find_topic(call, name, Action.DELETE)
    try:
        await call.gateway.broker.topics.delete(name)
    except PenstockError:
        # Somebody else was quicker: for us it is not there.
        if name not in call.gateway.broker.topics:
            raise Refusal(404, TOPIC_NOT_FOUND) from None
        raise
    return json_answer(Deleted(deleted=True))


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET and POST /topics, GET and DELETE /topics/:t."""
    return [
        route(gateway, "GET", "/topics", _list, CallDoc("Topics", "List the topics", {200: TopicList})),
        route(
            gateway,
            "POST",
            "/topics",
            _create,
            CallDoc(
                "Topics",
                "Create a topic",
                {201: TopicModel},
                errors=(400, 409, 429),
                description="If the topic exists with the requested settings, it is returned unchanged. If it exists with other settings, the call is a conflict, and nothing changes.",
                body=required(TopicRequest, name=TOPIC_NAME),
            ),
        ),
        route(
            gateway,
            "GET",
            "/topics/{topic}",
            _get,
            CallDoc("Topics", "Show a topic and its partitions", {200: TopicDetails}, errors=(404,)),
        ),
        route(
            gateway,
            "DELETE",
            "/topics/{topic}",
            _delete,
            CallDoc("Topics", "Delete a topic with its records and offsets", {200: Deleted}, errors=(400, 404)),
        ),
    ]
