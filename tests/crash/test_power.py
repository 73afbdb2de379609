"""A loss of power on a real ext4: what was acknowledged by all was synced, and is there when the power is back.

The file system lives in a file that is mounted, and is shut down under the broker as if the power went. The first
test shows that the fault is real: what nobody synced is gone.
"""

import os
import random

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.conftest import ROUNDS
from tests.crash.load import ConfluentProducing, committed_offset, read_all
from tests.support.mounts import LoopDisk, NotAllowed


@pytest.fixture
def disk(tmp_path):
    try:
        disk = LoopDisk(tmp_path)
    except NotAllowed as reason:
        pytest.skip(f"no loop-mounted ext4 here: {reason}")
    yield disk
    disk.unmount()


def cut_or_skip(disk: LoopDisk) -> None:
    try:
        disk.cut_power()
    except NotAllowed as reason:
        pytest.skip(str(reason))


def test_the_fault_is_real_what_was_not_synced_is_gone(disk) -> None:
    synced, lazy = disk.path / "synced", disk.path / "lazy"
    with synced.open("wb") as file:
        file.write(b"kept")
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(disk.path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    lazy.write_bytes(b"lost")
    cut_or_skip(disk)
    disk.power_back()
    assert synced.read_bytes() == b"kept"
    assert not lazy.exists() or lazy.read_bytes() != b"lost"


@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_a_loss_of_power_loses_nothing_acknowledged(disk, start_broker) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    partitions = 3
    # Small segments, so that the power also goes while files are made and renamed.
    broker = start_broker({"topic_defaults.segment.bytes": 20_000}, data_dir=disk.path / "data")
    broker.log_file = disk.image.with_name("broker.stderr")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("powered", partitions, 1)])["powered"].result(30)
    producing = ConfluentProducing(broker.bootstrap, "powered", range(partitions))
    producing.start()

    for number in range(max(3, ROUNDS // 2)):
        where = f"round {number}, seed {seed}"
        producing.wait_for_more(rng.randrange(1, 1200))
        name = f"made-{number}"
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
        _commit(broker.bootstrap, "group", number + 1)
        # The machine stands still first, as it does when its power goes. A broker that runs on while its disk is cut off could
        # be told by the kernel that a sync worked whose journal entry was thrown away, and no program can guard against that.
        broker.pause()
        promised = producing.acknowledged()
        cut_or_skip(disk)
        broker.kill()
        disk.power_back()
        broker.start()

        assert sorted(
            AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(name, timeout=30).topics[name].partitions
        ) == [0, 1], where
        assert committed_offset(broker.bootstrap, "powered", "group", 0) == number + 1, where
        for partition, numbers in promised.items():
            found = read_all(broker.bootstrap, "powered", partition)
            assert found == list(range(len(found))), (
                f"{where}: partition {partition} has doubles or gaps\n{broker.log_text()}"
            )
            assert numbers <= set(found), f"{where}: partition {partition} lost acknowledged records"

    producing.stop()
    assert producing.failed == []
    for partition in range(partitions):
        assert read_all(broker.bootstrap, "powered", partition) == list(range(producing.sent[partition]))
    assert broker.stop() == 0


def _commit(bootstrap: str, group: str, offset: int) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        consumer.commit(offsets=[confluent_kafka.TopicPartition("powered", 0, offset)], asynchronous=False)
    finally:
        consumer.close()
