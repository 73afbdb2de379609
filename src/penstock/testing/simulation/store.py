"""The metadata store of a simulated cluster, and each node's connection to it.

The store is one map that never loses anything, as etcd with a majority. Faults are between it and a node: a response is lost
after the transaction was applied; a request is so late that it is applied after its caller has given up; events are delayed, but
in order; the store cannot be reached for a while. While it is down no lease expires, and all are restarted when it is back.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from penstock.core.cluster.election import elected
from penstock.core.cluster.image import CONTROLLER_KEY, DRAINS_PREFIX, NODES_PREFIX, ControllerRecord
from penstock.core.cluster.records import reassigning
from penstock.core.topics.records import (
    NO_LEADER,
    TOPICS_PREFIX,
    PartitionRecord,
    TopicRecord,
    decode_partition,
    decode_topic,
    encode,
    partition_key,
    topic_key,
    topic_of_key,
)
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import (
    Compare,
    Entry,
    Event,
    Operation,
    Put,
    Range,
    Subscriber,
    TxnResult,
    Unsubscribe,
    check_txn,
)
from penstock.metadata.subscribers import Subscribers
from penstock.testing.simulation.history import TopicPartition, label
from penstock.testing.simulation.loop import Process, SimulatedLoop
from penstock.testing.simulation.network import NO_PROCESS, ROUNDING_SECONDS, Network

HOST: Final = "etcd"
OPERATIONS_MAX: Final = 128
ANSWER_SECONDS: Final = 2.0
"""How long a node waits for a response, and for the events of its own change."""
_LEASES_SECONDS: Final = 0.05
_AGAIN_SECONDS: Final = 0.1
_LATE_SECONDS_MAX: Final = 5.0
_HELD_SHARE: Final = 0.5
"""Share of the blocked requests that arrive later; the others never do."""

T = TypeVar("T")


class SimulatedEtcd:
    """The store, and the faults between it and the nodes."""

    def __init__(self, loop: SimulatedLoop, network: Network) -> None:
        self.loop: Final = loop
        self.network: Final = network
        self.store: Final = MemoryStore(OPERATIONS_MAX)
        self.store.subscribe("", self._changed)
        self.is_up = True
        self.lost_answers = 0.0
        """The share of lost responses."""
        self.late_requests = 0.0
        """The share of late requests."""
        self.late_puts: Final[dict[tuple[str, str], float]] = {}
        """By host and key prefix: the delay of transactions that put such a key."""
        self._clients: dict[StoreClient, None] = {}
        loop.call_later(_LEASES_SECONDS, self._end_leases, context=NO_PROCESS)

    def _end_leases(self) -> None:
        if self.is_up:
            self.store.expire(int(self.loop.time() * 1000))
        self.loop.call_later(_LEASES_SECONDS, self._end_leases, context=NO_PROCESS)

    def _changed(self, events: list[Event]) -> None:
        for client in self._clients:
            client.tell(events)

    def go_down(self) -> None:
        """Lose the majority."""
        self.is_up = False

    def come_back(self) -> None:
        """Have a majority again."""
        self.is_up = True
        self.store.expire(0)
        self.store.extend_all()

    def heal(self) -> None:
        """End all faults."""
        if not self.is_up:
            self.come_back()
        self.lost_answers = self.late_requests = 0.0

    def connect(self, process: Process) -> "StoreClient":
        """A new connection of a node."""
        client = StoreClient(self, process)
        self._clients[client] = None
        process.on_killed[client] = partial(self.disconnect, client)
        return client

    def disconnect(self, client: "StoreClient") -> None:
        """Remove a connection."""
        self._clients.pop(client, None)

    def can_reach(self, source: str, target: str) -> bool:
        """Whether messages get through now."""
        return self.is_up and not self.network.is_cut(source, target)

    def entries(self) -> list[str]:
        """All entries as text."""
        found = _at_once(self.store.range("")).entries
        return [f"{entry.key} {entry.create_revision} {entry.mod_revision} {entry.value!r}" for entry in found]

    def partition(self, name: str, index: int) -> tuple[Entry, PartitionRecord] | None:
        """The agreed record of a partition."""
        topic = _at_once(self.store.get(topic_key(name)))
        entry = _at_once(self.store.get(partition_key(decode_topic(topic).id, index))) if topic is not None else None
        return None if entry is None else (entry, decode_partition(entry.key, entry.value))

    def drained(self) -> list[int]:
        """The nodes that are drained."""
        return [
            int(entry.key.removeprefix(DRAINS_PREFIX)) for entry in _at_once(self.store.range(DRAINS_PREFIX)).entries
        ]

    def topics(self) -> list[tuple[str, TopicRecord]]:
        """All topics, by name."""
        entries = _at_once(self.store.range(TOPICS_PREFIX)).entries
        return [(topic_of_key(entry.key), decode_topic(entry)) for entry in entries]

    def partitions(self) -> list[tuple[TopicPartition, PartitionRecord]]:
        """All partitions, with their names in the history."""
        found = []
        for name, topic in self.topics():
            for index in range(topic.partitions):
                entry = _at_once(self.store.get(partition_key(topic.id, index)))
                if entry is not None:
                    place = TopicPartition(label(name, topic.id), index)
                    found.append((place, decode_partition(entry.key, entry.value)))
        return found

    def controller(self) -> int | None:
        """The controller."""
        entry = _at_once(self.store.get(CONTROLLER_KEY))
        return None if entry is None else msgspec.json.decode(entry.value, type=ControllerRecord).node

    def move_leader(self, name: str, index: int, choose: Callable[[list[int]], int]) -> int:
        """Move a leader to another in-sync replica, as a controller would; returns the leader afterwards."""
        found = self.partition(name, index)
        if found is None or not self.is_up:
            return NO_LEADER
        entry, record = found
        nodes = _at_once(self.store.range(NODES_PREFIX)).entries
        live = {int(node.key.removeprefix(NODES_PREFIX)): node.create_revision for node in nodes}
        able = [node for node, epoch in record.isr if node != record.leader and live.get(node) == epoch]
        if not able or live.get(record.leader) != record.leader_node_epoch:
            return record.leader
        leader = choose(able)
        others = [node for node in record.replicas if node != leader]
        moved = elected(record, live, 2, avoid=others)
        self._put(entry.key, encode(moved))
        return leader

    def move(self, name: str, index: int, target: tuple[int, ...]) -> None:
        """Move a partition to other nodes, as an operator would."""
        found = self.partition(name, index)
        assert found is not None, "the partition must exist"
        entry, record = found
        self._put(entry.key, encode(reassigning(record, target)))

    def _put(self, key: str, value: bytes) -> None:
        _at_once(self.store.txn([], [Put(key, value)]))

    # Requests.

    def lateness(self, host: str, operations: Sequence[Operation]) -> float:
        """The delay of a transaction."""
        found = (
            seconds
            for (whose, prefix), seconds in self.late_puts.items()
            if whose == host and any(each.key.startswith(prefix) for each in operations)
        )
        return max(found, default=0.0)

    def ask(self, host: str, action: Callable[[], T], answer: "asyncio.Future[T]", seconds: float = 0.0) -> None:
        """Send a request, with some seconds of additional delay."""
        seconds += self.network.latency()
        if self.late_requests and self.loop.random.random() < self.late_requests:
            seconds += self.loop.random.random() * _LATE_SECONDS_MAX
        is_held = self.loop.random.random() < _HELD_SHARE
        self.loop.call_later(seconds, self._asked, host, action, answer, is_held, context=NO_PROCESS)

    def _asked(self, host: str, action: Callable[[], T], answer: "asyncio.Future[T]", is_held: bool) -> None:
        if not self.can_reach(host, HOST):
            if is_held:
                self.loop.call_later(_AGAIN_SECONDS, self._asked, host, action, answer, is_held, context=NO_PROCESS)
            return
        result: T | PenstockError
        try:
            result = action()
        except PenstockError as error:
            result = error
        if not self.lost_answers or self.loop.random.random() >= self.lost_answers:
            self.loop.call_later(self.network.latency(), self._answered, host, result, answer, context=NO_PROCESS)

    def _answered(self, host: str, result: T | PenstockError, answer: "asyncio.Future[T]") -> None:
        if answer.done():
            return
        if not self.can_reach(HOST, host):
            self.loop.call_later(_AGAIN_SECONDS, self._answered, host, result, answer, context=NO_PROCESS)
        elif isinstance(result, PenstockError):
            answer.set_exception(result)
        else:
            answer.set_result(result)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a store in memory, which does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("A store in memory does not wait")


class StoreClient:
    """A :class:`~penstock.metadata.port.SharedStore` for one incarnation of a node."""

    operations_max: Final = OPERATIONS_MAX

    def __init__(self, etcd: SimulatedEtcd, process: Process) -> None:
        self._etcd = etcd
        self._process = process
        self._loop = etcd.loop
        self._subscribers = Subscribers()
        self._coming: deque[tuple[float, list[Event]]] = deque()
        self._seen = 0
        """Everything up to this revision was delivered."""
        self._news = asyncio.Event()

    # Events.

    def tell(self, events: list[Event]) -> None:
        """Send the events of a transaction."""
        at = self._loop.time() + self._etcd.network.latency()
        if self._coming:
            at = max(at, self._coming[-1][0])
        self._coming.append((at, events))
        self._loop.call_at(at, self._pump, context=NO_PROCESS)

    def _pump(self) -> None:
        if not self._process.is_alive or not self._coming:
            return
        if not self._etcd.can_reach(HOST, self._process.host):
            self._loop.call_later(_AGAIN_SECONDS, self._pump, context=NO_PROCESS)
            return
        now = self._loop.time() + ROUNDING_SECONDS
        while self._coming and self._coming[0][0] <= now:
            _, events = self._coming.popleft()
            self._loop.call_soon(self._deliver, events, context=self._process.context())

    def _deliver(self, events: list[Event]) -> None:
        self._seen = events[-1].revision
        self._subscribers.deliver(events)
        self._news.set()
        self._news = asyncio.Event()

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        return self._subscribers.add(prefix, subscriber)

    # Requests.

    async def _ask(self, action: Callable[[], T], operations: Sequence[Operation] = ()) -> T:
        answer: asyncio.Future[T] = self._loop.create_future()
        host = self._process.host
        self._etcd.ask(host, action, answer, self._etcd.lateness(host, operations))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            raise PenstockError(Reason.METADATA_UNAVAILABLE, "No answer from etcd") from None

    async def range(self, prefix: str) -> Range:
        return await self._ask(lambda: _at_once(self._etcd.store.range(prefix)))

    async def get(self, key: str) -> Entry | None:
        return await self._ask(lambda: _at_once(self._etcd.store.get(key)))

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        check_txn(compares, operations, self.operations_max)
        before = 0

        def do() -> TxnResult:
            nonlocal before
            before = _at_once(self._etcd.store.range("nothing has this prefix")).revision
            return _at_once(self._etcd.store.txn(compares, operations))

        done = await self._ask(do, operations)
        if done.succeeded and done.revision > before:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    while self._seen < done.revision:
                        await self._news.wait()
            except TimeoutError:
                raise PenstockError(
                    Reason.METADATA_UNAVAILABLE, "A change was made, but etcd has not reported it yet"
                ) from None
        return done

    async def grant(self, ttl_ms: int) -> int:
        return await self._ask(lambda: _at_once(self._etcd.store.grant(ttl_ms)))

    async def keep_alive(self, lease: int) -> int:
        return await self._ask(lambda: _at_once(self._etcd.store.keep_alive(lease)))

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda: _at_once(self._etcd.store.revoke(lease)))

    async def close(self) -> None:
        self._etcd.disconnect(self)
