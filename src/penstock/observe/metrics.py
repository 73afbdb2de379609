"""The metrics of a node for Prometheus: ``declared.py`` declares them, and :class:`BrokerCollector` reads their values for each scrape.

The work of a scrape is limited: each metric has at most ``SERIES_MAX`` series (the number of omitted series is itself a metric), no log
is opened, and at most ``TIMES_READ_MAX`` timestamps are read from disk and then cached, since the time of a record does not change.
``docs/observability.md`` has the table of all metrics; a test keeps the two equal.
"""

import asyncio
import contextlib
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from time import perf_counter
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.core.broker import Broker
from penstock.core.groups.requests import CommittedOffset
from penstock.core.partitions.partition import Partition
from penstock.core.stats import lag_of, next_unread
from penstock.errors import PenstockError
from penstock.meters import Counts, Histogram
from penstock.observe.cluster_numbers import numbers_of
from penstock.observe.declared import METRICS, MetricKind
from penstock.operations.groups import GroupState
from penstock.operations.queues import PartitionStatus
from penstock.types import NO_TIMESTAMP, GroupId, PartitionKey

SERIES_MAX: Final = 2000
"""For one metric: ten bytes of memory in the broker become a kilobyte in Prometheus."""
STEP: Final = 1000
"""Partitions, offsets or topics that are read before the event loop runs again."""
TIMES_READ_MAX: Final = 500
"""Timestamps read from disk for one scrape."""
TIMES_KEPT_MAX: Final = 20_000


_BY_NAME: Final = {metric.name: metric for metric in METRICS}
_TOTAL: Final = "_total"
_QUEUE_STATES: Final = ("leased", "waiting", "ready", "moving")

Problem = Callable[[], str | None]
"""Returns why the metadata store of the cluster cannot be reached, or None if it can."""
Series = Iterable[tuple[tuple[str, ...], float]]


def _no_problem() -> None:
    """The store of a broker that runs alone can always be reached."""


class _Lags:
    """The lags of all groups."""

    def __init__(self) -> None:
        self.by_partition: list[tuple[tuple[str, ...], float]] = []
        self.records: dict[tuple[str, ...], float] = {}
        self.seconds: dict[tuple[str, ...], float] = {}
        self.left_out = 0


