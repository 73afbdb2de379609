"""The rows that a system without the Kafka protocol can run too: single records, in the same shapes and by the same loops."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.peers.base import Peer
from penstock.bench.context import Case, Options, WorkloadKind
from penstock.bench.delivery import Tap, TextStamper, blank_value, measure_delivery
from penstock.bench.histogram import LatencyHistogram
from penstock.bench.pump import Counter, Lane, Pump, RingSource
from penstock.bench.rows import Meter, Row


class SinglesPeer(Peer):
    """A peer that takes one record a request."""

    @abstractmethod
    def connect(self, connection: int) -> socket.socket:
        """A connection ready to publish; `connection` numbers it within a row."""

    @abstractmethod
    def frame(self, connection: int, value: bytes) -> bytes:
        """A request that stores `value`."""

    @abstractmethod
    def counter(self) -> Counter:
        """Counts the answers to it."""

    @abstractmethod
    def tap(self, sock: socket.socket) -> Tap:
        """Starts to consume on a connection."""

    @abstractmethod
    @contextmanager
    def fresh_stream(self) -> Iterator[None]:
        """An empty stream for one row, removed afterwards."""
        yield

    def run(self, case: Case, options: Options) -> Row | None:
        """Single-record rows; there is one kind of acknowledgement, so each is run once, for acks=all."""
        workload = case.workload
        if (
            case.acks != "all"
            or workload.batch_bytes
            or workload.kind not in (WorkloadKind.PRODUCE, WorkloadKind.DELIVERY)
        ):
            return None
        meter = Meter(self.pid)
        with self.fresh_stream():
            if workload.kind is WorkloadKind.DELIVERY:
                latency_ns = self.deliver(meter, options)
            else:
                latency_ns = self.produce(meter, options, workload.connections, workload.window)
            return meter.row(
                workload=workload.name,
                acks=case.acks,
                records=latency_ns.count,
                value_bytes=options.value_bytes,
                requests=latency_ns.count,
                latency_ns=latency_ns,
            )

    def produce(self, meter: Meter, options: Options, connections: int, window: int) -> LatencyHistogram:
        """One record per request, `window` of them in flight on each connection."""
        value = b"v" * options.value_bytes
        lanes = [
            Lane(self.connect(n), RingSource([self.frame(n, value)] * window), self.counter(), window)
            for n in range(connections)
        ]
        requests_max = options.requests_max()
        with Pump(lanes) as pump:
            pump.run(options.warmup_s, requests_max // 4)
            meter.start()
            return pump.run(options.seconds, requests_max - requests_max // 4).latency_ns

    def deliver(self, meter: Meter, options: Options) -> LatencyHistogram:
        """Records at a steady rate to a live consumer."""
        with ExitStack() as stack:
            out, inward = (stack.enter_context(self.connect(number)) for number in range(2))
            return measure_delivery(
                (out, TextStamper(self.frame(0, blank_value(options.value_bytes))), self.counter()),
                (inward, self.tap(inward)),
                warmup_s=options.warmup_s,
                seconds=options.seconds,
                on_start=meter.start,
            )
