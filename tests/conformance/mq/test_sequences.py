"""The sequences that mq's own documents show, call by call, with nothing before, between or after them."""

from uuid import UUID

import pytest

from tests.conformance.mq.client import Client


@pytest.fixture
def first_client(own_broker, original_code):
    """The only client that the broker has ever had."""
    client = Client(original_code, own_broker.addresses["grpc"])
    yield client
    client.close()


def test_its_examples_in_their_order(first_client) -> None:
    assert first_client.create_topic(name="test-topic").success

    published = first_client.publish(topic="test-topic", payload=b"Hello, World!", headers={"key": "value"})
    assert str(UUID(published.message_id)) == published.message_id

    with first_client.subscribed(topic="test-topic", consumer_group="test-group", consumer_id="consumer-1") as stream:
        message = next(stream)
    assert (message.id, message.topic, message.payload) == (published.message_id, "test-topic", b"Hello, World!")
    assert message.headers == {"key": "value"}

    assert first_client.commit(topic="test-topic", consumer_group="test-group", offset=1).success


def test_an_offset_is_committed_before_there_is_a_message(first_client) -> None:
    assert first_client.create_topic(name="test-topic").success
    assert first_client.commit(topic="test-topic", consumer_group="test-group", offset=1).success
    for payload in (b"first", b"second"):
        assert UUID(first_client.publish(topic="test-topic", payload=payload).message_id)
    with first_client.subscribed(topic="test-topic", consumer_group="test-group", consumer_id="consumer-1") as stream:
        assert next(stream).payload == b"second"


def test_the_program_of_its_client(first_client) -> None:
    # The client names no consumer, subscribes for good, and parses the id of each message.
    assert first_client.create_topic(name="secure-topic").success
    first_client.publish(topic="secure-topic", payload=b"Sensitive data", headers={"key": "value"})
    with first_client.subscribed(topic="secure-topic", consumer_group="secure-group") as stream:
        message = next(stream)
        assert (message.payload, UUID(message.id).variant) == (b"Sensitive data", UUID(int=1 << 63).variant)
