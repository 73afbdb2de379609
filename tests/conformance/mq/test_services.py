"""The standard services beside ours, and what keeps one client from harming the others."""

import socket
import threading

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.conformance.mq.client import CALL_SECONDS, Client, payloads, refused, start_broker, take

SERVICE = "mq.MessageQueueService"
SERVING = health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_services(client) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=CALL_SECONDS)
    assert {service.name for service in answer.list_services_response.service} == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_a_client_can_be_made_from_reflection_alone(client, topic) -> None:
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(client.channel))
    service = pool.FindServiceByName(SERVICE)
    assert {method.name for method in service.methods} >= {"CreateTopic", "Publish", "Subscribe", "CommitOffset"}
    request = message_factory.GetMessageClass(service.methods_by_name["CreateTopic"].input_type)(name=topic)
    create = client.channel.unary_unary(f"/{SERVICE}/CreateTopic")
    create(request.SerializeToString(), timeout=CALL_SECONDS)
    assert topic in client.call("ListTopics").topics
    assert pool.FindMessageTypeByName("grpc.health.v1.HealthCheckRequest").fields_by_name["service"]


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_says_that_it_serves(client, service) -> None:
    stub = health_pb2_grpc.HealthStub(client.channel)
    assert stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_SECONDS).status == SERVING


