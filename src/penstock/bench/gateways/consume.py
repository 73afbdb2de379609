"""Rows that read records which are there already: gRPC's SubscribeBatch."""

from __future__ import annotations

import time

from penstock.address import Address
from penstock.bench import batches
from penstock.bench.admin import connect
from penstock.bench.faults import BenchError
from penstock.bench.gateways import proto
from penstock.bench.gateways.context import Context
from penstock.bench.gateways.conversation import Channel, ConversationPump
from penstock.bench.gateways.http2 import Http2Client
from penstock.bench.histogram import Histogram
from penstock.bench.preload import preload
from penstock.bench.rows import Meter, Row

BATCH_BYTES = 64 << 10
_STREAMS = 2
_RECORDS_MAX = 500_000
MARK = b"\xfe\xff~~\xff\xfe"
"""Ends every value, and cannot be part of anything else in a frame: records are counted by it."""


class BatchSubscription:
    """Reads a topic from its beginning to its end, over and over."""

    def __init__(self, address: Address, topic: str, records: int) -> None:
        self._client = Http2Client("SubscribeBatch", address, self._take_data)
        self._request = proto.subscribe_request(topic, records_max=records)
        self._records = records
        self._tail = b""
        self._count = 0
        self._seen = 0
        self.channels = [Channel(connect(address), self._client.outbox)]
        self.is_over = False

    def begin(self, now_ns: int) -> None:  # noqa: ARG002  no request is timed
        self._client.call(self._request)

    def _take_data(self, data: bytes) -> None:
        text = self._tail + data
        self._count += text.count(MARK)
        # Shorter than the mark, so that none is counted twice.
        self._tail = text[-(len(MARK) - 1) :]

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: Histogram) -> int:  # noqa: ARG002  no request is timed
        self._client.receive(data)
        count, self._count = self._count, 0
        self._seen += count
        if self._client.ended:
            if self._seen != self._records:
                raise BenchError(
                    f"a subscription to {self._records} records ended after {self._seen}: see the broker's log"
                )
            self._client.ended = []
            self._seen = 0
            self._client.call(self._request)
        return count


def grpc_subscribe_batch(context: Context) -> Row:
    """SubscribeBatch without a group, from the beginning."""
    options = context.options
    value = b"v" * max(1, options.value_bytes - len(MARK)) + MARK
    batch, records = batches.batch_filling(BATCH_BYTES, value, int(time.time() * 1000))
    count = max(1, min(_RECORDS_MAX, context.requests_max()) // records // context.topic.partitions)
    preload(context.admin, context.topic, batch, count)
    stored = count * records * context.topic.partitions
    connections = options.connections or _STREAMS
    pump = ConversationPump([BatchSubscription(context.grpc, context.topic.name, stored) for _ in range(connections)])
    meter = Meter(context.pid)
    try:
        pump.run(options.warmup_s, 1 << 62)
        meter.start()
        sample = pump.run(options.seconds, 1 << 62)
        return context.row(meter, records=sample.answers)
    finally:
        pump.close()
