"""Group records on real partitions: what was acknowledged comes back, over restarts, compaction and damage."""

import asyncio
from pathlib import Path
from typing import Any

from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.errors import Reason
from penstock.limits import GROUP_METADATA_BYTES_MAX
from penstock.operations.groups import CommitOffsets, OffsetToCommit
from penstock.settings import GroupSettings
from penstock.types import GroupId, PartitionKey, TopicName
from tests.support.kafka_node import KafkaNode

KEY = PartitionKey(TopicName("t"), 0)
ONE_PARTITION = {"groups": GroupSettings(offsets_topic_partitions=1)}


async def commit(node: KafkaNode, group: str, *offsets: int) -> None:
    for offset in offsets:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = CommitOffsets(GroupId(group), (OffsetToCommit(KEY, offset, 3, "note"),))
        node.broker.groups.commit_offsets(request, done.set_result)
        assert await done == {KEY: None}


def committed(node: KafkaNode, group: str) -> int | None:
    found = node.broker.groups.fetch_offsets(GroupId(group), [KEY])
    return found[KEY].offset if KEY in found else None


async def test_committed_offsets_are_there_after_a_restart(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        await node.create("t")
        await commit(node, "a", *range(50))
        await commit(node, "b", 7)
    async with KafkaNode(tmp_path) as node:
        assert (committed(node, "a"), committed(node, "b"), committed(node, "c")) == (49, 7, None)


async def test_a_topic_compacted_to_nothing_at_its_end_is_replayed(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path, **ONE_PARTITION) as node:
        await node.create("t")
        await commit(node, "kept", 1)
        await commit(node, "gone", 1, 2, 3)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        node.broker.groups.delete_groups([GroupId("gone")], done.set_result)
        assert await done == {"gone": None}
        log = node.broker.partition(OFFSETS_TOPIC, 0).log
        end = log.next_offset
        for _ in range(3):
            # Rolled by age, compacted, and tombstones dropped once they are old enough.
            node.clock.advance(30 * 24 * 3600 * 1000)
            for removal in log.retire(node.clock.now_ms()):
                removal.run()
            sync = log.begin_sync()
            if sync is not None:
                sync.run()
                log.end_sync(sync, None)
            task = log.compaction_task(node.clock.now_ms())
            if task is not None:
                task.run()
                log.install(task)
        assert log.next_offset == end
        assert not log.read(1, 1_000_000, end).data, "compaction left nothing behind the first record"
    async with KafkaNode(tmp_path, **ONE_PARTITION) as node:
        assert committed(node, "kept") == 1
        assert [group.group_id for group in node.broker.groups.list_groups()] == ["kept"]
        await commit(node, "kept", 2)
        assert node.broker.partition(OFFSETS_TOPIC, 0).log.next_offset == end + 1


async def test_damage_to_one_groups_records_leaves_the_others_readable(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path, **ONE_PARTITION) as node:
        await node.create("t")
        await commit(node, "before", 1)
        await commit(node, "damaged", 2)
        await commit(node, "after", 3)
        # Damage in the segment that is written to is cut off when the log is opened, so it must be closed.
        node.clock.advance(30 * 24 * 3600 * 1000)
        node.broker.partition(OFFSETS_TOPIC, 0).log.retire(node.clock.now_ms())
        await commit(node, "later", 4)
        folder = tmp_path / "topics" / node.broker.topics.require(OFFSETS_TOPIC).topic_id.hex / "0"
    segment, _ = sorted(folder.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"damaged")] ^= 0xFF
    segment.write_bytes(data)
    async with KafkaNode(tmp_path, **ONE_PARTITION) as node:
        groups = ("before", "damaged", "after", "later")
        assert [committed(node, group) for group in groups] == [1, None, 3, 4]


async def test_the_state_of_a_large_group_fits_into_the_log(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        directory = node.broker.groups._directory
        done: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()
        directory.store(0, [(b"\x00\x02\x00\x01g", bytes(20 * GROUP_METADATA_BYTES_MAX))], done.set_result)
        assert await done is None
