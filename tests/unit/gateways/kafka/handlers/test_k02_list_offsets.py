"""ListOffsets: the first, the last, and what stands at a time."""

import asyncio
import errno

import pytest

from penstock.errors import Reason
from penstock.runtime.disk import RealFile
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_offsets_generated import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.support.kafka_wire import batch

KEY = ApiKey.LIST_OFFSETS
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NOTHING = (None, -1, -1, -1)
Found = tuple[Reason | None, int, int, int]


async def ask(
    node: KafkaNode, timestamp: int, *, topic: str = "t", partition: int = 0, version: int = 11, **fields: int
) -> Found:
    """Error, offset, timestamp and leader epoch."""
    leader_epoch = fields.pop("leader_epoch", -1)
    asked = ListOffsetsRequestPartition(partition, leader_epoch, timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsRequestTopic(topic, [asked])], **fields)
    [answer] = (await node.ask(KEY, request, version)).topics[0].partitions
    assert answer.partition_index == partition
    return reason_of(answer.error_code), answer.offset, answer.timestamp, answer.leader_epoch


async def fill(node: KafkaNode) -> None:
    """Offsets 0 to 5 at the times 100, 300, 200, 200, 400, 400; epoch 0 up to offset 2, then epoch 4."""
    partition = node.broker.partition("t", 0)
    for number, timestamp in enumerate((100, 300, 200, 200, 400, 400)):
        if number == 2:
            partition.leader_epoch = 4
        partition.append(bytearray(batch(b"v", timestamp_ms=timestamp)), 500)
    done = asyncio.get_running_loop().create_future()
    partition.when_committed(6, done.set_result)
    await done


@pytest.mark.parametrize("version", versions(KEY))
async def test_the_ends_and_a_time_are_found_in_every_version(node: KafkaNode, version: int) -> None:
    await node.create("t")
    await fill(node)
    node.broker.partition("t", 0).log.delete_before(1)
    with_epoch = version >= 4
    assert await ask(node, LATEST, version=version) == (None, 6, -1, 4 if with_epoch else -1)
    assert await ask(node, EARLIEST, version=version) == (None, 1, -1, 0 if with_epoch else -1)
    assert await ask(node, 301, version=version) == (None, 4, 400, 4 if with_epoch else -1)
    assert await ask(node, 401, version=version) == NOTHING


async def test_the_first_record_that_is_not_older_is_found(node: KafkaNode) -> None:
    await node.create("t")
    await fill(node)
    assert await ask(node, 0) == (None, 0, 100, 0)
    assert await ask(node, 100) == (None, 0, 100, 0)
    assert await ask(node, 101) == (None, 1, 300, 0)
    assert await ask(node, 200) == (None, 1, 300, 0)
    assert await ask(node, 301) == (None, 4, 400, 4)
    assert await ask(node, MAX_TIMESTAMP) == (None, 4, 400, 4)


async def test_an_empty_log_has_ends_and_nothing_in_between(node: KafkaNode) -> None:
    await node.create("t")
    assert await ask(node, LATEST) == (None, 0, -1, 0)
    assert (await ask(node, EARLIEST))[:3] == (None, 0, -1)
    assert await ask(node, 0) == NOTHING
    assert await ask(node, MAX_TIMESTAMP) == NOTHING


async def test_nothing_is_kept_elsewhere(node: KafkaNode) -> None:
    await node.create("t")
    await fill(node)
    assert await ask(node, EARLIEST_LOCAL) == await ask(node, EARLIEST)
    assert await ask(node, LATEST_TIERED) == NOTHING
    assert await ask(node, PENDING_UPLOAD) == NOTHING


async def test_what_is_not_committed_is_not_found(node: KafkaNode) -> None:
    await node.create("t")
    await fill(node)
    node.broker.partition("t", 0).append(bytearray(batch(b"v", timestamp_ms=450)), 500)
    for isolation in (0, 1):
        assert (await ask(node, LATEST, isolation_level=isolation))[1] == 6
        assert await ask(node, 450, isolation_level=isolation) == NOTHING
        assert (await ask(node, MAX_TIMESTAMP, isolation_level=isolation))[1] == 4


async def test_what_makes_no_sense_is_refused(node: KafkaNode) -> None:
    await node.create("t")
    await fill(node)
    assert (await ask(node, -7))[0] is Reason.INVALID_REQUEST
    assert (await ask(node, -(2**63)))[0] is Reason.INVALID_REQUEST
    assert (await ask(node, LATEST, partition=1))[0] is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert (await ask(node, LATEST, topic="nobody"))[0] is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert (await ask(node, LATEST, leader_epoch=3))[0] is Reason.FENCED_LEADER_EPOCH
    assert (await ask(node, LATEST, leader_epoch=5))[0] is Reason.UNKNOWN_LEADER_EPOCH
    assert (await ask(node, LATEST, leader_epoch=4))[0] is None


async def test_a_disk_that_does_not_read_is_an_error_of_that_partition(
    node: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create("t")
    await fill(node)

    def fails(file: RealFile, length: int, position: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(RealFile, "pread", fails)
    assert (await ask(node, 200))[0] is Reason.STORAGE_ERROR
    assert (await ask(node, LATEST))[0] is None
