"""A subscription that works a queue: records are leased to its consumer for ``lease_ms``.

Without ``max_messages``, it is a connected worker: the broker sends it records as they come. When the stream ends, its records stay
leased, and a stream of the same consumer gets them again first; with ``release_on_disconnect`` they are released at once. With
``max_messages``, it takes this many records and ends, for consumers that poll: records that the consumer holds are not sent again.

``max_in_flight`` limits the records that a connected worker holds. The queue counts them, whichever API settles them.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.core.operations.handling import Cancel
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import GrpcCall
from penstock.gateways.grpc.coordinated import MOVED, RETRY_SECONDS, CoordinatedStream
from penstock.gateways.grpc.errors import topic_not_found
from penstock.gateways.grpc.groups import group_in
from penstock.operations.queues import Consume, Delivery, Lease
from penstock.types import Gateway
from penstock.wire.mq.messages import MessageEncoder, encode_lease
from penstock.wire.mq.mq_generated import SubscribeRequest

_CREDIT: Final = 100
"""Records on their way to a client: enough to keep it busy, few enough to leave some for others."""
_RECORD_OVERHEAD_BYTES: Final = 64
_WAIT_MS: Final = 30_000
"""The longest wait of one Lease operation, which is then repeated."""
_SECONDS_WITHOUT_COORDINATOR_MAX: Final = 15.0


class _Leasing:
    """Common to both kinds."""

    def __init__(self, request: SubscribeRequest, call: GrpcCall, topic: Topic) -> None:
        self._call = call
        self._topic, self._topic_id = topic.name, topic.topic_id
        self._group = group_in(request)
        if request.HasField("replay_offset") or request.HasField("replay_timestamp") or request.partitions:
            raise PenstockError(
                Reason.INVALID_REQUEST,
                "A queue delivers all unfinished records: with lease_ms, remove replay_offset, replay_timestamp and partitions",
            )
        self._lease_ms = lease_ms_of(call, request.lease_ms)
        self.consumer_id: Final = request.consumer_id or f"grpc-{call.broker.entropy.uuid()}"
        self.woken: Final = asyncio.Event()
        self._pending: deque[Delivery] = deque()
        self._encoders: dict[int, MessageEncoder] = {}
        self._flow = call.broker.meters.flow(self._topic, Gateway.GRPC)

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        self._pending.extend(deliveries)
        self.woken.set()

    def _check_topic(self, error: PenstockError | None) -> None:
        is_unknown = error is not None and error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
        if is_unknown or self._call.broker.topics.get_by_id(self._topic_id) is None:
            raise topic_not_found(self._topic)

    def take(self, max_records: int, max_bytes: int) -> list[Delivery]:
        """The next records; if there are none, ``woken`` will be set."""
        taken: list[Delivery] = []
        pending = self._pending
        while pending and len(taken) < max_records and max_bytes > 0:
            delivery = pending.popleft()
            taken.append(delivery)
            max_bytes -= _RECORD_OVERHEAD_BYTES + len(delivery.value or b"") + len(delivery.key or b"")
        return taken

    def message(self, delivery: Delivery) -> bytes:
        """The message for the client."""
        encoder = self._encoders.get(delivery.partition)
        if encoder is None:
            encoder = self._encoders[delivery.partition] = MessageEncoder(
                self._topic, self._topic_id, delivery.partition
            )
        record = encoder.encode(delivery.offset, delivery.timestamp, delivery.key, delivery.value, delivery.headers)
        return record + encode_lease(delivery.attempts, delivery.lease_until_ms, delivery.last_error)

    def sent(self, taken: list[Delivery], size_bytes: int) -> None:
        """The connection accepted these records."""
        self._flow.records_out += len(taken)
        self._flow.bytes_out += size_bytes


class Working(_Leasing):
    """A connected worker."""

    def __init__(self, request: SubscribeRequest, call: GrpcCall, topic: Topic) -> None:
        super().__init__(request, call, topic)
        consume = Consume(
            credit=_CREDIT,
            topic=self._topic,
            group=self._group,
            owner=self.consumer_id,
            lease_ms=self._lease_ms,
            in_flight_max=request.max_in_flight,
            release_on_disconnect=request.release_on_disconnect,
        )
        self._stream = CoordinatedStream(call, consume, self._deliver, self.woken)
        self._has_sent = False

    async def ready(self) -> None:
        """Connect to the queue. A worker that has received records is not moved to another coordinator, which would send them again."""
        error = self._stream.ended
        if error is not None:
            self._check_topic(error)
            if error.reason in MOVED and self._has_sent:
                raise PenstockError(
                    Reason.COORDINATOR_NOT_AVAILABLE,
                    "Another node coordinates the group now, and the stream of this worker has ended. Subscribe again.",
                ) from error
            self._pending.clear()
        await self._stream.ready()

    def sent(self, taken: list[Delivery], size_bytes: int) -> None:
        """Grant as many more."""
        super().sent(taken, size_bytes)
        self._has_sent = True
        self._stream.grant(len(taken))

    def close(self) -> None:
        """No more records are wanted."""
        self._stream.close()


class Polling(_Leasing):
    """Takes a number of records, which stay leased when the stream ends."""

    def __init__(self, request: SubscribeRequest, call: GrpcCall, topic: Topic) -> None:
        super().__init__(request, call, topic)
        self._is_leasing = False
        self._cancel: Cancel | None = None
        self._error: PenstockError | None = None
        self._failing_since: float | None = None

    async def ready(self) -> None:
        """Return at once, or in a moment if there was no coordinator. PenstockError if there is none for too long."""
        error, self._error = self._error, None
        if error is None:
            return
        self._check_topic(error)
        now = self._call.serving.loop.time()
        if self._failing_since is None:
            self._failing_since = now
        if error.reason not in MOVED or now - self._failing_since >= _SECONDS_WITHOUT_COORDINATOR_MAX:
            raise error
        self._call.serving.require_running()
        await asyncio.sleep(RETRY_SECONDS)

    def take(self, max_records: int, max_bytes: int) -> list[Delivery]:
        """The next records; if there are none, ``woken`` will be set. Leases no more than ``max_records``."""
        if not self._pending and not self._is_leasing:
            self._lease(max_records)
        return super().take(max_records, max_bytes)

    def _lease(self, max_records: int) -> None:
        # The answer may be empty because the topic was deleted.
        self._check_topic(None)
        lease = Lease(self._topic, self._group, self.consumer_id, max_records, self._lease_ms, _WAIT_MS)
        self._is_leasing = True
        self._cancel = self._call.broker.begin(lease, self._call.caller, self._answered)

    def _answered(self, found: tuple[Delivery, ...] | PenstockError) -> None:
        self._is_leasing = False
        if isinstance(found, PenstockError):
            self._error = found
            self.woken.set()
        else:
            self._failing_since = None
            self._deliver(found)

    def close(self) -> None:
        """No more records are wanted."""
        if self._cancel is not None:
            self._cancel()


def leasing(request: SubscribeRequest, call: GrpcCall, topic: Topic) -> Working | Polling:
    """A subscription that works a queue."""
    return (Polling if request.max_messages else Working)(request, call, topic)


def lease_ms_of(call: GrpcCall, lease_ms: int) -> int:
    """The duration of a lease; INVALID_REQUEST if it is out of range."""
    longest_ms = call.broker.queues.settings.lease_ms_max
    if not 0 < lease_ms <= longest_ms:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"lease_ms is {lease_ms}; a lease lasts 1 to {longest_ms} milliseconds. Extend it later.",
        )
    return lease_ms
