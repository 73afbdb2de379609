"""The metrics of a node. All layers add to them; ``observe/metrics.py`` exports them in Prometheus' text format.

Plain numbers without dependencies, so that any layer can count. A call is made per batch or per request, never per record, and
takes less than a microsecond. Memory is bounded: label sets above the limit count as ``other``, and so do free texts above
theirs; the metrics of a deleted topic or group are removed. Everything is called on the event loop's thread.
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
"""Of a label with a client's text, such as the reason of a nack."""
FREE_VALUES_MAX: Final = 20
"""Different texts for one topic and group, in case workers put record ids into their reasons."""
LABEL_SETS_MAX: Final = 20_000
"""Some hundred bytes each."""
LATENCIES_MAX: Final = 500
THROTTLED_SETS_MAX: Final = 2_000
"""Users and client ids that were slowed down by a quota."""

SYNC_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""From a disk with a write cache up to one that is about to fail."""
REQUEST_SECONDS: Final = (*SYNC_SECONDS, 5.0, 10.0)
"""From an append in memory up to a long poll."""

SAMPLE_MS: Final = 10_000
"""How often the totals of flows are sampled for rates; see :meth:`Meters.tick`."""
SAMPLES_KEPT: Final = 7
"""The first and the last are one minute apart."""

Labels = tuple[str, ...]


class Counts:
    """A counter with labels. With ``free_text`` the last label is a client's text, of which short and few ones are kept."""

    __slots__ = ("_by_first", "_counts", "_free_text", "names", "sets_max")

    def __init__(self, *names: str, free_text: bool = False, sets_max: int = LABEL_SETS_MAX) -> None:
        assert len(names) > free_text, "a client's text needs another label"
        self.names: Final = names
        self.sets_max: Final = sets_max
        self._free_text = free_text
        self._counts: dict[Labels, int] = {}
        # The first label is nearly always a topic: when it is deleted, its label sets are found without a full scan.
        self._by_first: dict[str, list[Labels]] = {}

    def add(self, labels: Labels, count: int = 1) -> None:
        """``labels`` are the values of ``names``, in their order."""
        try:
            self._counts[labels] += count
        except KeyError:
            labels = self._admit(labels)
            self._counts[labels] = self._counts.get(labels, 0) + count

    def _admit(self, labels: Labels) -> Labels:
        """The label set to count: truncated and printable, and ``other`` above a limit."""
        if len(labels) != len(self.names):
            raise ValueError(f"{len(labels)} labels for {self.names}")
        # A lone surrogate, which JSON can contain, cannot be encoded.
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
        """The sum of all label sets."""
        return sum(self._counts.values())

    def items(self) -> Iterator[tuple[Labels, int]]:
        """All label sets with their counts."""
        return iter(list(self._counts.items()))

    def __len__(self) -> int:
        return len(self._counts)

    def forget(self, name: str, value: str) -> None:
        """Drop the label sets in which ``name`` has this value, if there is such a label."""
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
    """Durations in fixed buckets."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: Final = bounds
        """The upper end of each bucket, inclusive; after them there is one without end."""
        self.counts: Final = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add this duration ``count`` times."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.sum += seconds * count

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """The number of observations up to each bound, and finally all."""
        return list(accumulate(self.counts))


class FlowTotals(NamedTuple):
    """The totals of a flow at a time."""

    at_ms: int
    records_in: int
    bytes_in: int
    records_out: int
    bytes_out: int


class Flow:
    """The records and bytes into and out of one topic through one gateway. Fast paths keep it and add to its fields."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out", "samples")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.records_out = 0
        self.bytes_out = 0
        self.samples: Final[deque[FlowTotals]] = deque(maxlen=SAMPLES_KEPT)

    def totals(self, at_ms: int) -> FlowTotals:
        """The totals so far."""
        return FlowTotals(at_ms, self.records_in, self.bytes_in, self.records_out, self.bytes_out)


