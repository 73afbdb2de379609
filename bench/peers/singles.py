"""The rows that a system without the Kafka protocol can run too: single records, in the same shapes and by the same loops."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.peers.base import Peer
from penstock.bench.delivery import Stamper, Tap, measure_delivery
from penstock.bench.frames import Acks
from penstock.bench.ping import PingLane, PingPump
from penstock.bench.raw_client import Counter, Lane, Pump, RingSource
from penstock.bench.rows import Meter, Row
from penstock.bench.run import Case
from penstock.bench.workloads import DELIVERY_RATE_PER_S, Kind, Options


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
    def stamper(self, value_bytes: int) -> Stamper:
        """Makes such requests for the delivery row."""

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
        if case.acks is not Acks.ALL or workload.batch_bytes or workload.kind not in (Kind.PRODUCE, Kind.DELIVERY):
            return None
        with self.fresh_stream():
            if workload.kind is Kind.DELIVERY:
                return self._delivery(case, options)
            return self._produce(case, options)

    def _produce(self, case: Case, options: Options) -> Row:
        workload = case.workload
        value = b"v" * options.value_bytes
        pump: Pump | PingPump
        numbers = range(workload.connections)
        if workload.window == 1:
            pump = PingPump([PingLane(self.connect(n), self.frame(n, value), self.counter()) for n in numbers])
        else:
            rings = [RingSource([self.frame(n, value)] * workload.window) for n in numbers]
            pump = Pump([Lane(self.connect(n), rings[n], self.counter(), workload.window) for n in numbers])
        meter = Meter(self.pid)
        requests_max = max(4, min(options.records_max, options.bytes_max // options.value_bytes))
        try:
            pump.run(options.warmup_s, requests_max // 4)
            meter.start()
            sample = pump.run(options.seconds, requests_max - requests_max // 4)
            row = meter.row(
                workload=workload.name,
                acks=Acks.ALL.label,
                records=sample.answers,
                value_bytes=options.value_bytes,
                requests=sample.answers,
                latency_ns=sample.latency_ns,
            )
            pump.drain()
        finally:
            pump.close()
        return row

    def _delivery(self, case: Case, options: Options) -> Row:
        meter = Meter(self.pid)
        value_bytes = max(8, options.value_bytes)
        with ExitStack() as stack:
            out, inward = (stack.enter_context(self.connect(number)) for number in range(2))
            latency_ns = measure_delivery(
                out=out,
                stamper=self.stamper(value_bytes),
                answers=self.counter(),
                inward=inward,
                tap=self.tap(inward),
                rate_per_s=DELIVERY_RATE_PER_S,
                warmup_s=options.warmup_s,
                seconds=options.seconds,
                on_start=meter.start,
            )
            return meter.row(
                workload=case.workload.name,
                acks=Acks.ALL.label,
                records=latency_ns.count,
                value_bytes=value_bytes,
                requests=latency_ns.count,
                latency_ns=latency_ns,
            )
