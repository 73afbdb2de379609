"""One node's core: partitions open when they are touched, and a change of a topic reaches everything that depends on it."""

import asyncio
import errno
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import pytest

from penstock.core.cluster.replicas import OPEN_AGAIN_MS, TopicIdPartition
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.errors import PenstockError, Reason
from penstock.records.builder import build_batch
from penstock.records.records import Record
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import NOW_MS, batch, values


@pytest.fixture
async def node(tmp_path: Path):
    async with KafkaNode(tmp_path) as started:
        yield started


def refusal(error: pytest.ExceptionInfo[PenstockError]) -> Reason:
    return error.value.reason


def opened(node: KafkaNode) -> list[tuple[str, int]]:
    found = [(each.topic.name, each.index) for each in node.broker.open_partitions()]
    assert len(found) == len(list(node.broker.open_logs()))
    return [each for each in found if not each[0].startswith("__")]


async def test_a_partition_is_opened_when_it_is_first_touched_and_then_stays(node: KafkaNode) -> None:
    await node.create("t", 3)
    assert opened(node) == []
    first = node.broker.partition("t", 2)
    assert opened(node) == [("t", 2)]
    assert node.broker.partition("t", 2) is first


async def test_a_partition_is_found_by_the_id_of_its_topic_too(node: KafkaNode) -> None:
    topic = await node.create("t")
    assert node.broker.partition_by_id(topic.topic_id.bytes, 0) is node.broker.partition("t", 0)


async def test_what_is_not_there_is_refused(node: KafkaNode) -> None:
    topic = await node.create("t", 2)
    for name, index in (("t", 2), ("t", -1), ("nobody", 0), ("", 0)):
        with pytest.raises(PenstockError) as refused:
            node.broker.partition(name, index)
        assert refusal(refused) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(PenstockError) as refused:
        node.broker.partition_by_id(topic.topic_id.bytes, 2)
    assert refusal(refused) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(PenstockError) as refused:
        node.broker.partition_by_id(bytes(16), 0)
    assert refusal(refused) is Reason.UNKNOWN_TOPIC_ID
    assert opened(node) == []


async def test_groups_are_told_what_there_is(node: KafkaNode) -> None:
    await node.create("t", 2)
    assert [node.broker.exists("t", index) for index in (-1, 0, 1, 2)] == [False, True, True, False]
    assert not node.broker.exists("nobody", 0)


async def test_every_change_of_a_topic_is_a_new_version_of_the_topics(node: KafkaNode) -> None:
    seen = [node.broker.topics_version]
    await node.create("t")
    seen.append(node.broker.topics_version)
    await node.broker.topics.alter("t", [ConfigChange("retention.ms", ChangeKind.SET, "5")])
    seen.append(node.broker.topics_version)
    await node.broker.topics.add_partitions("t", 2)
    seen.append(node.broker.topics_version)
    await node.broker.topics.delete("t")
    seen.append(node.broker.topics_version)
    assert seen == sorted(set(seen))


async def test_a_changed_setting_reaches_the_partitions_that_are_open(node: KafkaNode) -> None:
    await node.create("t")
    partition = await node.append("t", 0, 1)
    await node.broker.topics.alter("t", [ConfigChange("max.message.bytes", ChangeKind.SET, "10")])
    with pytest.raises(PenstockError) as refused:
        partition.append(bytearray(batch(b"v")), NOW_MS)
    assert refusal(refused) is Reason.RECORDS_TOO_LARGE


async def test_more_partitions_do_not_touch_those_that_are_there(node: KafkaNode) -> None:
    await node.create("t")
    partition = await node.append("t", 0, 2)
    await node.broker.topics.add_partitions("t", 2)
    assert node.broker.partition("t", 0) is partition
    assert (await node.append("t", 1, 1)).high_watermark == 1
    assert values(partition.read(0, 1000).data) == [b"value"] * 2


