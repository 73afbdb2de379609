"""Metadata, a connection to each broker, and retries of temporary errors.

A :class:`Cluster` is shared by admin, producer and consumer. It is synchronous and not thread-safe: use one per thread.
Nothing runs in the background.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final, Self, TypeVar
from uuid import UUID

import msgspec

from penstock.address import Address, parse_address
from penstock.client.connection import CONNECT_TIMEOUT_MS, TIMEOUT_MS, Connection
from penstock.client.errors import (
    LEADER_NOT_AVAILABLE,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerRefused,
    CannotConnect,
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestTimeout,
    TlsFailed,
    cannot_connect_to_any,
    check,
)
from penstock.client.security import UNSECURED, ClientSecurity
from penstock.wire.kafka.find_coordinator_generated import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic, MetadataResponse

PORT_DEFAULT: Final = 9092
BACKOFF_MS_MIN: Final = 50
BACKOFF_MS_MAX: Final = 1_000
METADATA_AGE_MS_MAX: Final = 60_000

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")
TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Node:
    """A broker of the cluster."""

    node_id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition, with its leader and replicas."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic from the metadata."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The brokers and the requested topics. ``errors`` contains the error code of each missing topic."""

    cluster_id: str | None
    controller: int
    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicInfo]
    errors: Mapping[str, int]

    @property
    def any_node(self) -> Node:
        """A node that is up: the one that is reported as the controller, or else the first."""
        if not self.nodes:
            raise BrokerRefused(LEADER_NOT_AVAILABLE, message="No node of the cluster can be reached")
        return self.nodes.get(self.controller) or min(self.nodes.values(), key=lambda node: node.node_id)


