"""Topics under ``/v1``: list, create and delete them."""

from typing import Final

from penstock.gateways.http.server.answers import NO_CONTENT, Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall
from penstock.gateways.http.v1.models import CreateTopicRequest, NoFields, TopicCreated, TopicNames
from penstock.gateways.http.v1.requests import parameters_of, read, refuse
from penstock.operations.topics import CreateTopic, DeleteTopic, ListTopics

CALLS: Final = ApiCalls("v1: topics")


@CALLS.get("/v1/topics", CallDoc("List the names of all topics, sorted", {200: TopicNames}, errors=(400,)))
async def _list_topics(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(TopicNames([topic.name for topic in await call.do(ListTopics())]))


@CALLS.post(
    "/v1/topics",
    CallDoc(
        "Create a topic",
        {201: TopicCreated},
        errors=(400, 409, 429),
        description="If the topic exists with the same number of partitions, nothing changes; with another number, the call is a conflict. "
        "The fields go in the query string or in a body.",
        parameters=parameters_of(CreateTopicRequest),
        body=CreateTopicRequest,
        body_required=False,
    ),
)
async def _create_topic(call: HttpCall) -> Answer:
    request = read(CreateTopicRequest, call.query, call.body)
    name = request.name.strip()
    if not name:
        raise refuse("name is required")
    # Some clients send 0 for no number.
    topic = await call.do(CreateTopic(name, request.partitions or 1))
    return json_answer(TopicCreated("created", topic.name, topic.partition_count), 201)


@CALLS.delete(
    "/v1/topics/{topic}", CallDoc("Delete a topic with its records, offsets and leases", {204: None}, errors=(400, 404))
)
async def _delete_topic(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    await call.do(DeleteTopic(call.params["topic"]))
    return NO_CONTENT
