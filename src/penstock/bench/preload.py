"""Records that are in a topic before the clock starts."""

from __future__ import annotations

from penstock.bench import frames
from penstock.bench.admin import Admin, Topic, connect
from penstock.bench.faults import BenchError
from penstock.bench.frames import PRODUCE_VERSIONS, Acks, Api
from penstock.bench.raw_client import Lane, ProduceCounter, Pump, RingSource, ring_length

_SECONDS_MAX = 120.0
_WINDOW = 4


def produce_lane(admin: Admin, topic: Topic, partition: int, acks: Acks, batch: bytes, window: int) -> Lane:
    """A connection to the partition's leader that sends one batch over and over."""
    version = admin.version_of(Api.PRODUCE, PRODUCE_VERSIONS)
    frame_bytes = len(frames.produce_request(version, 0, topic.name, partition, acks, batch))
    ring = ring_length(frame_bytes, window)
    source = RingSource([frames.produce_request(version, i, topic.name, partition, acks, batch) for i in range(ring)])
    counter = ProduceCounter(frames.produce_answer(version, topic.name), ring)
    return Lane(connect(topic.leaders[partition]), source, counter, window)


def preload(admin: Admin, topic: Topic, batch: bytes, count: int) -> None:
    """Put `count` equal batches into every partition; with acks=all, so that everyone may read them when this returns."""
    for partition in range(topic.partitions):
        pump = Pump([produce_lane(admin, topic, partition, Acks.ALL, batch, _WINDOW)])
        try:
            stored = pump.run(_SECONDS_MAX, count).answers
            if stored != count:
                raise BenchError(f"only {stored} of {count} batches could be stored before a row in two minutes")
        finally:
            pump.close()
