"""The sequences that TarantoolMQ's own documents show, call by call, with nothing before, between or after them."""

from uuid import UUID

from penstock.testing.process import BrokerProcess
from tests.conformance.tarantoolmq.client import Curl
from tests.support.waiting import eventually


def test_its_examples_in_their_order(own_broker: BrokerProcess) -> None:
    curl = Curl(own_broker.addresses["http"])

    made = curl.post("/topics", {"name": "my-topic", "partitions": 4})
    assert made.status == 201
    assert (made.body["name"], made.body["partitions"]) == ("my-topic", 4)

    assert [topic["name"] for topic in curl.get("/topics").body["topics"]] == ["my-topic"]

    published = curl.post("/topics/my-topic/messages", {"key": "user-1", "value": "Hello World", "partition": 0})
    assert published.status == 200
    assert (published.body["topic"], published.body["partition"], published.body["offset"]) == ("my-topic", 0, 0)

    [message] = curl.get("/topics/my-topic/partitions/0/messages?offset=0&max_records=10").body["messages"]
    assert (message["key"], message["value"], message["offset"]) == ("user-1", "Hello World", 0)
    assert message["id"] == published.body["id"]

    group = curl.post("/consumers/my-group/groups", {"topic_name": "my-topic"})
    assert group.status == 201
    assert (group.body["name"], group.body["topic_name"]) == ("my-group", "my-topic")
    assert UUID(group.body["id"])

    # One message is there, and the next one to read is the sixth.
    commit = {"topic_name": "my-topic", "partition": 0, "offset": 5}
    assert curl.post("/consumers/my-group/offsets", commit)[:2] == (200, {"committed": True})

    offsets = curl.get("/consumers/my-group/offsets?topic=my-topic").body["offsets"]
    assert [(found["topic"], found["partition"], found["offset"]) for found in offsets] == [
        ("my-topic", 0, 5),
        ("my-topic", 1, 0),
        ("my-topic", 2, 0),
        ("my-topic", 3, 0),
    ]

    watermarks = curl.get("/topics/my-topic/partitions/0/offsets")
    assert watermarks[:2] == (200, {"high_watermark": 1, "low_watermark": 0})

    assert curl("DELETE", "/topics/my-topic")[:2] == (200, {"deleted": True})

    assert curl.get("/health")[:2] == (200, {"status": "healthy"})


def test_a_group_comes_first(own_broker: BrokerProcess) -> None:
    curl = Curl(own_broker.addresses["http"])

    assert curl.post("/consumers/my-group/groups", {"topic_name": "my-topic"}).status == 201
    assert curl.get("/consumers/my-group/offsets?topic=my-topic")[:2] == (200, {"offsets": []})

    # Without a number a topic has four partitions.
    assert curl.post("/topics", {"name": "my-topic"}).status == 201
    path = "/consumers/my-group/offsets?topic=my-topic"
    offsets = eventually(lambda: curl.get(path).body["offsets"], what="the offsets")
    assert [(found["partition"], found["offset"]) for found in offsets] == [(0, 0), (1, 0), (2, 0), (3, 0)]

    commit = {"topic_name": "my-topic", "partition": 2, "offset": 1}
    assert curl.post("/consumers/my-group/offsets", commit)[:2] == (200, {"committed": True})
    assert [found["offset"] for found in curl.get(path).body["offsets"]] == [0, 0, 1, 0]