class Meters:
    """All metrics of a node. The attributes are exported; the methods add to the common ones."""

    def __init__(self) -> None:
        self.request_seconds: Final[dict[tuple[str, str], Histogram]] = {}
        """By gateway and API (a Kafka API, an HTTP route, a TCP type, an RPC)."""
        self.request_errors: Final = Counts("gateway", "reason")
        self.operations: Final = Counts("operation", "gateway")
        self.connections: Final[dict[str, Callable[[], int]]] = {}
        """By gateway: returns the current number."""
        self.connections_refused: Final = Counts("gateway")
        self.authentication_failures: Final = Counts("method", "reason")
        self.connections_failed = Counts("listener", "reason")
        """Connections that did not get in: failed TLS handshakes, and clients that speak the wrong protocol."""
        self.is_insecure = False
        """Whether listeners off loopback need no authentication."""
        self.sync_seconds: Final = Histogram(SYNC_SECONDS)
        """One sync of a log, including its fdatasync calls."""
        self.sync_errors = 0

        # Queues.
        self.leases: Final = Counts("topic", "group")
        """Deliveries, including repeated ones."""
        self.acks: Final = Counts("topic", "group")
        self.nacks: Final = Counts("topic", "group", "reason", free_text=True)
        self.lease_timeouts: Final = Counts("topic", "group")
        self.redeliveries: Final = Counts("topic", "group")
        self.dead_letters: Final = Counts("topic", "reason", free_text=True)
        """By the topic that the record came from."""
        self.redriven: Final = Counts("topic")
        """Dead letters that were sent back to their topic."""
        self.deadline_exceeded: Final = Counts("topic", "group")
        self.duplicates_skipped: Final = Counts("topic", "group")
        """Records with an idempotency key that the group has already finished."""
        self.produce_duplicates: Final = Counts("topic")
        """Produces with an idempotency key that was already stored."""
        self.produce_rejected: Final = Counts("reason")

        # Exactly-once sinks.
        self.sink_commits: Final = Counts("result")
        """Committed, already (the batch had been committed before), refused."""
        self.sink_records = 0
        """Records appended by commits."""

        # Quotas.
        self.throttled_ms: Final = Counts("quota", "user", "client_id", free_text=True, sets_max=THROTTLED_SETS_MAX)
        """How long clients were slowed down."""
        self.quota_refused: Final = Counts("quota")
        """Requests that were refused because their client was too far over a quota."""

        self.audit_lost: Final = Counts("output")
        """Records of the audit log that were not written."""

        # A node of a cluster.
        self.leaderships_begun = 0
        """How often this node became the leader of a partition."""
        self.leaderships_ended = 0
        self.in_sync_shrinks = 0
        """Of partitions that this node leads."""
        self.in_sync_expands = 0
        self.replicated_in_bytes = 0
        """Copied from other nodes."""
        self.replicated_out_bytes = 0

        self._flows: dict[tuple[str, str], Flow] = {}
        self._sampled_ms: int | None = None

    def flow(self, topic: str, gateway: Gateway) -> Flow:
        """The flow to add to; above the limit the one of all ``other`` topics.

        Code that keeps it must call this again when topics change (``broker.topics_version``): a deleted topic's flow is not
        exported any more.
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
                flow.samples.append(FlowTotals(self._sampled_ms, 0, 0, 0, 0))
        return flow

    def known_flow(self, topic: str, gateway: Gateway) -> Flow | None:
        """The flow of a topic, if it has had any records."""
        return self._flows.get((topic, gateway.value))

    def took_in(self, topic: str, gateway: Gateway, records: int, size: int) -> None:
        """A batch was appended; ``size`` in bytes as stored in the log."""
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
        """The histogram to observe in. ``api`` must be a name of the gateway, not a client's text."""
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
        """Sample the totals for :meth:`rates`."""
        self._sampled_ms = now_ms
        for flow in self._flows.values():
            flow.samples.append(flow.totals(now_ms))

    def rates(self, topic: str, monotonic_ms: int) -> tuple[float, float, float, float]:
        """Records in, bytes in, records out and bytes out per second, through all gateways, over at most the last minute."""
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
        """Remove the metrics of a deleted topic."""
        for gateway in Gateway:
            self._flows.pop((topic, gateway.value), None)
        self._forget("topic", topic)

    def forget_group(self, group: str) -> None:
        """Remove the metrics of a deleted group."""
        self._forget("group", group)

    def _forget(self, name: str, value: str) -> None:
        for counts in vars(self).values():
            if isinstance(counts, Counts):
                counts.forget(name, value)
