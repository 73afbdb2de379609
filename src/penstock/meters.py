"""What a node counts about itself. Whoever does the work adds here; ``observe/metrics.py`` turns it into Prometheus' text.

Plain numbers and no dependency, so that any layer may count. A call is made per batch or per request, never per record, and
costs less than a microsecond. Memory is bounded: a label set past the limit counts as ``other``, and so does a label of free
text past its own; a deleted topic or group takes its numbers with it. Everything is called on the event loop's thread.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.types import Gateway

OTHER: Final = "other"
LABEL_CHARS_MAX: Final = 249
"""As long as the name of a topic or a group may be."""
FREE_CHARS_MAX: Final = 64
"""Of a label that is a client's own text, such as the reason of a nack."""
FREE_VALUES_MAX: Final = 20
"""Different texts for one topic and group; a worker that puts a message's id into its reason gets to this many series."""
LABEL_SETS_MAX: Final = 20_000
"""Some hundred bytes each."""
LATENCIES_MAX: Final = 500

REQUEST_SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""From an append to memory up to a long poll."""
SYNC_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""From a disk with its own memory up to one that is about to fail."""

SAMPLE_MS: Final = 10_000
"""How often flows are noted for rates; see :meth:`Meters.tick`."""
SAMPLES_KEPT: Final = 7
"""The first and the last are a minute apart."""

Labels = tuple[str, ...]


class Counts:
    """A counter with labels. With ``free_text`` the last label is a client's own words: short, and few of them."""

    __slots__ = ("_by_first", "_counts", "_free_text", "names", "sets_max")

    def __init__(self, *names: str, free_text: bool = False, sets_max: int = LABEL_SETS_MAX) -> None:
        assert len(names) > free_text, "a client's own words are about something"
        self.names: Final = names
        self.sets_max: Final = sets_max
        self._free_text = free_text
        self._counts: dict[Labels, int] = {}
        # The first label is nearly always a topic: when it is deleted, its label sets are found without a look at all others.
        self._by_first: dict[str, list[Labels]] = {}

    def add(self, labels: Labels, count: int = 1) -> None:
        """``labels`` are the values of ``names``, in their order."""
        try:
            self._counts[labels] += count
        except KeyError:
            labels = self._admit(labels)
            self._counts[labels] = self._counts.get(labels, 0) + count

    def _admit(self, labels: Labels) -> Labels:
        """What stands for a label set that was not seen before, or never will be seen as it is."""
        if len(labels) != len(self.names):
            raise ValueError(f"{len(labels)} labels for {self.names}")
        # A lone surrogate, which JSON can bring, cannot be written out.
        labels = tuple(label[:LABEL_CHARS_MAX].encode("utf-8", "replace").decode() for label in labels)
        if self._free_text:
            labels = (*labels[:-1], labels[-1][:FREE_CHARS_MAX])
        if labels in self._counts:
            return labels
        if self._free_text and self._texts_of(labels[:-1]) >= FREE_VALUES_MAX:
            labels = (*labels[:-1], OTHER)
            if labels in self._counts:
                return labels
        if len(self._counts) >= self.sets_max:
            labels = (OTHER,) * len(self.names)
            if labels in self._counts:
                return labels
        self._by_first.setdefault(labels[0], []).append(labels)
        return labels

    def _texts_of(self, subject: Labels) -> int:
        return sum(labels[:-1] == subject for labels in self._by_first.get(subject[0], ()))

    def get(self, labels: Labels) -> int:
        """The count of one label set."""
        return self._counts.get(labels, 0)

    @property
    def total(self) -> int:
        """Of all label sets."""
        return sum(self._counts.values())

    def items(self) -> Iterator[tuple[Labels, int]]:
        """All label sets with their counts."""
        return iter(list(self._counts.items()))

    def __len__(self) -> int:
        return len(self._counts)

    def forget(self, name: str, value: str) -> None:
        """Drop the label sets in which ``name`` has this value; nothing when there is no such label."""
        if name not in self.names:
            return
        at = self.names.index(name)
        among = self._by_first.get(value, ()) if at == 0 else self._counts
        for labels in [labels for labels in among if labels[at] == value]:
            del self._counts[labels]
            same = self._by_first[labels[0]]
            same.remove(labels)
            if not same:
                del self._by_first[labels[0]]


class Histogram:
    """How long something took, in fixed buckets."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: Final = bounds
        """The upper end of each bucket, itself included; behind them one without end."""
        self.counts: Final = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """``count`` times it took so long."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.sum += seconds * count

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """How many took at most as long as each bound, and at last all."""
        return list(accumulate(self.counts))


class Sample(NamedTuple):
    """The totals of a flow at a time."""

    at_ms: int
    records_in: int
    bytes_in: int
    records_out: int
    bytes_out: int


