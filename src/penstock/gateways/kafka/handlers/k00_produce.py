"""Produce (API key 0): append batches to any number of partitions. The request is answered when all of them are acknowledged.

Version 9 is flexible, 10 can name a new leader, 13 names topics by id. Record batches did not exist below version 3: those
versions are listed, because older versions of librdkafka would otherwise stop compressing, but they are refused.

``produce_lane.py`` serves requests of the usual shape, by the rules of this file.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from penstock.core.broker import Broker
from penstock.core.partitions.partition import Done, Partition
from penstock.core.security.lanes import authorise_lane, authorise_lane_by_id
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka import answers
from penstock.gateways.kafka.answers import Deferred
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import counted_code
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import current_leader
from penstock.limits import DECOMPRESSED_RATIO_MAX
from penstock.meters import Flow
from penstock.operations.operation import Action
from penstock.operations.transactions import WriteInTransactions
from penstock.records.batch import Compression, read_header, read_produced
from penstock.records.builder import recompress
from penstock.transport.listener import Listener
from penstock.types import NO_OFFSET, NO_TIMESTAMP, Gateway
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.produce_generated import (
    ProduceRequest,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponseCurrentLeader,
    ProduceResponseNodeEndpoint,
    ProduceResponsePartition,
    ProduceResponseRecordError,
    ProduceResponseTopic,
)

BY_ID_FROM: Final = 13
_BATCHES_FROM: Final = 3

_ToOpen = tuple[ProduceResponsePartition, Partition, bytearray]
"""A batch that has to be decompressed or checked before it is appended, with its answer."""


@handles(ApiKey.PRODUCE, versions=(0, 13))
def handle(request: ProduceRequest, context: RequestContext) -> Deferred:
    """The batches are appended at once; only the answer waits, for the write or for the commit."""
    produce = _Produce(request, context)
    return Deferred(produce.start, produce.timed_out, produce.forget, request.timeout_ms, request.acks != 0)


def partition_of(context: RequestContext, topic: ProduceRequestTopic, index: int) -> Partition:
    """The partition of a request, if the caller may produce to it."""
    by_id = context.version >= BY_ID_FROM
    if not by_id:
        authorise_lane(context.broker, context.caller, Action.WRITE, topic.name)
        partition = context.broker.partition(topic.name, index)
    else:
        partition = context.broker.partition_by_id(topic.topic_id, index)
        authorise_lane_by_id(context.broker, context.caller, Action.WRITE, partition.topic.name)
    if partition.topic.internal and not partition.is_staging:
        raise PenstockError(
            Reason.INVALID_TOPIC, f"{partition.topic.name} is an internal topic. Produce to another topic"
        )
    return partition


def append(
    partition: Partition,
    batch: bytearray | memoryview,
    acks: int,
    now_ms: int,
    flow: Flow,
    *,
    is_sound: bool = False,
    keys_checked: bool = False,
) -> int:
    """Append and count one batch; returns its base offset."""
    log = partition.log
    next_offset = log.next_offset
    base_offset = partition.append(batch, now_ms, is_sound=is_sound, keys_checked=keys_checked)
    count = log.next_offset - next_offset
    if count:
        # Nothing was appended if it is a duplicate.
        flow.records_in += count
        flow.bytes_in += len(batch)
    if acks == 0:
        partition.acknowledged_offset = log.next_offset
    return base_offset


def when_acknowledged(partition: Partition, acks: int) -> Callable[[int, Done], None]:
    """What waits until the records below an offset are acknowledged: written with acks=1, committed with acks=-1."""
    return partition.when_written if acks == 1 else partition.when_committed


def refuse(
    response: ProduceResponse,
    answer: ProduceResponsePartition,
    broker: Broker,
    listener: Listener,
    topic: str | bytes,
    error: PenstockError,
) -> None:
    """Fill in why a partition's batch was refused and, from version 10 on, where its leader is."""
    answer.error_code = counted_code(broker.meters, error.reason)
    answer.error_message = error.text
    answer.record_errors = [ProduceResponseRecordError(index, text) for index, text in error.records]
    answer.base_offset, answer.log_append_time_ms, answer.log_start_offset = NO_OFFSET, NO_TIMESTAMP, -1
    leader = current_leader(broker, listener, error.reason, topic, answer.index)
    if leader is None:
        return
    node = leader.node
    answer.current_leader = ProduceResponseCurrentLeader(node.node_id, leader.leader_epoch)
    if all(listed.node_id != node.node_id for listed in response.node_endpoints):
        endpoint = ProduceResponseNodeEndpoint(node.node_id, node.address.host, node.address.port, node.rack)
        response.node_endpoints = [*response.node_endpoints, endpoint]


