"""A topic on a scripted broker."""

import pytest

from penstock.client import cluster as cluster_module
from penstock.client import sinks as sinks_module
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.init_producer_id_generated import InitProducerIdResponse
from penstock.wire.kafka.metadata_generated import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts, in seconds. For the client's deadlines no other time passes, so that a slow machine cannot miss them."""
    taken = []
    for module in (cluster_module, sinks_module):
        monkeypatch.setattr(module, "monotonic", lambda: sum(taken))
        monkeypatch.setattr(module, "sleep", taken.append)
    return taken


@pytest.fixture
def scripted():
    """A function that starts a scripted broker with a topic "t"; handlers for other APIs are given by name."""
    brokers = []

    def start(handlers, *, partitions=1):
        def metadata(_):
            parts = [MetadataResponsePartition(partition_index=index, leader_id=1) for index in range(partitions)]
            return MetadataResponse(
                brokers=[MetadataResponseBroker(1, "127.0.0.1", broker.port)],
                controller_id=1,
                topics=[MetadataResponseTopic(name="t", partitions=parts)],
            )

        given = {
            ApiKey.METADATA: metadata,
            ApiKey.INIT_PRODUCER_ID: lambda _: InitProducerIdResponse(producer_id=7, producer_epoch=0),
            **handlers,
        }
        broker = ScriptedBroker(given).listen()
        brokers.append(broker)
        return broker

    yield start
    for broker in brokers:
        broker.close()