class Flow:
    """What went into and out of one topic through one gateway. A gateway that is in a hurry keeps it and adds to its numbers."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out", "samples")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.records_out = 0
        self.bytes_out = 0
        self.samples: Final[deque[Sample]] = deque(maxlen=SAMPLES_KEPT)

    def totals(self, at_ms: int) -> Sample:
        """What it has come to."""
        return Sample(at_ms, self.records_in, self.bytes_in, self.records_out, self.bytes_out)


class Meters:
    """All meters of a node. Attributes are what Prometheus shows; the methods are how gateways add to the common ones."""

    def __init__(self) -> None:
        self.request_seconds: Final[dict[tuple[str, str], Histogram]] = {}
        """By gateway and API (a Kafka API, an HTTP route, a TCP type, an RPC)."""
        self.request_errors: Final = Counts("gateway", "reason")
        self.operations: Final = Counts("operation", "gateway")
        self.connections: Final[dict[str, Callable[[], int]]] = {}
        """By gateway: asked when somebody wants to know."""
        self.connections_refused: Final = Counts("gateway")
        self.sync_seconds: Final = Histogram(SYNC_SECONDS)
        """One fdatasync, with everything that one sync of a log takes."""
        self.sync_errors = 0

        # Queues.
        self.leases: Final = Counts("topic", "group")
        """Deliveries, the first of a record and all later ones."""
        self.acks: Final = Counts("topic", "group")
        self.nacks: Final = Counts("topic", "group", "reason", free_text=True)
        self.lease_timeouts: Final = Counts("topic", "group")
        self.redeliveries: Final = Counts("topic", "group")
        self.dead_letters: Final = Counts("topic", "reason", free_text=True)
        """By the topic that the record came from."""
        self.redriven: Final = Counts("topic")
        """Dead letters sent back to their topic."""
        self.deadline_exceeded: Final = Counts("topic", "group")
        self.duplicates_skipped: Final = Counts("topic", "group")
        """Records of an idempotency key that the group has already finished."""
        self.produce_duplicates: Final = Counts("topic")
        """Produces of an idempotency key that had its place already."""
        self.produce_rejected: Final = Counts("reason")

        # Exactly-once sinks.
        self.sink_commits: Final = Counts("result")
        """Committed, already (the batch was there before), refused."""
        self.sink_records = 0
        """Records that commits appended."""

        # A node of a cluster.
        self.leaderships_begun = 0
        """How often this node was named to lead a partition, and began to."""
        self.leaderships_ended = 0
        self.in_sync_shrinks = 0
        """Of partitions that are led here."""
        self.in_sync_expands = 0
        self.replicated_in_bytes = 0
        """Copied from other nodes."""
        self.replicated_out_bytes = 0

        self._flows: dict[tuple[str, str], Flow] = {}
        self._sampled_ms: int | None = None

    def flow(self, topic: str, gateway: Gateway) -> Flow:
        """The flow to add to. Past the limit it is the one of all ``other`` topics.

        Whoever keeps it must ask again when topics change (``broker.topics_version``): a deleted topic's flow is shown no more.
        """
        key = (topic, gateway.value)
        flow = self._flows.get(key)
        if flow is None:
            if len(self._flows) >= LABEL_SETS_MAX:
                key = (OTHER, gateway.value)
                if (flow := self._flows.get(key)) is not None:
                    return flow
            flow = self._flows[key] = Flow()
            if self._sampled_ms is not None:
                # Nothing had gone through it by then.
                flow.samples.append(Sample(self._sampled_ms, 0, 0, 0, 0))
        return flow

    def known_flow(self, topic: str, gateway: Gateway) -> Flow | None:
        """The flow of a topic, if anything went through it."""
        return self._flows.get((topic, gateway.value))

    def took_in(self, topic: str, gateway: Gateway, records: int, size: int) -> None:
        """A batch was appended; ``size`` in bytes as it lies in the log."""
        flow = self.flow(topic, gateway)
        flow.records_in += records
        flow.bytes_in += size

    def gave_out(self, topic: str, gateway: Gateway, records: int, size: int) -> None:
        """Records were delivered to a reader or a worker."""
        flow = self.flow(topic, gateway)
        flow.records_out += records
        flow.bytes_out += size

    def flows(self) -> Iterator[tuple[tuple[str, str], Flow]]:
        """By topic and gateway."""
        return iter(list(self._flows.items()))

    def latency(self, gateway: Gateway, api: str) -> Histogram:
        """The histogram to observe in. APIs are the gateway's own names; a client's text must not become one."""
        key = (gateway.value, api)
        found = self.request_seconds.get(key)
        if found is None:
            if len(self.request_seconds) >= LATENCIES_MAX:
                key = (gateway.value, OTHER)
                if (found := self.request_seconds.get(key)) is not None:
                    return found
            found = self.request_seconds[key] = Histogram(REQUEST_SECONDS)
        return found

    def synced(self, seconds: float, failed: bool) -> None:
        """A sync of a log has ended."""
        if failed:
            self.sync_errors += 1
        else:
            self.sync_seconds.observe(seconds)

    def next_deadline_ms(self) -> int:
        """When :meth:`tick` is due."""
        return 0 if self._sampled_ms is None else self._sampled_ms + SAMPLE_MS

    def tick(self, now_ms: int) -> None:
        """Note the totals for :meth:`rates`."""
        self._sampled_ms = now_ms
        for flow in self._flows.values():
            flow.samples.append(flow.totals(now_ms))

    def rates(self, topic: str, monotonic_ms: int) -> tuple[float, float, float, float]:
        """Records in, bytes in, records out and bytes out a second, through all gateways, over the last minute or what there is of it."""
        rates = [0.0, 0.0, 0.0, 0.0]
        for gateway in Gateway:
            flow = self._flows.get((topic, gateway.value))
            if flow is None or not flow.samples:
                continue
            first, now = flow.samples[0], flow.totals(monotonic_ms)
            seconds = max(now.at_ms - first.at_ms, 1000) / 1000
            for at in range(4):
                rates[at] += (now[at + 1] - first[at + 1]) / seconds
        return rates[0], rates[1], rates[2], rates[3]

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted: its numbers go."""
        for gateway in Gateway:
            self._flows.pop((topic, gateway.value), None)
        self._forget("topic", topic)

    def forget_group(self, group: str) -> None:
        """A group is deleted: its numbers go."""
        self._forget("group", group)

    def _forget(self, name: str, value: str) -> None:
        for counts in vars(self).values():
            if isinstance(counts, Counts):
                counts.forget(name, value)
