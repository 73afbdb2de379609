"""TarantoolMQ's calls about the service and its topics, each status and each text."""

import time
from uuid import UUID

import pytest

from penstock import __version__
from tests.conformance.tarantoolmq.client import Curl

TOPIC_FIELDS = {
    "id",
    "name",
    "partitions",
    "replication_factor",
    "retention_seconds",
    "retention_bytes",
    "created_at",
    "updated_at",
}


def test_the_root_says_what_the_service_is_and_what_it_serves(curl: Curl) -> None:
    reply = curl.get("/")
    assert reply.status == 200
    assert reply.body["service"] == "penstock"
    assert reply.body["version"] == __version__
    assert {"GET /topics", "POST /topics/{topic}/messages", "GET /consumers/{group}/offsets"} <= set(
        reply.body["endpoints"]
    )


def test_health(curl: Curl) -> None:
    assert curl.get("/health")[:2] == (200, {"status": "healthy"})


@pytest.mark.parametrize("path", ["/nothing", "/topics/", "/topics/a/b", "/consumers/g", "/TOPICS", "/docs/other"])
def test_anything_else_is_not_found(curl: Curl, path: str) -> None:
    assert curl.get(path)[:2] == (404, {"error": "Not found"})


def test_a_wrong_method_is_told_the_right_ones(curl: Curl) -> None:
    reply = curl("PUT", "/topics")
    assert reply[:2] == (404, {"error": "Not found"})
    assert reply.headers["allow"] == "GET, HEAD, POST"


def test_a_request_id_is_echoed_or_made(curl: Curl) -> None:
    assert curl.get("/health", "-H", "X-Request-Id: mine-1").headers["x-request-id"] == "mine-1"
    made = {curl.get(path).headers["x-request-id"] for path in ("/health", "/nothing")}
    assert len(made) == 2


def test_a_topic_is_created_with_the_defaults(curl: Curl, new_name: str) -> None:
    before = int(time.time())
    status, topic, _ = curl.post("/topics", {"name": new_name})
    assert status == 201
    assert set(topic) == TOPIC_FIELDS
    assert UUID(topic["id"]).version == 4
    assert topic["name"] == new_name
    assert (topic["partitions"], topic["replication_factor"]) == (4, 1)
    assert (topic["retention_seconds"], topic["retention_bytes"]) == (604800, 1073741824)
    assert before <= topic["created_at"] == topic["updated_at"] <= int(time.time()) + 1


def test_a_topic_is_created_as_it_is_asked_for(curl: Curl, new_name: str) -> None:
    asked = {
        "name": new_name,
        "partitions": 2,
        "replication_factor": 1,
        "retention_seconds": 60,
        "retention_bytes": 4096,
    }
    status, topic, _ = curl.post("/topics", asked)
    assert status == 201
    assert {field: topic[field] for field in asked} == asked


def test_retention_without_a_bound_is_minus_one(curl: Curl, new_name: str) -> None:
    topic = curl.post("/topics", {"name": new_name, "retention_seconds": -1, "retention_bytes": -1}).body
    assert (topic["retention_seconds"], topic["retention_bytes"]) == (-1, -1)


def test_creating_it_again_with_the_same_settings_gives_the_same_topic(curl: Curl, new_name: str) -> None:
    first = curl.post("/topics", {"name": new_name, "partitions": 2})
    assert first.status == 201
    again = curl.post("/topics", {"name": new_name, "partitions": 2, "retention_seconds": 604800})
    assert again[:2] == first[:2]
    assert curl.post("/topics", {"name": new_name})[:2] == first[:2]


def test_creating_it_again_with_other_settings_is_a_conflict_that_changes_nothing(curl: Curl, topic: str) -> None:
    curl.post(f"/topics/{topic}/messages", {"value": "kept", "partition": 0})
    before = curl.get(f"/topics/{topic}").body
    status, body, _ = curl.post("/topics", {"name": topic, "partitions": 3})
    assert status == 409
    assert body == {
        "error": f"Topic {topic} already exists with other settings: 3 partitions were requested and it has 2. "
        "Nothing was changed."
    }
    assert curl.post("/topics", {"name": topic, "retention_seconds": 1}).status == 409
    assert curl.get(f"/topics/{topic}").body == before
    assert curl.get(f"/topics/{topic}/partitions/0/messages").body["messages"][0]["value"] == "kept"