class _Produce:
    """A request in progress, which is answered when its last partition is done."""

    __slots__ = ("_broker", "_committing", "_context", "_done", "_request", "_response", "_waiting_for")

    def __init__(self, request: ProduceRequest, context: RequestContext) -> None:
        self._request = request
        self._context = context
        self._broker = context.broker
        self._response = ProduceResponse(responses=[])
        self._committing: list[tuple[Partition, Done]] = []
        """The callbacks for the commit in each partition."""
        self._waiting_for = 1
        self._done: answers.Done

    def start(self, done: answers.Done) -> Awaitable[None] | None:
        """Append all batches; what is returned waits for those that have to be opened first."""
        self._done = done
        refusal = self._refusal()
        if refusal is not None:
            self._response = self._refused(refusal)
            self._end_one()
            return None
        to_open: list[_ToOpen] = []
        for topic in self._request.topic_data:
            name = topic.topic_id if self._context.version >= BY_ID_FROM else topic.name
            answered = ProduceResponseTopic(topic_id=topic.topic_id, name=topic.name, partition_responses=[])
            self._response.responses.append(answered)
            for asked in topic.partition_data:
                answer = ProduceResponsePartition(index=asked.index)
                answered.partition_responses.append(answer)
                try:
                    partition = partition_of(self._context, topic, asked.index)
                    if asked.records is None:
                        raise PenstockError(Reason.INVALID_RECORD, "The request has no records for this partition")
                    assert not isinstance(asked.records, bytes)
                    if self._request.acks == -1:
                        partition.check_in_sync(asked.records)
                    if partition.wants_recompression or partition.is_compacted:
                        to_open.append((answer, partition, bytearray(asked.records)))
                    else:
                        self._append(answer, partition, asked.records)
                except PenstockError as error:
                    refuse(self._response, answer, self._broker, self._context.listener, name, error)
        if to_open:
            return self._append_opened(to_open)
        self._end_one()
        return None

    def timed_out(self) -> ProduceResponse:
        """The records may still be committed later, as with every broker."""
        return self._refused(PenstockError(Reason.REQUEST_TIMED_OUT))

    def forget(self) -> None:
        """Remove its callbacks."""
        for partition, through in self._committing:
            partition.forget_committed(through)

    def _refusal(self) -> PenstockError | None:
        """Why the whole request is refused."""
        if self._context.version < _BATCHES_FROM:
            return PenstockError(
                Reason.UNSUPPORTED_VERSION, "This broker requires Produce version 3 or newer. Update the client"
            )
        if self._request.transactional_id is not None:
            try:
                self._context.answer(WriteInTransactions(self._request.transactional_id))
            except PenstockError as error:
                return error
        if self._request.acks not in (-1, 0, 1):
            return PenstockError(Reason.INVALID_REQUIRED_ACKS)
        return None

    def _refused(self, error: PenstockError) -> ProduceResponse:
        """The same refusal for every partition."""
        code = self._context.code(error)
        response = ProduceResponse(responses=[])
        for topic in self._request.topic_data:
            answers = [
                ProduceResponsePartition(each.index, code, base_offset=NO_OFFSET, error_message=error.text)
                for each in topic.partition_data
            ]
            response.responses.append(ProduceResponseTopic(topic.topic_id, topic.name, answers))
        return response

    def _append(
        self,
        answer: ProduceResponsePartition,
        partition: Partition,
        batch: bytearray | memoryview,
        *,
        is_sound: bool = False,
        keys_checked: bool = False,
    ) -> None:
        now_ms, acks, name = self._context.now_ms, self._request.acks, partition.topic.name
        flow = self._broker.meters.flow(name, Gateway.KAFKA)
        answer.base_offset = append(partition, batch, acks, now_ms, flow, is_sound=is_sound, keys_checked=keys_checked)
        answer.log_start_offset = partition.log.start_offset
        answer.log_append_time_ms = now_ms if partition.stamps else NO_TIMESTAMP
        if acks == 0:
            return
        self._waiting_for += 1
        through = partial(self._through, answer, name)
        if acks == -1:
            self._committing.append((partition, through))
        when_acknowledged(partition, acks)(partition.log.next_offset, through)

    async def _append_opened(self, to_open: list[_ToOpen]) -> None:
        """Open and append the batches one by one; compressed ones are opened outside the event loop."""
        for answer, partition, batch in to_open:
            try:
                await self._open_and_append(answer, partition, batch)
            except PenstockError as error:
                refuse(self._response, answer, self._broker, self._context.listener, partition.topic.name, error)
        self._end_one()

    async def _open_and_append(self, answer: ProduceResponsePartition, partition: Partition, batch: bytearray) -> None:
        config = partition.topic.config
        header = read_produced(batch)
        compression = config.compression
        if compression is not None and header.compression is not compression:
            bytes_max = config.max_message_bytes * DECOMPRESSED_RATIO_MAX
            batch = await asyncio.to_thread(recompress, batch, compression, bytes_max)
        keys_checked = partition.is_compacted and header.compression is not Compression.NONE
        if keys_checked:
            await asyncio.to_thread(partition.check_keys, batch, read_header(batch))
        if partition.gone:
            # It was removed while the batch was opened.
            is_deleted = self._broker.topics.get_by_id(partition.topic.topic_id) is None
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION if is_deleted else Reason.NOT_LEADER_OR_FOLLOWER,
            )
        self._append(answer, partition, batch, is_sound=True, keys_checked=keys_checked)

    def _through(self, answer: ProduceResponsePartition, topic: str, reason: Reason | None) -> None:
        """Called when a batch is acknowledged, or never will be."""
        if reason is not None:
            refuse(self._response, answer, self._broker, self._context.listener, topic, PenstockError(reason))
        self._end_one()

    def _end_one(self) -> None:
        self._waiting_for -= 1
        if self._waiting_for:
            return
        done = self._done
        # It refers to this request: break the cycle.
        del self._done
        if self._request.acks != 0:
            done(self._response)
            return
        answers = (answer for topic in self._response.responses for answer in topic.partition_responses)
        refused = next((answer for answer in answers if answer.error_code), None)
        if refused is not None:
            done(PenstockError(Reason.INVALID_REQUEST, refused.error_message or "refused"))
