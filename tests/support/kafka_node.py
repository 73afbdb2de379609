"""A node without a socket: real store, real logs, real handlers. A request goes through the codec in the version asked for."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from penstock.address import Address
from penstock.core.broker import Broker
from penstock.core.partitions.partition import Partition
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.core.topics.topics import NewTopic, Topic
from penstock.errors import Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.kafka.gateway import KafkaGateway
from penstock.gateways.kafka.handlers import HANDLERS
from penstock.log.manager import LogManager
from penstock.metadata.port import MetadataStore
from penstock.metadata.sqlite import SqliteStore
from penstock.operations.groups import OffsetToCommit
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.runtime.clock import within_ms
from penstock.runtime.disk import RealDisk
from penstock.runtime.group_commit import GroupCommit
from penstock.settings import GroupSettings, LogSettings, ServerSettings, Settings
from penstock.types import Flush, Gateway, GroupId, NodeId, PartitionKey, TopicName
from penstock.wire.kafka.apis import API, ApiKey
from tests.support.listeners import unbound
from tests.support.settings import AT_ONCE
from tests.support.worlds import CountingEntropy, ManualClock

NODE = NodeId(7)
# Where several reasons have one code, the one that Kafka named it for stands first; but for this one.
REASONS = {code: reason for reason, code in reversed(CODES.items()) if reason is not Reason.SHUTTING_DOWN}


class KafkaNode:
    """Use it as an async context manager; ``settings`` are those of :class:`~penstock.settings.Settings`."""

    def __init__(
        self, data_dir: Path, *, flush: Flush = Flush.OS, disk: RealDisk | None = None, **settings: Any
    ) -> None:
        self._disk = disk or RealDisk()
        self.clock = ManualClock()
        self.caller = Caller(ANONYMOUS, Gateway.KAFKA, "127.0.0.1")
        data_dir.mkdir(exist_ok=True)
        self._data_dir = str(data_dir)
        # One partition for the groups, since every start opens them all; and nobody moves the clock for a first generation.
        settings.setdefault("groups", GroupSettings(initial_rebalance_delay_ms=0, offsets_topic_partitions=1))
        settings.setdefault("queues", AT_ONCE)
        settings.setdefault("log", LogSettings(flush=flush))
        self.settings = Settings(server=ServerSettings(node_id=NODE), **settings)
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.listener = unbound("kafka")
        self.reports: list[str] = []

    async def __aenter__(self) -> Self:
        store = self.store = await self._open_store()
        self._stack.push_async_callback(store.close)
        commit = GroupCommit(asyncio.get_running_loop(), self.settings.log.flush, 1)
        self._stack.callback(commit.close)
        self.flusher = commit
        logs = LogManager(self._disk, self._data_dir, self.clock, lambda _text: None)
        self.broker = Broker(
            self.settings,
            cluster_id="penstock-test",
            clock=self.clock,
            entropy=CountingEntropy(),
            store=store,
            logs=logs,
            flusher=commit,
            report=self.reports.append,
        )
        self.broker.background = self._begin
        self.broker.within = within_ms
        logs.open_all()
        self._stack.callback(logs.close)
        await self.broker.start()
        self._stack.push_async_callback(commit.drain)
        self._stack.callback(self.broker.close)
        self.gateway = KafkaGateway(self.broker, commit.turn, self.settings.limits)
        return self

    def _begin(self, work: Coroutine[object, None, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_store(self) -> MetadataStore:
        return await SqliteStore.open(f"{self._data_dir}/metadata.sqlite")

    async def __aexit__(self, *_raised: object) -> None:
        await self._stack.aclose()

    async def ask(self, key: ApiKey, request: Any, version: int) -> Any:
        """The answer as a client of that version reads it."""
        api = API[key]
        read = api.decode_request(bytearray(b"".join(api.encode_request(request, version))), 0, version)
        context = RequestContext(
            broker=self.broker,
            gateway=self.gateway,
            version=version,
            client_id="test",
            client_host="127.0.0.1",
            caller=self.caller,
            now_ms=self.clock.now_ms(),
            monotonic_ms=self.clock.monotonic_ms(),
            listener=self.listener,
            local=Address("127.0.0.1", 9092),
        )
        handle: Callable[[Any, Any], Any] = HANDLERS[key].handle
        answer = handle(read, context)
        if inspect.isawaitable(answer):
            answer = await answer
        return api.decode_response(b"".join(api.encode_response(answer, version)), 0, version)

    async def create(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        """A topic; configs with underscores for dots."""
        by_name = {key.replace("_", "."): value for key, value in configs.items()}
        return await self.broker.topics.create(NewTopic(name, partitions, configs=by_name))

    async def append(self, topic: str, partition: int, count: int) -> Partition:
        """``count`` records, a batch each, committed."""
        target = self.broker.partition(topic, partition)
        for n in range(count):
            target.append(build_batch([Record(n, self.clock.now_ms(), b"key", b"value")]), self.clock.now_ms())
        await self.committed(target)
        return target

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """An offset of a group, as a client commits it."""
        done: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()
        item = OffsetToCommit(PartitionKey(TopicName(topic), partition), offset)
        self.broker.groups.commit_offset(GroupId(group), item, done.set_result)
        assert await done is None

    async def committed(self, target: Partition) -> None:
        """Wait until all that was appended counts."""
        committed = asyncio.get_running_loop().create_future()
        target.when_committed(target.log.next_offset, committed.set_result)
        assert await committed is None


def versions(key: ApiKey) -> range:
    """All versions of an API."""
    return range(API[key].min_version, API[key].max_version + 1)


def reason_of(code: int) -> Reason | None:
    """The reason behind an error code; None for no error."""
    return REASONS[code] if code else None