async def test_a_deleted_topic_refuses_everyone_and_its_name_can_be_used_again(node: KafkaNode) -> None:
    old_topic = await node.create("t")
    old = await node.append("t", 0, 3)
    told: list[Reason | None] = []
    woken: list[bool] = []
    old.watch(lambda: woken.append(old.gone))
    old.append(build_batch([Record(0, NOW_MS, b"k", b"v")]), NOW_MS)
    old.when_committed(100, told.append)
    old.when_written(100, told.append)
    await node.broker.topics.delete("t")
    assert old.gone
    assert told == [Reason.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert woken[-1]
    with pytest.raises(PenstockError):
        old.append(build_batch([Record(0, NOW_MS, b"k", b"v")]), NOW_MS)
    with pytest.raises(PenstockError) as refused:
        node.broker.partition_by_id(old_topic.topic_id.bytes, 0)
    assert refusal(refused) is Reason.UNKNOWN_TOPIC_ID
    await node.create("t")
    new = await node.append("t", 0, 1)
    assert (new.high_watermark, new is old) == (1, False)


async def test_what_is_still_to_be_written_of_a_deleted_topic_is_no_fault_of_the_disk(node: KafkaNode, caplog) -> None:
    await node.create("t")
    partition = await node.append("t", 0, 1)
    partition.append(bytearray(batch(b"never written")), NOW_MS)
    node.broker.topics.on_deleted[0](node.broker.topics.require("t"))
    await asyncio.sleep(0)
    assert partition.log.begin_sync() is None
    assert partition.log.failed is None
    assert caplog.text == ""


async def test_the_files_of_a_deleted_topic_go(node: KafkaNode, tmp_path: Path) -> None:
    topic = await node.create("t")
    await node.append("t", 0, 1)
    folder = tmp_path / "topics" / topic.topic_id.hex
    assert folder.exists()
    await node.broker.topics.delete("t")
    assert not folder.exists()


async def test_a_log_that_cannot_be_opened_is_a_storage_error_and_harms_no_other(
    node: KafkaNode, tmp_path: Path
) -> None:
    topic = await node.create("t", 2)
    await node.append("t", 1, 1)
    (tmp_path / "topics" / topic.topic_id.hex / "0").write_bytes(b"a file where a folder should be")
    with pytest.raises(PenstockError) as refused:
        await node.append("t", 0, 1)
    assert refusal(refused) is Reason.STORAGE_ERROR
    assert node.broker.partition("t", 1).high_watermark == 1


async def test_a_stop_tells_everyone_who_waits(node: KafkaNode) -> None:
    await node.create("t")
    partition = await node.append("t", 0, 1)
    told: list[Reason | None] = []
    partition.when_committed(2, told.append)
    node.broker.close()
    assert told == [Reason.SHUTTING_DOWN]


async def test_topics_and_records_are_there_after_a_restart(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        topic = await node.create("t", 2)
        await node.append("t", 1, 3)
    async with KafkaNode(tmp_path) as node:
        assert opened(node) == []
        partition = node.broker.partition_by_id(topic.topic_id.bytes, 1)
        assert partition.high_watermark == 3
        assert values(partition.read(0, 1000).data) == [b"value"] * 3
        assert node.broker.partition("t", 0).high_watermark == 0


async def test_what_a_crash_left_of_a_deleted_topic_goes_at_the_next_start(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        await node.create("t")
        await node.append("t", 0, 1)
    stray = tmp_path / "topics" / UUID(int=99, version=4).hex / "0"
    stray.mkdir(parents=True)
    (stray / "00000000000000000000.log").write_bytes(b"records")
    async with KafkaNode(tmp_path) as node:
        assert not stray.exists()
        assert node.broker.partition("t", 0).high_watermark == 1


async def test_the_empty_folder_of_a_deleted_topic_goes_at_the_next_start(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        await node.create("t")
    stray = tmp_path / "topics" / UUID(int=99, version=4).hex
    stray.mkdir(parents=True)
    async with KafkaNode(tmp_path):
        assert not stray.exists()


def lose_metadata(folder: Path) -> None:
    for file in folder.glob("metadata.sqlite*"):
        file.unlink()


async def test_records_without_their_metadata_are_not_removed(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        topic = await node.create("t")
        await node.append("t", 0, 1)
    lose_metadata(tmp_path)
    again = KafkaNode(tmp_path)
    with pytest.raises(PenstockError) as refused:
        await again.__aenter__()
    await again.__aexit__()
    assert refusal(refused) is Reason.STORAGE_ERROR
    assert (tmp_path / "topics" / topic.topic_id.hex / "0").exists()


async def test_a_partition_that_could_not_be_opened_is_opened_when_it_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with KafkaNode(tmp_path) as node:
        await node.create("t")
        await node.append("t", 0, 1)
    async with KafkaNode(tmp_path) as node:
        with monkeypatch.context() as patched:
            patched.setattr(node.broker.logs, "log", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
            with pytest.raises(PenstockError) as refused:
                node.broker.partition("t", 0)
            assert refusal(refused) is Reason.STORAGE_ERROR
        node.clock.advance(OPEN_AGAIN_MS)
        assert node.broker.partition("t", 0).high_watermark == 1


async def test_partitions_with_one_replica_are_opened_when_they_are_first_used(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        topic = await node.create("t", 3)
        await node.append("t", 1, 1)
    async with KafkaNode(tmp_path) as node:
        unopened = node.broker.cluster.replicas.unopened
        assert unopened() == [TopicIdPartition(topic.topic_id, index) for index in range(3)]
        node.broker.partition("t", 1)
        assert TopicIdPartition(topic.topic_id, 1) not in unopened()
