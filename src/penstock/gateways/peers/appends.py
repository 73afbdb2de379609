"""Appends of other nodes to partitions that this node leads: from their requests to ``core/partitions/led_appends.py``.

Each is begun as it arrives, so their order on a connection is their order in the log. They are answered when they are done, in any
order.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.core.partitions.partition import Partition
from penstock.core.partitions.peers import AppendedRecords
from penstock.core.partitions.status import NO_PRODUCER, ProducerQuery, partition_status
from penstock.errors import PenstockError
from penstock.records.batch import read_produced
from penstock.types import Buffer, GroupId, PartitionKey, TopicName
from penstock.wire.kafka.headers import frame
from penstock.wire.peers import AppendHead, AppendOnceHead, CommittedHead, Head, decode_peer_request, encode_answer

if TYPE_CHECKING:
    from penstock.gateways.peers.gateway import PeerGateway

UNDER_WAY_MAX: Final = 1_000
"""Appends of one connection; above it, nothing more is read."""


class PeerAppends:
    """The appends of one connection."""

    def __init__(
        self, gateway: "PeerGateway", answer: Callable[[list[Buffer]], None], on_room: Callable[[], None]
    ) -> None:
        """``on_room`` is called when there is room again."""
        self._gateway = gateway
        self._answer = answer
        self._on_room = on_room
        self._under_way = 0
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another one."""
        return self._under_way >= UNDER_WAY_MAX

    def close(self) -> None:
        """The connection is closed; what was begun ends by itself."""
        self._closed = True

    def begin(self, api: int, correlation_id: int, body: memoryview) -> None:
        """Begin an append; ProtocolViolation if it cannot be decoded."""
        head, batch = decode_peer_request(api, body)
        self._under_way += 1
        try:
            self._serve(head, batch, partial(self._done, correlation_id))
        except PenstockError as error:
            self._done(correlation_id, error)

    def _serve(self, head: Head, batch: bytearray, done: Callable[[list[int] | PenstockError], None]) -> None:
        partition = self._led(head)
        appends = self._gateway.cluster.appends
        if isinstance(head, AppendHead | AppendOnceHead):
            read_produced(batch)
        if isinstance(head, AppendHead):
            appends.append(partition, batch, head.acks, partial(_one, done))
        elif isinstance(head, AppendOnceHead):
            appends.append_once(partition, batch, head.header, head.search_from, partial(_appended_once, done))
        elif isinstance(head, CommittedHead):
            key = PartitionKey(TopicName(head.of_topic), head.of_partition)
            done(self._gateway.broker.groups.committed(head.partition, GroupId(head.group), key))
        else:
            asked = ProducerQuery(head.producer_id, head.producer_epoch, head.from_offset)
            if asked == NO_PRODUCER:
                self._gateway.broker.settling.wait((partition,), partial(self._describe_settled, head, done))
            else:
                done(list(partition_status(partition, asked)))

    def _describe_settled(self, head: Head, done: Callable[[list[int] | PenstockError], None]) -> None:
        """Describe a partition once what it acknowledged is committed."""
        try:
            done(list(partition_status(self._led(head))))
        except PenstockError as error:
            done(error)

    def _led(self, head: Head) -> Partition:
        topic = self._gateway.broker.topics.require_id(UUID(bytes=head.topic_id))
        partition = self._gateway.cluster.replicas.leader(topic, head.partition)
        partition.check_epoch(head.leader_epoch)
        return partition

    def _done(self, correlation_id: int, answer: list[int] | PenstockError) -> None:
        was_full = self.is_full
        self._under_way -= 1
        if self._closed:
            return
        if was_full:
            asyncio.get_running_loop().call_soon(self._on_room)
        self._answer(frame(correlation_id, 0, [encode_answer(answer)]))


def _appended_once(done: Callable[[list[int] | PenstockError], None], found: AppendedRecords | PenstockError) -> None:
    done(found if isinstance(found, PenstockError) else [*found.offsets, found.appended_from])


def _one(done: Callable[[list[int] | PenstockError], None], offset: int | PenstockError) -> None:
    done(offset if isinstance(offset, PenstockError) else [offset])
