"""A small synchronous Kafka client without threads, used by the command line and by Spark tasks.

It works with any Kafka broker from version 2.1. For example::

    from penstock.client import Admin, At, Cluster, Consumer, Producer, list_offsets

    with Cluster("127.0.0.1:9092") as cluster:
        Admin(cluster).create_topic("orders", partitions=3)
        with Producer(cluster) as producer:
            producer.send("orders", b"two apples", key=b"anna")
        consumer = Consumer(cluster)
        places = [("orders", partition) for partition in range(3)]
        starts = list_offsets(cluster, dict.fromkeys(places, At.EARLIEST))
        consumer.assign({place: found.offset for place, found in starts.items()})
        for record in consumer.poll(timeout_ms=1000):
            print(record.partition, record.offset, record.key, record.value)

``connection.py`` is one socket, ``cluster.py`` finds leaders and repeats requests; ``admin.py``, ``group_admin.py`` and ``moves.py``
administer; ``producer.py`` writes records and ``batches.py`` prepared batches, both with ``sending.py``; ``consumer.py`` reads given
partitions, ``group_consumer.py`` reads as a member of a group; ``errors.py`` has every error. Over HTTP (``http.py``), ``queue.py``
processes queues, ``queue_admin.py`` administers them, ``sinks.py`` commits to exactly-once sinks, and ``status.py`` shows the status of
topics, groups and the cluster; ``discovery.py`` finds the address. All of them take ``security`` (``security.py``) for TLS and
credentials: ``sockets.py`` connects, and ``login.py`` with ``sasl.py`` proves who the client is::

    from penstock.client import QueueClient

    with QueueClient("127.0.0.1:8080") as client:
        client.produce("orders", b"two apples", key=b"anna", max_attempts=5)
        for record in client.consume("orders", "billing"):
            try:
                bill(record.value)
            except Exception as error:
                client.nack(record, str(error))
            else:
                client.ack(record)

The names here are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.access import AccessAdmin
    from penstock.client.admin import Admin, ConfigEntry
    from penstock.client.batches import BatchSender
    from penstock.client.cluster import Cluster, ClusterInfo, Node, PartitionInfo, TopicInfo, TopicPartition
    from penstock.client.consumer import Consumer, ConsumerRecord, Fetched, OutOfRange, open_records
    from penstock.client.discovery import NoHttpListener, http_addresses
    from penstock.client.errors import (
        AuthenticationFailed,
        AuthenticationRequired,
        BatchTooLarge,
        BrokerRefused,
        CannotConnect,
        ClientError,
        ConnectionLost,
        InvalidSecurity,
        NotKafka,
        RequestRefused,
        RequestTimeout,
        TlsFailed,
        UnsupportedByBroker,
    )
    from penstock.client.group_admin import CommittedOffset, GroupAdmin, GroupDescription, GroupListing, GroupMember
    from penstock.client.group_consumer import GroupConsumer
    from penstock.client.offsets import At, OffsetAndTimestamp, list_offsets, watermarks
    from penstock.client.producer import Producer
    from penstock.client.queue import LeasedRecord, Produced, QueueClient
    from penstock.client.queue_admin import QueueAdmin
    from penstock.client.security import ClientSecurity, Mechanism
    from penstock.client.sending import DeliveredBatch
    from penstock.client.sinks import Aborted, Committed, Opened, SinkClient, SinkStatus, StagedPart
    from penstock.types import Acks

_MODULES = {
    "access": ("AccessAdmin",),
    "admin": ("Admin", "ConfigEntry"),
    "batches": ("BatchSender",),
    "cluster": ("Cluster", "ClusterInfo", "Node", "PartitionInfo", "TopicInfo", "TopicPartition"),
    "consumer": ("Consumer", "ConsumerRecord", "Fetched", "OutOfRange", "open_records"),
    "discovery": ("NoHttpListener", "http_addresses"),
    "errors": (
        "AuthenticationFailed",
        "AuthenticationRequired",
        "BatchTooLarge",
        "BrokerRefused",
        "CannotConnect",
        "ClientError",
        "ConnectionLost",
        "InvalidSecurity",
        "NotKafka",
        "RequestRefused",
        "RequestTimeout",
        "TlsFailed",
        "UnsupportedByBroker",
    ),
    "group_admin": ("CommittedOffset", "GroupAdmin", "GroupDescription", "GroupListing", "GroupMember"),
    "group_consumer": ("GroupConsumer",),
    "offsets": ("At", "OffsetAndTimestamp", "list_offsets", "watermarks"),
    "producer": ("Producer",),
    "queue": ("LeasedRecord", "Produced", "QueueClient"),
    "queue_admin": ("QueueAdmin",),
    "security": ("ClientSecurity", "Mechanism"),
    "sending": ("Acks", "DeliveredBatch"),
    "sinks": ("Aborted", "Committed", "Opened", "SinkClient", "SinkStatus", "StagedPart"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Aborted",
    "AccessAdmin",
    "Acks",
    "Admin",
    "At",
    "AuthenticationFailed",
    "AuthenticationRequired",
    "BatchSender",
    "BatchTooLarge",
    "BrokerRefused",
    "CannotConnect",
    "ClientError",
    "ClientSecurity",
    "Cluster",
    "ClusterInfo",
    "Committed",
    "CommittedOffset",
    "ConfigEntry",
    "ConnectionLost",
    "Consumer",
    "ConsumerRecord",
    "DeliveredBatch",
    "Fetched",
    "GroupAdmin",
    "GroupConsumer",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "InvalidSecurity",
    "LeasedRecord",
    "Mechanism",
    "NoHttpListener",
    "Node",
    "NotKafka",
    "OffsetAndTimestamp",
    "Opened",
    "OutOfRange",
    "PartitionInfo",
    "Produced",
    "Producer",
    "QueueAdmin",
    "QueueClient",
    "RequestRefused",
    "RequestTimeout",
    "SinkClient",
    "SinkStatus",
    "StagedPart",
    "TlsFailed",
    "TopicInfo",
    "TopicPartition",
    "UnsupportedByBroker",
    "http_addresses",
    "list_offsets",
    "open_records",
    "watermarks",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"{__name__} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