class Cluster:
    """A cluster, reached through any of the ``bootstrap`` addresses ("HOST:PORT,HOST:PORT")."""

    def __init__(
        self,
        bootstrap: str | Sequence[Address],
        *,
        client_id: str = "penstock",
        timeout_ms: int = TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        security: ClientSecurity = UNSECURED,
    ) -> None:
        self.timeout_ms: Final = timeout_ms
        self.security: Final = security
        """For all brokers, and for their HTTP APIs."""
        self._bootstrap: Final = tuple(parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else bootstrap)
        self._client_id: Final = client_id
        self._connect_timeout_ms: Final = min(connect_timeout_ms, timeout_ms)
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Node] = {}
        self._topics: dict[str, tuple[float, TopicInfo]] = {}
        self._coordinators: dict[str, Address] = {}
        self._controller = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Metadata

    def describe(self, topics: Iterable[str] | None = (), *, auto_create: bool = False) -> ClusterInfo:
        """Request metadata from any broker; ``topics=None`` requests all topics, an empty list none."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=auto_create)
        answer = self.retry(lambda: self.any_connection().call(request, MetadataResponse))
        self._nodes = {b.node_id: Node(b.node_id, Address(b.host, b.port), b.rack) for b in answer.brokers}
        self._controller = answer.controller_id
        found: dict[str, TopicInfo] = {}
        errors: dict[str, int] = {}
        for topic in answer.topics:
            name = topic.name or ""
            if topic.error_code:
                errors[name] = topic.error_code
                self._topics.pop(name, None)
                continue
            partitions = tuple(
                PartitionInfo(
                    p.partition_index,
                    p.leader_id,
                    p.leader_epoch,
                    tuple(p.replica_nodes),
                    tuple(p.isr_nodes),
                    p.error_code,
                )
                for p in sorted(topic.partitions, key=lambda p: p.partition_index)
            )
            found[name] = TopicInfo(name, UUID(bytes=bytes(topic.topic_id)), topic.is_internal, partitions)
            self._topics[name] = (monotonic(), found[name])
        return ClusterInfo(answer.cluster_id, answer.controller_id, dict(self._nodes), found, errors)

    def topic(self, name: str, *, auto_create: bool = False) -> TopicInfo:
        """The topic, from recent metadata if available; :class:`BrokerRefused` if it does not exist."""
        known = self._topics.get(name)
        if known is not None and monotonic() - known[0] < METADATA_AGE_MS_MAX / 1000:
            return known[1]

        def ask() -> TopicInfo:
            info = self.describe([name], auto_create=auto_create)
            check(info.errors.get(name, 0), f"topic {name!r}")
            return info.topics[name]

        return self.retry(ask, unknown_topics=auto_create)

    def forget(self, topic: str | None = None) -> None:
        """Discard the cached metadata of the topic, or of all topics."""
        if topic is None:
            self._topics.clear()
            self._coordinators.clear()
            self._controller = -1
        else:
            self._topics.pop(topic, None)

    # Connections

    def any_connection(self) -> Connection:
        """A connection to any broker: an open one, or the first that answers."""
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        known = dict.fromkeys([*(node.address for node in self._nodes.values()), *self._bootstrap])
        errors: list[CannotConnect] = []
        for address in known:
            try:
                return self.connection_to(address)
            except CannotConnect as error:
                errors.append(error)
        assert errors, "there is always a bootstrap address"
        # A wrong protocol or certificate is the most useful error: waiting or starting a broker would not help.
        shown = next((error for error in errors if isinstance(error, NotKafka | TlsFailed)), errors[0])
        if len(errors) == 1 or isinstance(shown, NotKafka | TlsFailed):
            raise shown
        raise cannot_connect_to_any(known, "--bootstrap") from shown

    def connection_to(self, address: Address) -> Connection:
        """The connection to one broker; opened if necessary."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = self.open_connection(address)
            self._connections[address] = connection
        return connection

    def open_connection(self, address: Address) -> Connection:
        """A separate connection that the caller must close, for requests that block later ones."""
        return Connection(
            address,
            client_id=self._client_id,
            timeout_ms=self.timeout_ms,
            connect_timeout_ms=self._connect_timeout_ms,
            security=self.security,
        )

    def leader_address(self, topic: str, partition: int, *, auto_create: bool = False) -> Address:
        """Where the partition's leader listens."""
        info = self.topic(topic, auto_create=auto_create)
        if not 0 <= partition < len(info.partitions):
            last = len(info.partitions) - 1
            there = f"partitions 0 to {last}" if last else "only partition 0"
            raise BrokerRefused(UNKNOWN_TOPIC_OR_PARTITION, f"{topic}/{partition}", f"Topic {topic!r} has {there}")
        node = self._nodes.get(info.partitions[partition].leader)
        if node is None:
            self.forget(topic)
            raise BrokerRefused(LEADER_NOT_AVAILABLE, f"{topic}/{partition}")
        return node.address

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[Address, list[TopicPartition]]:
        """The partitions, grouped by the addresses of their leaders."""
        grouped: dict[Address, list[TopicPartition]] = {}
        for topic, partition in partitions:
            grouped.setdefault(self.leader_address(topic, partition), []).append((topic, partition))
        return grouped

    def controller(self) -> Connection:
        """A connection to the controller, or to any broker when none is known: it forwards or refuses."""
        if self._controller not in self._nodes:
            self.describe()
        node = self._nodes.get(self._controller)
        return self.any_connection() if node is None else self.connection_to(node.address)

    def coordinator_address(self, group: str) -> Address:
        """Where the group's coordinator listens."""
        known = self._coordinators.get(group)
        if known is None:
            request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
            answer = self.any_connection().call(request, FindCoordinatorResponse)
            if answer.coordinators:
                found = answer.coordinators[0]
                check(found.error_code, f"coordinator of group {group!r}", found.error_message)
                known = Address(found.host, found.port)
            else:
                check(answer.error_code, f"coordinator of group {group!r}", answer.error_message)
                known = Address(answer.host, answer.port)
            self._coordinators[group] = known
        return known

    def coordinator(self, group: str) -> Connection:
        """A connection to the group's coordinator."""
        return self.connection_to(self.coordinator_address(group))

    # Retries

    def retry(
        self,
        attempt: Callable[[], T],
        *,
        unknown_topics: bool = False,
        lost: bool = True,
        timeout_ms: int | None = None,
    ) -> T:
        """Call ``attempt`` until it succeeds, fails permanently, or times out.

        ``unknown_topics``: wait for a topic that is not in the metadata, since it is being created. If it is in the metadata and only the broker
        that was asked does not know it yet, it is always waited for. ``lost=False``: do not retry after a lost connection or a timeout that the
        broker reports, because the request may have been carried out and must not be sent twice.
        """
        deadline = monotonic() + (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        pause_ms = BACKOFF_MS_MIN
        while True:
            try:
                return attempt()
            except ClientError as error:
                if not self._worth_retrying(error, unknown_topics=unknown_topics, lost=lost):
                    raise
                pause_s = pause_ms * random.uniform(0.75, 1.25) / 1000  # noqa: S311  spreads retries, hides nothing
                if monotonic() + pause_s > deadline:
                    raise _timed_out(error) from error
                self.forget()
            sleep(pause_s)
            pause_ms = min(pause_ms * 2, BACKOFF_MS_MAX)

    def _worth_retrying(self, error: ClientError, *, unknown_topics: bool, lost: bool) -> bool:
        if isinstance(error, ConnectionLost):
            return lost
        if isinstance(error, TlsFailed):
            return False
        if isinstance(error, CannotConnect):
            # If the cluster was never reached, the address is most likely wrong. Otherwise, the broker is restarting.
            return bool(self._nodes)
        if isinstance(error, BrokerRefused) and error.code in (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID):
            # Brokers learn about a new topic one after the other. If the topic was deleted instead, the metadata of the next attempt shows it.
            return unknown_topics or error.in_metadata
        if isinstance(error, BrokerRefused) and error.code == REQUEST_TIMED_OUT and not lost:
            return False
        return error.retriable


def parse_bootstrap(text: str) -> list[Address]:
    """``HOST:PORT,HOST:PORT``; the port is optional. Raises ValueError if the text is invalid."""
    addresses = [parse_address(part, PORT_DEFAULT) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("The bootstrap server is missing; write HOST:PORT, for example 127.0.0.1:9092")
    if any(not address.port for address in addresses):
        raise ValueError(f"{text!r} has port 0, which cannot be connected to")
    return addresses


def _timed_out(error: ClientError) -> ClientError:
    # A refusal keeps its code, which the caller may check.
    return RequestTimeout(f"Gave up after several attempts: {error}") if isinstance(error, ConnectionLost) else error
