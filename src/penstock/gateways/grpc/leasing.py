"""A subscription that works a queue: records leased to its consumer, by ``lease_ms``.

Without ``max_messages`` it is a connected worker: the broker gives it records as they come. What it holds when the stream ends stays leased, and a stream
of the same consumer gets it again first; with ``release_on_disconnect`` it is free at once. With ``max_messages`` it takes so many and ends, which is
for a consumer that asks, works, and asks again: it is not sent again what it holds.

``max_in_flight`` bounds what a connected worker holds; the queue counts that, whichever API the records are settled through.
"""

import asyncio
from collections import deque
from typing import Final

from penstock.core.access import Action
from penstock.core.queues.delivery import Cancel, Delivery
from penstock.core.queues.workers import Worker
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.gateways.grpc.errors import topic_not_found
from penstock.types import Gateway, GroupId
from penstock.wire.mq.messages import MessageEncoder, encode_lease
from penstock.wire.mq.mq_generated import SubscribeRequest

_CREDIT: Final = 100
"""Records on their way to a client: enough to keep it busy, few enough to leave some for others."""
_RECORD_OVERHEAD_BYTES: Final = 64
_WAIT_MS: Final = 30_000
"""How long one question for records waits; then it is asked again."""


class _Leasing:
    """What both ways have in common."""

    def __init__(self, request: SubscribeRequest, call: Call) -> None:
        self._call = call
        topic = call.topic(request.topic, Action.READ)
        self._topic, self._topic_id = topic.name, topic.topic_id
        self._group = GroupId(call.group(request.consumer_group, Action.READ))
        if request.HasField("replay_offset") or request.HasField("replay_timestamp") or request.partitions:
            raise PenstockError(
                Reason.INVALID_REQUEST,
                "a queue delivers all unfinished records: with lease_ms, remove replay_offset, replay_timestamp and partitions",
            )
        self._lease_ms = lease_ms_of(call, request.lease_ms)
        self.consumer_id: Final = request.consumer_id or f"grpc-{call.broker.entropy.uuid()}"
        self.woken: Final = asyncio.Event()
        self._pending: deque[Delivery] = deque()
        self._encoders: dict[int, MessageEncoder] = {}
        self._flow = call.broker.meters.flow(self._topic, Gateway.GRPC)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self._pending.extend(deliveries)
        self.woken.set()

    def _take(self, max_records: int, max_bytes: int) -> list[Delivery]:
        taken: list[Delivery] = []
        pending = self._pending
        while pending and len(taken) < max_records and max_bytes > 0:
            delivery = pending.popleft()
            taken.append(delivery)
            max_bytes -= _RECORD_OVERHEAD_BYTES + len(delivery.value or b"") + len(delivery.key or b"")
        return taken

    def message(self, delivery: Delivery) -> bytes:
        """What the worker gets."""
        encoder = self._encoders.get(delivery.partition)
        if encoder is None:
            encoder = self._encoders[delivery.partition] = MessageEncoder(
                self._topic, self._topic_id, delivery.partition
            )
        record = encoder.encode(delivery.offset, delivery.timestamp, delivery.key, delivery.value, delivery.headers)
        return record + encode_lease(delivery.attempts, delivery.lease_until_ms, delivery.last_error)

    @staticmethod
    def place(taken: Delivery) -> tuple[int, int]:
        """Where a record lies."""
        return taken.partition, taken.offset

    def sent(self, taken: list[Delivery], size_bytes: int) -> None:
        """The client's connection took these."""
        self._flow.records_out += len(taken)
        self._flow.bytes_out += size_bytes


class Working(_Leasing):
    """A connected worker."""

    def __init__(self, request: SubscribeRequest, call: Call) -> None:
        super().__init__(request, call)
        self._gone: Reason | None = None
        self._worker: Worker = call.broker.queues.attach(
            call.caller,
            self._topic,
            self._group,
            self.consumer_id,
            lease_ms=self._lease_ms,
            credit=_CREDIT,
            on_deliver=self._deliver,
            on_gone=self._end,
            in_flight_max=request.max_in_flight,
            release_on_detach=request.release_on_disconnect,
        )

    def _end(self, reason: Reason) -> None:
        self._gone = reason
        self.woken.set()

    def take(self, max_records: int, max_bytes: int) -> list[Delivery]:
        """What there is; empty when ``woken`` will be set."""
        if self._gone is not None:
            self._call.serving.require_running()
            raise topic_not_found(self._topic) if self._topic_went else PenstockError(self._gone)
        return self._take(max_records, max_bytes)

    @property
    def _topic_went(self) -> bool:
        return self._gone is Reason.UNKNOWN_TOPIC_OR_PARTITION

    def sent(self, taken: list[Delivery], size_bytes: int) -> None:
        """Let as many follow."""
        super().sent(taken, size_bytes)
        self._worker.grant(len(taken))

    def close(self) -> None:
        """No more records are wanted."""
        self._worker.detach()


class Polling(_Leasing):
    """Takes a number of records; what it took stays leased when it ends."""

    def __init__(self, request: SubscribeRequest, call: Call) -> None:
        super().__init__(request, call)
        self._cancel: Cancel | None = None

    def take(self, max_records: int, max_bytes: int) -> list[Delivery]:
        """What there is; empty when ``woken`` will be set. Asks for no more than it is asked for."""
        if not self._pending and self._cancel is None:
            self._ask(max_records)
        return self._take(max_records, max_bytes)

    def _ask(self, max_records: int) -> None:
        # An empty answer may mean that the topic is gone.
        self._call.topic(self._topic, Action.READ)
        answered = False

        def done(deliveries: list[Delivery]) -> None:
            nonlocal answered
            answered = True
            self._cancel = None
            self._deliver(deliveries)

        cancel = self._call.broker.queues.lease(
            self._call.caller,
            self._topic,
            self._group,
            self.consumer_id,
            max_records=max_records,
            lease_ms=self._lease_ms,
            wait_ms=_WAIT_MS,
            done=done,
        )
        if not answered:
            self._cancel = cancel

    def close(self) -> None:
        """Nobody wants more."""
        if self._cancel is not None:
            self._cancel()


def leasing(request: SubscribeRequest, call: Call) -> Working | Polling:
    """A subscription that works a queue, open."""
    return Polling(request, call) if request.max_messages else Working(request, call)


def lease_ms_of(call: Call, lease_ms: int) -> int:
    """A lease that the broker gives."""
    longest_ms = call.broker.queues.settings.lease_ms_max
    if not 0 < lease_ms <= longest_ms:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"lease_ms is {lease_ms}; a lease lasts 1 to {longest_ms} milliseconds. Extend it later.",
        )
    return lease_ms
