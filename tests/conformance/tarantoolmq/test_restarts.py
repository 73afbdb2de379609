"""What was acknowledged is there after a kill -9: topics, empty ones too, messages, offsets and registered groups."""

from penstock.testing.process import BrokerProcess
from tests.conformance.tarantoolmq.client import Curl
from tests.support.waiting import eventually


def test_everything_acknowledged_survives_a_kill(own_broker: BrokerProcess) -> None:
    curl = Curl(own_broker.addresses["http"])
    for name in ("orders", "empty"):
        assert curl.post("/topics", {"name": name, "partitions": 2}).status == 201
    sent = [{"value": str(n), "key": "k", "headers": {"n": str(n)}, "partition": 0} for n in range(10)]
    assert curl.post("/topics/orders/messages", {"messages": sent, "acks": "all"}).status == 200
    assert curl.post("/topics/orders/messages", {"value": "last", "partition": 1}).status == 200
    registered = curl.post("/consumers/g/groups", {"topic_name": "orders"}).body
    commit = {"topic_name": "orders", "partition": 0, "offset": 7}
    assert curl.post("/consumers/g/offsets", commit).status == 200
    paths = (
        "/topics",
        "/topics/orders",
        "/topics/empty",
        "/topics/orders/partitions/0/messages",
        "/topics/orders/partitions/1/messages",
        "/topics/orders/partitions/0/offsets",
        "/consumers/g/offsets?topic=orders",
    )
    before = {path: curl.get(path).body for path in paths}
    own_broker.restart()
    curl = Curl(own_broker.addresses["http"])
    assert {path: curl.get(path).body for path in paths} == before
    assert [message["value"] for message in before[paths[3]]["messages"]] == [str(n) for n in range(10)]
    assert curl.post("/consumers/g/groups", {"topic_name": "orders"})[:2] == (201, registered)
    assert curl.post("/topics/orders/messages", {"value": "next", "partition": 0}).body["offset"] == 10


def test_a_deleted_topic_stays_deleted(own_broker: BrokerProcess) -> None:
    curl = Curl(own_broker.addresses["http"])
    curl.post("/topics", {"name": "gone"})
    curl.post("/topics/gone/messages", {"value": "x"})
    first = curl.post("/consumers/g/groups", {"topic_name": "gone"}).body
    assert curl("DELETE", "/topics/gone").status == 200
    own_broker.restart()
    curl = Curl(own_broker.addresses["http"])
    assert curl.get("/topics").body == {"topics": []}
    assert curl.post("/topics", {"name": "gone"}).status == 201
    assert curl.post("/consumers/g/groups", {"topic_name": "gone"}).body["id"] != first["id"]


def test_a_group_that_was_made_before_its_topic_survives_a_kill(own_broker: BrokerProcess) -> None:
    curl = Curl(own_broker.addresses["http"])
    registered = curl.post("/consumers/g/groups", {"topic_name": "later"}).body
    own_broker.restart()
    curl = Curl(own_broker.addresses["http"])
    curl.post("/topics", {"name": "later", "partitions": 2})
    offsets = eventually(lambda: curl.get("/consumers/g/offsets").body["offsets"], what="the offsets")
    assert [(found["topic"], found["partition"], found["offset"]) for found in offsets] == [
        ("later", 0, 0),
        ("later", 1, 0),
    ]
    assert curl.post("/consumers/g/groups", {"topic_name": "later"})[:2] == (201, registered)