class BrokerCollector(Collector):
    """The custom collector of one node. Everything is called on the event loop."""

    def __init__(self, broker: Broker, problem: Problem = _no_problem) -> None:
        self._broker = broker
        self._problem = problem
        self._process = ProcessCollector(registry=None)
        self._left_out: dict[str, int] = {}
        self._times: dict[tuple[str, str, int], tuple[int, int | None]] = {}
        """By group and partition: the next unread offset and the time of its record."""

    def collect(self) -> Iterator[Family]:
        """All metrics."""
        return (family for family in self.steps() if family is not None)

    def steps(self) -> Iterator[Family | None]:
        """All metrics, with None after each long step, where the caller can let the event loop run."""
        began = perf_counter()
        self._left_out = {}
        yield from self._flows()
        yield from self._partitions()
        yield from self._groups()
        yield from self._queues()
        yield from self._requests()
        yield from self._cluster()
        yield from self._node()
        yield from self._process.collect()
        left_out = [((name,), count) for name, count in self._left_out.items()]
        yield self._simple("penstock_series_left_out", left_out, len(METRICS))
        yield self._simple("penstock_scrape_seconds", [((), perf_counter() - began)])

    def _simple(self, name: str, series: Series, series_max: int | None = None) -> Family:
        if series_max is None:
            series_max = SERIES_MAX
        metric = _BY_NAME[name]
        family: CounterMetricFamily | GaugeMetricFamily
        if metric.kind is MetricKind.COUNTER:
            family = CounterMetricFamily(name.removesuffix(_TOTAL), metric.help, labels=metric.labels)
        else:
            family = GaugeMetricFamily(name, metric.help, labels=metric.labels)
        count = 0
        for labels, value in series:
            count += 1
            if count <= series_max:
                family.add_metric(labels, value)
        self._leave_out(name, count - series_max)
        return family

    def _leave_out(self, name: str, count: int) -> None:
        if count > 0:
            self._left_out[name] = self._left_out.get(name, 0) + count

    @staticmethod
    def _histogram(name: str, series: Iterable[tuple[tuple[str, ...], Histogram]]) -> Family:
        metric = _BY_NAME[name]
        family = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        for labels, histogram in series:
            bounds = [*map(str, histogram.bounds), "+Inf"]
            family.add_metric(labels, list(zip(bounds, histogram.cumulative(), strict=True)), histogram.sum)
        return family

    def _counts(self, name: str, counts: Counts) -> Family:
        assert counts.names == _BY_NAME[name].labels
        self._leave_out(name, len(counts) - SERIES_MAX)
        return self._simple(name, islice(counts.items(), SERIES_MAX))

    # Topics.

    def _flows(self) -> Iterator[Family | None]:
        found: dict[str, list[tuple[tuple[str, ...], float]]] = {
            "penstock_records_in_total": [],
            "penstock_bytes_in_total": [],
            "penstock_records_out_total": [],
            "penstock_bytes_out_total": [],
        }
        for at, (key, flow) in enumerate(self._broker.meters.flows()):
            if at % STEP == 0:
                yield None
            totals = (flow.records_in, flow.bytes_in, flow.records_out, flow.bytes_out)
            for (name, series), total in zip(found.items(), totals, strict=True):
                # Most flows have one direction, and the other would be a series of zeros.
                if total:
                    if len(series) < SERIES_MAX:
                        series.append((key, total))
                    else:
                        self._leave_out(name, 1)
        for name, series in found.items():
            yield self._simple(name, series)

    def _partitions(self) -> Iterator[Family | None]:
        broker = self._broker
        sizes: dict[str, int] = {}
        opened = failed = unsized = 0
        for partition in broker.open_partitions():
            if opened % STEP == 0:
                yield None
            opened += 1
            failed += partition.log.failed is not None
            name = partition.topic.name
            if name in sizes or len(sizes) < SERIES_MAX:
                sizes[name] = sizes.get(name, 0) + partition.log.size_bytes
            else:
                unsized += 1
        yield self._simple("penstock_log_bytes", (((name,), size) for name, size in sizes.items()))
        self._leave_out("penstock_log_bytes", unsized)
        yield self._simple("penstock_topics", [((), len(broker.topics))])
        yield self._simple("penstock_partitions", [((), broker.topics.partition_count)])
        yield self._simple("penstock_partitions_opened", [((), opened)])
        yield self._simple("penstock_partitions_failed", [((), failed)])

    # Groups.

    def _groups(self) -> Iterator[Family | None]:
        try:
            groups = self._broker.groups.list_groups()
        except PenstockError:
            # Groups are being loaded, and the numbers of some of them would be misleading.
            return
        states = dict.fromkeys(GroupState, 0)
        for group in groups:
            states[group.state] += 1
        yield self._simple("penstock_groups", (((state.value,), count) for state, count in states.items()))
        lags = _Lags()
        yield from self._walk([group.group_id for group in groups], lags)
        for name, series in (
            ("consumer_lag", lags.by_partition),
            ("penstock_group_lag_records", lags.records.items()),
            ("penstock_group_lag_seconds", lags.seconds.items()),
        ):
            yield self._simple(name, series)
            self._leave_out(name, lags.left_out)

    def _walk(self, groups: list[GroupId], lags: _Lags) -> Iterator[None]:
        """The lag of each group, within the limit on series."""
        # The lag of a queue takes account of records that are finished above its floor.
        queues = {
            (group, PartitionKey(topic, status.partition)): status
            for topic, group, status in self._broker.queues.opened()
        }
        reads_left = TIMES_READ_MAX
        kept: dict[tuple[str, str, int], tuple[int, int | None]] = {}
        for at, (group, key, committed) in enumerate(self._positions(groups, queues, lags)):
            if at % STEP == 0:
                yield
            partition = self._broker.opened(*key)
            if partition is None:
                # It was not used since the start, and is not opened only for a metric.
                continue
            queue = queues.get((group, key))
            lag = lag_of(partition, committed) if queue is None else queue.lag
            lags.by_partition.append(((key.topic, group, str(key.partition)), lag))
            subject = (key.topic, group)
            lags.records[subject] = lags.records.get(subject, 0) + lag
            age, reads_left = self._age(group, key, partition, committed, kept, reads_left)
            if age is not None:
                lags.seconds[subject] = max(lags.seconds.get(subject, 0.0), age)
        # Deleted groups and partitions are not in it.
        self._times = kept

    def _positions(
        self, groups: list[GroupId], queues: Mapping[tuple[GroupId, PartitionKey], PartitionStatus], lags: _Lags
    ) -> Iterator[tuple[GroupId, PartitionKey, CommittedOffset]]:
        """The committed offsets of groups, and the floors of queues that have not committed anything yet."""
        with_offset: set[tuple[GroupId, PartitionKey]] = set()
        for at, group in enumerate(groups):
            if len(lags.by_partition) >= SERIES_MAX:
                lags.left_out += len(groups) - at
                break
            offsets = self._broker.groups.fetch_offsets(group, None)
            lags.left_out += max(len(offsets) - SERIES_MAX, 0)
            for key, committed in islice(offsets.items(), SERIES_MAX):
                if (group, key) in queues:
                    with_offset.add((group, key))
                yield group, key, committed
        for (group, key), queue in queues.items():
            if (group, key) not in with_offset:
                if len(lags.by_partition) >= SERIES_MAX:
                    lags.left_out += 1
                else:
                    yield group, key, CommittedOffset(queue.floor)

    def _age(
        self,
        group: GroupId,
        key: PartitionKey,
        partition: Partition,
        committed: CommittedOffset,
        kept: dict[tuple[str, str, int], tuple[int, int | None]],
        reads_left: int,
    ) -> tuple[float | None, int]:
        """The age of a group's next record in seconds, and how many more timestamps may be read."""
        offset = next_unread(partition, committed)
        if offset >= partition.high_watermark:
            return 0.0, reads_left
        place = (group, *key)
        known = self._times.get(place)
        if known is None or known[0] != offset:
            if reads_left == 0 or len(kept) >= TIMES_KEPT_MAX:
                return None, reads_left
            reads_left -= 1
            known = (offset, _time_at(partition, offset))
        kept[place] = known
        time_ms = known[1]
        if time_ms is None:
            return None, reads_left
        return max(self._broker.clock.now_ms() - time_ms, 0) / 1000, reads_left

    def _queues(self) -> Iterator[Family]:
        meters = self._broker.meters
        leased: list[tuple[tuple[str, ...], float]] = []
        by_state: dict[tuple[str, ...], float] = {}
        for topic, group, status in self._broker.queues.opened():
            leased.append(((topic, group, str(status.partition)), status.leased))
            for state in _QUEUE_STATES:
                labels = (topic, group, state)
                by_state[labels] = by_state.get(labels, 0) + getattr(status, state)
        yield self._simple("inflight_messages", leased)
        yield self._simple("penstock_queue_records", by_state.items())
        for name, counts in (
            ("dlq_messages_total", meters.dead_letters),
            ("penstock_quota_throttled_ms_total", meters.throttled_ms),
            ("penstock_quota_refused_total", meters.quota_refused),
            ("penstock_audit_lost_total", meters.audit_lost),
            ("produce_rejected_total", meters.produce_rejected),
            ("message_acks_total", meters.acks),
            ("message_nacks_total", meters.nacks),
            ("message_lease_timeouts_total", meters.lease_timeouts),
            ("message_redeliveries_total", meters.redeliveries),
            ("penstock_leases_total", meters.leases),
            ("penstock_deadline_exceeded_total", meters.deadline_exceeded),
            ("penstock_duplicates_skipped_total", meters.duplicates_skipped),
            ("penstock_produce_duplicates_total", meters.produce_duplicates),
            ("penstock_dead_letters_redriven_total", meters.redriven),
            ("penstock_sink_commits_total", meters.sink_commits),
        ):
            yield self._counts(name, counts)
        yield self._simple("penstock_sink_records_total", [((), meters.sink_records)])

    # Requests and the node.

    def _requests(self) -> Iterator[Family]:
        meters = self._broker.meters
        used = ((labels, histogram) for labels, histogram in list(meters.request_seconds.items()) if histogram.count)
        yield self._histogram("penstock_request_seconds", used)
        yield self._counts("penstock_operations_total", meters.operations)
        yield self._counts("penstock_request_errors_total", meters.request_errors)
        yield self._counts("penstock_authentication_failures_total", meters.authentication_failures)
        yield self._simple("penstock_connections", (((name,), count()) for name, count in meters.connections.items()))
        yield self._counts("penstock_connections_refused_total", meters.connections_refused)
        yield self._counts("penstock_connections_failed_total", meters.connections_failed)

    def _cluster(self) -> Iterator[Family | None]:
        for found in numbers_of(self._broker, STEP, is_reachable=self._problem() is None):
            yield None if found is None else self._simple(*found)

    def _node(self) -> Iterator[Family]:
        broker = self._broker
        yield self._histogram("penstock_sync_seconds", [((), broker.meters.sync_seconds)])
        yield self._simple("penstock_insecure", [((), int(broker.meters.is_insecure))])
        yield self._simple("penstock_sync_errors_total", [((), broker.meters.sync_errors)])
        with contextlib.suppress(OSError):
            yield self._simple("penstock_disk_free_bytes", [((), shutil.disk_usage(broker.logs.data_dir).free)])
        build = (__version__, platform.python_version(), str(broker.node_id))
        yield self._simple("penstock_build_info", [(build, 1)])


