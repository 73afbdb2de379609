"""The sequences that TinyMQ's own document shows, line by line, with nothing before, between or after them."""

from typing import Any

from penstock.testing.process import BrokerProcess
from tests.conformance.tinymq.client import Tinymq, request


def data(answer: Any) -> Any:
    assert answer["ok"] is True, answer
    return answer["data"]


def test_its_sample_session(own_broker: BrokerProcess) -> None:
    lines = [
        request("createTopic", topic="events", partitions=2),
        request("produce", topic="events", value="boot"),
        request("produce", topic="events", value="user:42", key="user-42"),
        request("produce", topic="events", value="click", partition=0),
        request("fetch", topic="events", partition=0, offset=0, max=10),
        request("commit", groupId="g1", topic="events", partition=0, offset=3),
        request("metrics", topic="events", partition=0, groupId="g1"),
        request("listTopics"),
    ]
    with Tinymq(own_broker.addresses["tcp"]) as tinymq:
        made, boot, user, click, fetched, committed, metrics, listed = [data(tinymq.line(line)) for line in lines]
    assert made == {"topic": "events", "partitions": 2}
    assert [record["value"] for record in (boot, user, click)] == ["boot", "user:42", "click"]
    first = [record for record in (boot, user, click) if record["partition"] == 0]
    assert [record["value"] for record in fetched["records"]] == [record["value"] for record in first]
    assert [record["offset"] for record in fetched["records"]] == list(range(len(first)))
    assert committed == {"groupId": "g1"}
    # A key may send its record to the other partition: then the commit is past the end.
    end = len(first)
    assert metrics == {"beginOffset": 0, "endOffset": end, "size": end, "committedOffset": 3, "lag": end - 3}
    assert listed == {"topics": ["events"]}


def test_each_of_its_requests_in_their_order(own_broker: BrokerProcess) -> None:
    with Tinymq(own_broker.addresses["tcp"]) as tinymq:
        made = tinymq.line(request("createTopic", topic="events", partitions=2))
        assert data(made) == {"topic": "events", "partitions": 2}

        record = data(tinymq.line(request("produce", topic="events", value="hello", key="k1")))
        assert (record["offset"], record["value"], record["key"]) == (0, "hello", "k1")

        fetched = data(tinymq.line(request("fetch", topic="events", partition=0, offset=0, max=10)))
        assert len(fetched["records"]) == (record["partition"] == 0)

        committed = tinymq.line(request("commit", groupId="g1", topic="events", partition=0, offset=1))
        assert data(committed) == {"groupId": "g1"}

        metrics = data(tinymq.line(request("metrics", topic="events", partition=0, groupId="g1")))
        assert (metrics["committedOffset"], metrics["lag"]) == (1, metrics["endOffset"] - 1)

        # A heartbeat keeps a membership alive, and nobody has joined.
        assert tinymq.line(request("heartbeat", groupId="g1", consumerId="consumer-1"))["ok"] is False

        joined = tinymq.line(request("joinGroup", groupId="g1", topic="events", consumerId="consumer-1"))
        assert data(joined) == {"partitions": [0, 1]}

        left = tinymq.line(request("leaveGroup", groupId="g1", consumerId="consumer-1"))
        assert data(left) == {"groupId": "g1"}

        assert data(tinymq.line(request("listTopics"))) == {"topics": ["events"]}