def test_a_call_that_is_not_there_is_told_as_such(client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.channel.unary_unary(f"/{SERVICE}/Nothing")(b"", timeout=CALL_SECONDS)
    assert caught.value.code() is StatusCode.UNIMPLEMENTED


def test_bytes_that_are_no_message_harm_nobody(client, broker, topic) -> None:
    client.create_topic(name=topic)
    for method in ("Publish", "CreateTopic", "CommitOffset", "Ack", "TopicStats"):
        with pytest.raises(grpc.RpcError) as caught:
            client.channel.unary_unary(f"/{SERVICE}/{method}")(b"\xff\xff\xff", timeout=CALL_SECONDS)
        assert caught.value.code() in (StatusCode.INTERNAL, StatusCode.INVALID_ARGUMENT, StatusCode.UNKNOWN)
    host, _, port = broker.addresses["grpc"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=CALL_SECONDS) as other:
        other.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    assert client.publish(topic=topic, payload=b"x").offset == 0


def test_a_slow_reader_holds_nobody_up_and_costs_no_memory(client, others, broker, topic) -> None:
    """It takes nothing of 64 MiB that are there for it, while another one reads them all."""
    client.create_topic(name=topic)
    frames = 64
    records = [client.pb2.PublishRequest(payload=bytes(10_000)) for _ in range(105)]
    frame = client.pb2.PublishFrame(topic=topic, records=records)

    def publish_and_read_all() -> None:
        list(client.stub.PublishStream(iter([frame] * frames), timeout=CALL_SECONDS))
        with others[1].subscribed(batch=True, topic=topic, max_messages=frames * 105) as stream:
            assert sum(len(one.messages) for one in stream) == frames * 105

    # What a client that publishes as fast as it can costs, and one that reads so, is not the slow reader's: the broker has it by now.
    publish_and_read_all()
    before = resident_bytes(broker.pid)
    with (
        others[0].subscribed(topic=topic, consumer_group="slow", consumer_id="c"),
        others[0].subscribed(batch=True, topic=topic, consumer_group="slow too", consumer_id="c"),
    ):
        publish_and_read_all()
        grown = resident_bytes(broker.pid) - before
        assert client.publish(topic=topic, payload=b"x").offset == 2 * frames * 105
    assert grown < 48 * 1024 * 1024, f"the broker grew by {grown / 1024 / 1024:.0f} MiB"


def resident_bytes(pid):
    """Without what is mapped of files: a page of a log is the kernel's to keep."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024


def test_more_calls_than_allowed_are_refused_and_the_others_go_on(tmp_path, today_code, topic) -> None:
    process = start_broker(tmp_path, grpc__streams_max=2)
    client = Client(today_code, process.addresses["grpc"])
    try:
        client.create_topic(name=topic)
        with client.subscribed(topic=topic) as first, client.subscribed(topic=topic) as second:
            with pytest.raises(grpc.RpcError) as caught:
                client.publish(topic=topic, payload=b"x")
            assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
            second.cancel()
            # The place is free once the broker has seen the end of the stream.
            publish_until_taken(client, topic)
            assert next(first).payload == b"x"
    finally:
        client.close()
        process.kill()


def test_more_connections_than_allowed_are_refused_and_the_others_go_on(tmp_path, today_code, topic) -> None:
    process = start_broker(tmp_path, limits__connections_max=2)
    clients = [Client(today_code, process.addresses["grpc"]) for _ in range(3)]
    try:
        clients[0].create_topic(name=topic)
        clients[1].publish(topic=topic, payload=b"x")
        with pytest.raises(grpc.RpcError) as caught:
            clients[2].publish(topic=topic, payload=b"x")
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert clients[0].publish(topic=topic, payload=b"x").offset == 1
    finally:
        for client in clients:
            client.close()
        process.kill()


def publish_until_taken(client, topic):
    for _ in range(1000):
        try:
            return client.publish(topic=topic, payload=b"x")
        except grpc.RpcError as error:
            assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    raise AssertionError("the place was never free")


def test_a_stop_ends_the_streams_with_a_word(own_broker, today_code, topic) -> None:
    client = Client(today_code, own_broker.addresses["grpc"])
    client.create_topic(name=topic)
    never = threading.Event()

    def frames():
        yield client.pb2.PublishFrame(topic=topic, records=[client.pb2.PublishRequest(payload=b"x")])
        never.wait(CALL_SECONDS)

    with client.subscribed(topic=topic) as reading, client.subscribed(topic=topic, consumer_group="g") as grouped:
        publishing = client.stub.PublishStream(frames(), timeout=CALL_SECONDS)
        assert list(next(publishing).offsets) == [0]
        assert next(reading).payload == next(grouped).payload == b"x"
        assert own_broker.stop() == 0
        for stream in (reading, grouped, publishing):
            with refused(StatusCode.UNAVAILABLE, "The broker is stopping. Connect again in a moment."):
                next(stream)
    never.set()
    client.close()
    log = own_broker.log_text()
    assert [line for line in log.splitlines() if " info " not in line] == []


def test_a_stop_does_not_wait_for_a_client_that_does_not_read(own_broker, today_code, topic) -> None:
    client = Client(today_code, own_broker.addresses["grpc"])
    client.create_topic(name=topic)
    frame = client.pb2.PublishFrame(
        topic=topic, records=[client.pb2.PublishRequest(payload=bytes(10_000)) for _ in range(100)]
    )
    list(client.stub.PublishStream(iter([frame] * 20), timeout=CALL_SECONDS))
    with client.subscribed(topic=topic), client.subscribed(topic=topic, batch=True):
        assert own_broker.stop() == 0
    client.close()


def test_after_a_kill_topics_records_and_commits_are_there(own_broker, original_code, topic) -> None:
    client = Client(original_code, own_broker.addresses["grpc"])
    client.create_topic(name=topic)
    client.create_topic(name=f"{topic}.empty")
    message_ids = [client.publish(topic=topic, payload=b"%d" % number).message_id for number in range(10)]
    client.commit(topic=topic, consumer_group="g", offset=7)
    client.close()
    own_broker.restart()
    client = Client(original_code, own_broker.addresses["grpc"])
    with client.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        messages = take(stream, 3)
    assert payloads(messages) == [b"7", b"8", b"9"]
    assert [message.id for message in messages] == message_ids[7:]
    assert client.publish(topic=topic, payload=b"x").message_id not in message_ids
    client.publish(topic=f"{topic}.empty", payload=b"x")
    client.close()