def _time_at(partition: Partition, offset: int) -> int | None:
    try:
        time_ms = partition.log.time_at(offset, partition.high_watermark)
    except (PenstockError, OSError):
        return None
    return None if time_ms == NO_TIMESTAMP else time_ms


class _Collected(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


class MetricsText:
    """The text of ``/metrics``. Simultaneous requests share one collection."""

    def __init__(self, broker: Broker, problem: Problem = _no_problem) -> None:
        self._collector = BrokerCollector(broker, problem)
        self._collecting: asyncio.Task[list[Family]] | None = None

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, for a scraper with this Accept header."""
        if self._collecting is None:
            self._collecting = asyncio.create_task(self._collect())
            self._collecting.add_done_callback(self._collected)
        # If one request is cancelled, the collection continues for the others.
        families = await asyncio.shield(self._collecting)
        encode, content_type = choose_encoder(accept)
        # In a thread, since it takes tens of milliseconds on a large node.
        return await asyncio.to_thread(encode, _Collected(families)), content_type

    async def _collect(self) -> list[Family]:
        families = []
        for family in self._collector.steps():
            if family is not None:
                families.append(family)
            await asyncio.sleep(0)
        return families

    def _collected(self, _: "asyncio.Task[list[Family]]") -> None:
        self._collecting = None
