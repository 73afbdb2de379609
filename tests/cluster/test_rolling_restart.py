"""A restart of every node, one after the other, under load: nobody is refused for good, and nothing is lost."""

import asyncio

import pytest

from penstock.core.cluster.image import node_key
from penstock.core.topics.records import NO_LEADER, PARTITIONS_PREFIX, decode_partition
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.port import Event
from tests.cluster.load import SECONDS, Load
from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import Etcd, opened

SETTINGS = {"cluster.handover_ms": 30_000}


class Leaders:
    """Who leads each partition, as it was agreed on; and who did when each node went."""

    def __init__(self, store: EtcdStore) -> None:
        self._now: dict[str, int] = {}
        self._when_gone: dict[str, set[int]] = {}
        self._more = asyncio.Event()
        store.subscribe("", self._take)

    async def load(self, store: EtcdStore) -> None:
        for entry in (await store.range(PARTITIONS_PREFIX)).entries:
            self._now[entry.key] = decode_partition(entry.key, entry.value).leader

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if event.key.startswith(PARTITIONS_PREFIX):
                if event.entry is not None:
                    self._now[event.key] = decode_partition(event.key, event.entry.value).leader
                else:
                    self._now.pop(event.key, None)
            elif event.entry is None:
                self._when_gone[event.key] = set(self._now.values())
        self._more.set()

    async def when_gone(self, node_id: int) -> set[int]:
        async with asyncio.timeout(SECONDS):
            while node_key(node_id) not in self._when_gone:
                self._more.clear()
                await self._more.wait()
        return self._when_gone[node_key(node_id)]


@pytest.mark.timeout(300)
async def test_a_rolling_restart_fails_no_write_and_loses_nothing(tmp_path, etcd: Etcd) -> None:
    with ClusterProcesses(tmp_path, etcd.urls, settings=SETTINGS, gateways=False) as cluster:
        load = Load(cluster)
        async with opened(etcd, "tested") as store:
            leaders = Leaders(store)
            await leaders.load(store)
            for node in cluster.nodes.values():
                load.go_on(100, 10)
                assert node.stop() == 0
                # It led nothing any more when it went.
                assert not await leaders.when_gone(node.node_id) & {NO_LEADER, node.node_id}
                load.go_on(100, 10)
                node.start()
                cluster.wait_until_in_sync()
        load.finish()
