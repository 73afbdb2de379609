"""The five ways into one broker, behind one face, so that a test can put any two of them together.

Each door speaks its own protocol with a client that its users have: confluent-kafka, httpx, a socket, grpcio. What an API has no call
for is not pretended: DriftQ knows no offsets, so its reader is a worker of a queue and its commit is acks.
"""

import itertools
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

import confluent_kafka
import grpc
import httpx
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.testing.process import BrokerProcess
from penstock.wire.mq import mq_generated as mq
from tests.conformance.tinymq.client import Tinymq
from tests.support.waiting import Deadline

SECONDS = 30.0


class Door(Protocol):
    """One API."""

    name: str

    def create(self, topic: str, partitions: int) -> None: ...

    def topics(self) -> list[str]: ...

    def produce(self, topic: str, key: str, value: str, partition: int) -> int:
        """Its offset."""
        ...

    def place(self, topic: str, key: str) -> int:
        """Where a record of this key goes when nobody says where: its partition."""
        ...

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[str]:
        """The next values from an offset on."""
        ...

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    def committed(self, group: str, topic: str, partition: int) -> int | None: ...

    def sharing(self, group: str, topic: str, consumer: str) -> Any:
        """A context in which ``consumer`` is a member; gives a function that tells its partitions now."""
        ...

    def delete(self, topic: str) -> None: ...

    def close(self) -> None: ...