@pytest.mark.parametrize("body", [None, {}, {"name": ""}, {"name": None}, {"partitions": 3}])
def test_a_topic_needs_a_name(curl: Curl, body: object) -> None:
    assert curl.post("/topics", body)[:2] == (400, {"error": "Missing topic name"})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("{", "The body is not JSON: Input data was truncated."),
        ("[]", "The body is invalid: Expected `object`, got `array`."),
        ({"name": 5}, "The body is invalid: Expected `str | null`, got `int` - at `$.name`."),
        (
            {"name": "a b"},
            "The topic name 'a b' has a character other than ASCII letters, digits, '.', '_' and '-'. Choose another name.",
        ),
        (
            {"name": "x", "partitions": 0},
            "The body is invalid: Expected `int` >= 1 - at `$.partitions`.",
        ),
        (
            {"name": "x", "replication_factor": 3},
            "The replication factor cannot be 3: this is a single broker. Use 1, or -1 for the default.",
        ),
        (
            {"name": "__consumer_offsets"},
            "__consumer_offsets is an internal topic, which is created when it is needed. Choose another name.",
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_a_sentence(curl: Curl, body: object, text: str) -> None:
    status, answer, _ = curl.post("/topics", body)
    assert status in (400, 409)
    assert answer == {"error": text}


def test_topics_are_listed_by_name_without_the_brokers_own(curl: Curl, topic: str) -> None:
    status, body, _ = curl.get("/topics")
    names = [found["name"] for found in body["topics"]]
    assert status == 200
    assert topic in names
    assert names == sorted(names)
    assert not any(name.startswith("__") for name in names)
    assert all(set(found) == TOPIC_FIELDS for found in body["topics"])


def test_a_topic_is_shown_with_its_partitions(curl: Curl, topic: str) -> None:
    status, body, _ = curl.get(f"/topics/{topic}")
    assert status == 200
    assert set(body) == {"topic", "partitions"}
    assert body["topic"]["name"] == topic
    created_at = body["topic"]["created_at"]
    assert [{**partition, "id": str(UUID(partition["id"])) == partition["id"]} for partition in body["partitions"]] == [
        {
            "id": True,
            "topic_name": topic,
            "partition_id": index,
            "leader": 1,
            "replicas": [1],
            "is_active": True,
            "created_at": created_at,
        }
        for index in range(2)
    ]
    assert len({partition["id"] for partition in body["partitions"]}) == 2


def test_a_deleted_topic_is_gone_with_its_records_and_offsets(curl: Curl, topic: str, group: str) -> None:
    curl.post(f"/topics/{topic}/messages", {"value": "x", "partition": 0})
    registered = curl.post(f"/consumers/{group}/groups", {"topic_name": topic}).body
    assert curl.post(f"/consumers/{group}/offsets", {"topic_name": topic, "partition": 0, "offset": 1}).status == 200
    assert curl("DELETE", f"/topics/{topic}")[:2] == (200, {"deleted": True})
    assert curl("DELETE", f"/topics/{topic}")[:2] == (404, {"error": "Topic not found"})
    assert curl.get(f"/topics/{topic}")[:2] == (404, {"error": "Topic not found"})
    assert curl.post("/topics", {"name": topic, "partitions": 2}).status == 201
    assert curl.get(f"/topics/{topic}/partitions/0/messages").body == {"messages": []}
    assert curl.get(f"/consumers/{group}/offsets?topic={topic}").body == {"offsets": []}
    assert curl.post(f"/consumers/{group}/groups", {"topic_name": topic}).body["id"] != registered["id"]


def test_an_unknown_topic_is_not_found(curl: Curl) -> None:
    assert curl.get("/topics/nobody")[:2] == (404, {"error": "Topic not found"})
    assert curl("DELETE", "/topics/nobody")[:2] == (404, {"error": "Topic not found"})


def test_the_brokers_own_topic_cannot_be_deleted(curl: Curl) -> None:
    status, body, _ = curl("DELETE", "/topics/__consumer_offsets")
    assert status == 400
    assert body == {"error": "__consumer_offsets is an internal topic and cannot be deleted"}
