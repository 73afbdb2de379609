"""Produce, the general way: any number of topics and partitions, answered together. The usual shape goes through ``produce_lane.py``."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from penstock.core.access import Action
from penstock.core.broker import Broker
from penstock.core.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.nodes import ToldLeader, leader_instead
from penstock.limits import DECOMPRESSED_RATIO_MAX
from penstock.records.batch import HEADER_BYTES, Compression, check_produced, read_header
from penstock.records.recompress import recompress
from penstock.types import NO_TIMESTAMP, Buffer, Gateway
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


class ProducedTopics:
    """How a version names topics."""

    BY_ID_FROM: Final = 13


Done = Callable[[ProduceResponse], None]
Later = Callable[[], Awaitable[None]]
"""Work that is begun when its turn comes."""
Committing = tuple[Partition, Callable[[Reason | None], None]]
"""A batch that waits for its commit, and what is called then."""


def refuse_all(request: ProduceRequest, context: RequestContext, error: PenstockError) -> ProduceResponse:
    """The same refusal for every partition asked for."""
    code = context.code(error)
    return ProduceResponse(
        responses=[
            ProduceResponseTopic(
                topic_id=topic.topic_id,
                name=topic.name,
                partition_responses=[
                    ProduceResponsePartition(
                        index=partition.index, error_code=code, base_offset=-1, error_message=error.text
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def place_of(broker: Broker, topic: ProduceRequestTopic, index: int, version: int) -> Partition:
    """The partition that a request of this version names."""
    if version >= ProducedTopics.BY_ID_FROM:
        return broker.partition_by_id(topic.topic_id, index)
    return broker.partition(topic.name, index)


def tell_leader(response: ProduceResponse, answer: ProduceResponsePartition, leader: ToldLeader) -> None:
    """Say in a refusal who leads the partition, and where that node is. From version 10 on it is sent."""
    node = leader.node
    answer.current_leader = ProduceResponseCurrentLeader(node.node_id, leader.leader_epoch)
    if all(told.node_id != node.node_id for told in response.node_endpoints):
        endpoint = ProduceResponseNodeEndpoint(node.node_id, node.address.host, node.address.port, node.rack)
        response.node_endpoints = [*response.node_endpoints, endpoint]


class _Pending:
    """Counts the partitions that are not through; the last one answers."""

    def __init__(self, response: ProduceResponse, done: Done, committing: list[Committing]) -> None:
        self.response = response
        self.committing = committing
        self._done = done
        self._open = 1

    def expect(self) -> None:
        self._open += 1

    def through(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._done(self.response)


def forget(committing: list[Committing]) -> None:
    """Nobody waits for these any more."""
    for partition, through in committing:
        partition.forget_committed(through)


def start_produce(
    request: ProduceRequest, context: RequestContext, done: Done, committing: list[Committing]
) -> Awaitable[None] | None:
    """Append everything; ``done`` gets the answer when the acknowledgements asked for are there.

    What waits for its commit is added to ``committing``; give it to :func:`forget` when the answer is not wanted any more.
    Returns something to wait for before the connection's next request, when batches must be compressed anew first.
    """
    if request.acks not in (-1, 0, 1):
        done(refuse_all(request, context, PenstockError(Reason.INVALID_REQUIRED_ACKS)))
        return None
    response = ProduceResponse()
    pending = _Pending(response, done, committing)
    recompressing: list[Later] = []
    responses: list[ProduceResponseTopic] = []
    for topic in request.topic_data:
        answers: list[ProduceResponsePartition] = []
        for asked in topic.partition_data:
            answer = ProduceResponsePartition(index=asked.index)
            answers.append(answer)
            later = _produce_one(topic, asked.index, asked.records, request.acks, context, answer, pending)
            if later is not None:
                recompressing.append(later)
        responses.append(ProduceResponseTopic(topic_id=topic.topic_id, name=topic.name, partition_responses=answers))
    response.responses = responses
    if not recompressing:
        pending.through()
        return None

    async def finish() -> None:
        for later in recompressing:
            await later()
        pending.through()

    return finish()


def _produce_one(
    topic: ProduceRequestTopic,
    index: int,
    records: Buffer | None,
    acks: int,
    context: RequestContext,
    answer: ProduceResponsePartition,
    pending: _Pending,
) -> Later | None:
    try:
        if context.version < ProducedTopics.BY_ID_FROM:
            context.require_topic(Action.WRITE, topic.name)
        partition = place_of(context.broker, topic, index, context.version)
        if context.version >= ProducedTopics.BY_ID_FROM:
            context.require_topic(Action.WRITE, partition.topic.name)
        if partition.topic.internal and not partition.is_staging:
            raise PenstockError(
                Reason.INVALID_TOPIC, f"{partition.topic.name} is an internal topic: produce to another topic"
            )
        if records is None:
            raise PenstockError(Reason.INVALID_RECORD, "the request has no records for this partition")
        if acks == -1:
            partition.check_in_sync(records)
        assert not isinstance(records, bytes)
        if partition.wants_recompression or partition.is_compacted:
            return partial(_open_then_append, partition, bytearray(records), acks, context, answer, pending)
        _append(partition, records, acks, context, answer, pending)
    except PenstockError as error:
        name = topic.name if context.version < ProducedTopics.BY_ID_FROM else topic.topic_id
        _fill(answer, context, error, name, pending.response)
    return None


async def _open_then_append(
    partition: Partition,
    batch: bytearray,
    acks: int,
    context: RequestContext,
    answer: ProduceResponsePartition,
    pending: _Pending,
) -> None:
    """Append a batch that has to be opened first; where it is compressed, off the event loop."""
    config = partition.topic.config
    try:
        if len(batch) < HEADER_BYTES:
            raise PenstockError(Reason.CORRUPT_RECORDS, "too few bytes for a batch")
        header = read_header(batch)
        check_produced(batch, header)
        compression = config.compression
        if compression is not None and header.compression is not compression:
            bytes_max = config.max_message_bytes * DECOMPRESSED_RATIO_MAX
            batch = await asyncio.to_thread(recompress, batch, compression, bytes_max)
        keys_checked = partition.is_compacted and header.compression is not Compression.NONE
        if keys_checked:
            await asyncio.to_thread(partition.check_keys, batch, read_header(batch))
        if partition.gone:
            # While the batch was being opened.
            is_deleted = context.broker.topics.get_by_id(partition.topic.topic_id) is None
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION if is_deleted else Reason.NOT_LEADER_OR_FOLLOWER,
            )
        _append(partition, batch, acks, context, answer, pending, keys_checked=keys_checked)
    except PenstockError as error:
        _fill(answer, context, error, partition.topic.name, pending.response)


def _append(
    partition: Partition,
    batch: bytearray | memoryview,
    acks: int,
    context: RequestContext,
    answer: ProduceResponsePartition,
    pending: _Pending,
    *,
    keys_checked: bool = False,
) -> None:
    now_ms = context.now_ms
    next_offset = partition.log.next_offset
    answer.base_offset = partition.append(batch, now_ms, keys_checked=keys_checked)
    count = partition.log.next_offset - next_offset
    if count:
        # A known duplicate brings nothing new.
        context.broker.meters.took_in(partition.topic.name, Gateway.KAFKA, count, len(batch))
    answer.log_start_offset = partition.log.start_offset
    stamped = partition.stamps
    answer.log_append_time_ms = now_ms if stamped else NO_TIMESTAMP
    if acks == 0:
        partition.acknowledged_offset = partition.log.next_offset
        return
    pending.expect()
    through = partial(_through, answer, context, pending, partition.topic.name)
    if acks == 1:
        partition.when_written(partition.log.next_offset, through)
    else:
        pending.committing.append((partition, through))
        partition.when_committed(partition.log.next_offset, through)


def _through(
    answer: ProduceResponsePartition, context: RequestContext, pending: _Pending, topic: str, reason: Reason | None
) -> None:
    if reason is not None:
        _fill(answer, context, PenstockError(reason), topic, pending.response)
    pending.through()


def _fill(
    answer: ProduceResponsePartition,
    context: RequestContext,
    error: PenstockError,
    topic: str | bytes,
    response: ProduceResponse,
) -> None:
    answer.error_code = context.code(error)
    answer.error_message = error.text
    answer.record_errors = [ProduceResponseRecordError(index, text) for index, text in error.records]
    answer.base_offset = -1
    answer.log_append_time_ms = NO_TIMESTAMP
    answer.log_start_offset = -1
    leader = leader_instead(context.broker, error.reason, topic, answer.index)
    if leader is not None:
        tell_leader(response, answer, leader)