class Kafka:
    name = "kafka"

    def __init__(self, address: str) -> None:
        self._config = {"bootstrap.servers": address}
        self._admin = AdminClient(self._config)

    def create(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(SECONDS)

    def topics(self) -> list[str]:
        return sorted(name for name in self._admin.list_topics(timeout=SECONDS).topics if not name.startswith("__"))

    def produce(self, topic: str, key: str, value: str, partition: int) -> int:
        return self._produce(topic, value, key, partition=partition).offset()

    def place(self, topic: str, key: str) -> int:
        return self._produce(topic, "v", key).partition()

    def _produce(self, topic: str, value: str, key: str, **more: int) -> confluent_kafka.Message:
        placed: list[tuple[confluent_kafka.KafkaError | None, confluent_kafka.Message]] = []
        # librdkafka's own default is another hash than that of Kafka's Java client.
        producer = confluent_kafka.Producer({**self._config, "partitioner": "murmur2_random"})
        producer.produce(topic, value, key, on_delivery=lambda *told: placed.append(told), **more)
        assert producer.flush(SECONDS) == 0
        [(error, message)] = placed
        assert error is None, error
        return message

    def _consumer(self, group: str, **config: object) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer({**self._config, "group.id": group, "enable.auto.commit": False, **config})

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[str]:
        consumer = self._consumer("reader-without-group")
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            deadline, found = Deadline(SECONDS, f"{count} records of {topic}/{partition}"), []
            while len(found) < count:
                for message in consumer.consume(count - len(found), min(deadline.left, 1.0)):
                    assert message.error() is None, message.error()
                    found.append(message.value().decode())
            return found
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        consumer = self._consumer(group)
        place = confluent_kafka.TopicPartition(topic, partition, offset)
        [done] = consumer.commit(offsets=[place], asynchronous=False)
        assert done.error is None, done.error
        consumer.close()

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        consumer = self._consumer(group)
        [found] = consumer.committed([confluent_kafka.TopicPartition(topic, partition)], SECONDS)
        consumer.close()
        assert found.error is None or not self._knows(topic), found.error
        return found.offset if found.offset >= 0 else None

    def _knows(self, topic: str) -> bool:
        return topic in self.topics()

    @contextmanager
    def sharing(self, group: str, topic: str, consumer: str) -> Iterator[Any]:
        member = self._consumer(group, **{"client.id": consumer, "session.timeout.ms": 6000})
        member.subscribe([topic])

        def partitions() -> list[int]:
            member.poll(0.2)
            return sorted(place.partition for place in member.assignment())

        yield partitions
        member.close()

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(SECONDS)

    def close(self) -> None:
        pass


class TarantoolMq:
    name = "tarantoolmq"

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=f"http://{address}", timeout=SECONDS)

    def _ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = self._http.request(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    def create(self, topic: str, partitions: int) -> None:
        self._ask("POST", "/topics", 201, json={"name": topic, "partitions": partitions})

    def topics(self) -> list[str]:
        return sorted(topic["name"] for topic in self._ask("GET", "/topics")["topics"])

    def produce(self, topic: str, key: str, value: str, partition: int) -> int:
        body = {"key": key, "value": value, "partition": partition, "acks": "all"}
        return self._ask("POST", f"/topics/{topic}/messages", json=body)["offset"]

    def place(self, topic: str, key: str) -> int:
        return self._ask("POST", f"/topics/{topic}/messages", json={"key": key, "value": "v"})["partition"]

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[str]:
        query = {"offset": offset, "max_records": count}
        found = self._ask("GET", f"/topics/{topic}/partitions/{partition}/messages", params=query)["messages"]
        return [message["value"] for message in found]

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        body = {"topic_name": topic, "partition": partition, "offset": offset}
        assert self._ask("POST", f"/consumers/{group}/offsets", json=body) == {"committed": True}

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        answer = self._http.get(f"/consumers/{group}/offsets", params={"topic": topic})
        if answer.status_code == 404:
            return None
        found = {item["partition"]: item["offset"] for item in answer.json()["offsets"]}
        return found.get(partition)

    @contextmanager
    def sharing(self, group: str, topic: str, consumer: str) -> Iterator[Any]:
        def partitions() -> list[int]:
            body = {"topic_name": topic, "consumer_id": consumer}
            answer = self._http.post(f"/consumers/{group}/members", json=body)
            assert answer.is_success, answer.text
            return answer.json()["partitions"]

        yield partitions
        assert self._http.delete(f"/consumers/{group}/members/{consumer}").is_success

    def delete(self, topic: str) -> None:
        assert self._ask("DELETE", f"/topics/{topic}") == {"deleted": True}

    def close(self) -> None:
        self._http.close()


class TinyMq:
    name = "tinymq"

    def __init__(self, address: str) -> None:
        self._tiny = Tinymq(address)

    def create(self, topic: str, partitions: int) -> None:
        self._tiny.data("createTopic", topic=topic, partitions=partitions)

    def topics(self) -> list[str]:
        return self._tiny.data("listTopics")["topics"]

    def produce(self, topic: str, key: str, value: str, partition: int) -> int:
        return self._tiny.data("produce", topic=topic, key=key, value=value, partition=partition)["offset"]

    def place(self, topic: str, key: str) -> int:
        return self._tiny.data("produce", topic=topic, key=key, value="v")["partition"]

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[str]:
        found = self._tiny.data("fetch", topic=topic, partition=partition, offset=offset, max=count)["records"]
        return [record["value"] for record in found]

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        self._tiny.data("commit", groupId=group, topic=topic, partition=partition, offset=offset)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        answer = self._tiny.ask("metrics", topic=topic, partition=partition, groupId=group)
        return answer["data"]["committedOffset"] if answer["ok"] else None

    @contextmanager
    def sharing(self, group: str, topic: str, consumer: str) -> Iterator[Any]:
        yield lambda: self._tiny.data("joinGroup", groupId=group, topic=topic, consumerId=consumer)["partitions"]
        self._tiny.data("leaveGroup", groupId=group, consumerId=consumer)

    def delete(self, topic: str) -> None:
        self._tiny.data("deleteTopic", topic=topic)

    def close(self) -> None:
        self._tiny.close()


class Mq:
    name = "mq"

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def _ask(self, call: str, request: Any, answer: Any) -> Any:
        method = self._channel.unary_unary(
            f"/mq.MessageQueueService/{call}", request.__class__.SerializeToString, answer.FromString
        )
        return method(request, timeout=SECONDS)

    def _subscribe(self, request: Any) -> Any:
        method = self._channel.unary_stream(
            "/mq.MessageQueueService/Subscribe", mq.SubscribeRequest.SerializeToString, mq.Message.FromString
        )
        return method(request, timeout=SECONDS)

    def create(self, topic: str, partitions: int) -> None:
        request = mq.CreateTopicRequest(name=topic, partitions=partitions)
        assert self._ask("CreateTopic", request, mq.CreateTopicResponse).success

    def topics(self) -> list[str]:
        return list(self._ask("ListTopics", mq.ListTopicsRequest(), mq.ListTopicsResponse).topics)

    def produce(self, topic: str, key: str, value: str, partition: int) -> int:
        request = mq.PublishRequest(topic=topic, payload=value.encode(), key=key.encode(), partition=partition)
        return self._ask("Publish", request, mq.PublishResponse).offset

    def place(self, topic: str, key: str) -> int:
        request = mq.PublishRequest(topic=topic, payload=b"v", key=key.encode())
        return self._ask("Publish", request, mq.PublishResponse).partition

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[str]:
        request = mq.SubscribeRequest(topic=topic, replay_offset=offset, max_messages=count, partitions=[partition])
        return [message.payload.decode() for message in self._subscribe(request)]

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        request = mq.CommitOffsetRequest(topic=topic, consumer_group=group, partition=partition, offset=offset)
        assert self._ask("CommitOffset", request, mq.CommitOffsetResponse).success

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        request = mq.GroupStatusRequest(consumer_group=group)
        try:
            status = self._ask("GroupStatus", request, mq.GroupStatusResponse)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND
            return None
        for found in status.partitions:
            if (found.topic, found.partition) == (topic, partition) and found.HasField("committed_offset"):
                return found.committed_offset
        return None

    @contextmanager
    def sharing(self, group: str, topic: str, consumer: str) -> Iterator[Any]:
        stream = self._subscribe(mq.SubscribeRequest(topic=topic, consumer_group=group, consumer_id=consumer))
        assert dict(stream.initial_metadata())["consumer-id"] == consumer

        def partitions() -> list[int]:
            status = self._ask("GroupStatus", mq.GroupStatusRequest(consumer_group=group), mq.GroupStatusResponse)
            [member] = [member for member in status.members if member.consumer_id == consumer]
            return [number for assigned in member.assigned for number in assigned.partitions]

        yield partitions
        stream.cancel()

    def delete(self, topic: str) -> None:
        assert self._ask("DeleteTopic", mq.DeleteTopicRequest(name=topic), mq.DeleteTopicResponse).success

    def close(self) -> None:
        self._channel.close()


class DriftQ:
    name = "driftq"

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=f"http://{address}/v1", timeout=SECONDS)

    def _ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = self._http.request(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def create(self, topic: str, partitions: int) -> None:
        self._ask("POST", "/topics", 201, json={"name": topic, "partitions": partitions})

    def topics(self) -> list[str]:
        return self._ask("GET", "/topics")["topics"]

    def produce(self, topic: str, key: str, value: str, partition: int) -> int:
        body = {"topic": topic, "key": key, "value": value, "envelope": {"partition_override": partition}}
        return self._ask("POST", "/produce", json=body)["offset"]

    def place(self, topic: str, key: str) -> int:
        return self._ask("POST", "/produce", json={"topic": topic, "key": key, "value": "v"})["partition"]

    def _lines(self, topic: str, group: str, owner: str) -> Any:
        return self._http.stream("GET", "/consume", params={"topic": topic, "group": group, "owner": owner})

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[str]:
        with self._lines(topic, f"reader-{uuid.uuid4()}", "reader") as answer:
            lines = (json.loads(line) for line in answer.iter_lines())
            wanted = (line["value"] for line in lines if line["partition"] == partition and line["offset"] >= offset)
            return list(itertools.islice(wanted, count))

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """The floor is what a worker's acks make of it."""
        with self._lines(topic, group, "committer") as answer:
            lines = (json.loads(line) for line in answer.iter_lines())
            left = set(range(self.committed(group, topic, partition) or 0, offset))
            while left:
                line = next(lines)
                if line["partition"] == partition and line["offset"] in left:
                    body = {"topic": topic, "group": group, "owner": "committer", **_place(line)}
                    self._ask("POST", "/ack", 204, json=body)
                    left.remove(line["offset"])

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        answer = self._http.get(f"/groups/{group}")
        if answer.status_code == 404:
            return None
        for found in answer.json()["partitions"]:
            if (found["topic"], found["partition"]) == (topic, partition):
                return found["committed"]
        return None

    @contextmanager
    def sharing(self, group: str, topic: str, consumer: str) -> Iterator[Any]:
        raise AssertionError("workers of a queue share records, not partitions")
        yield

    def delete(self, topic: str) -> None:
        self._ask("DELETE", f"/topics/{topic}", 204)

    def close(self) -> None:
        self._http.close()


def _place(line: dict[str, Any]) -> dict[str, int]:
    return {"partition": line["partition"], "offset": line["offset"]}


class Doors:
    """All five, on one broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        addresses = broker.addresses
        self.by_name: dict[str, Door] = {
            door.name: door
            for door in (
                Kafka(addresses["kafka"]),
                TarantoolMq(addresses["http"]),
                TinyMq(addresses["tcp"]),
                Mq(addresses["grpc"]),
                DriftQ(addresses["http"]),
            )
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        for door in self:
            door.close()

    def __iter__(self) -> Iterator[Door]:
        return iter(self.by_name.values())

    def __getitem__(self, name: str) -> Door:
        return self.by_name[name]


NAMES = [door.name for door in (Kafka, TarantoolMq, TinyMq, Mq, DriftQ)]
