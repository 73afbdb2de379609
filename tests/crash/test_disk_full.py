"""A full disk: produces are refused with a storage error, reads go on, and room heals it without a restart."""

import errno
import os
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from tests.support.clients import CONSUMERS, PRODUCERS, Record
from tests.support.mounts import LoopDisk, NotAllowed, small_tmpfs
from tests.support.waiting import eventually

VALUE = b"x" * 20_000


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request, tmp_path):
    """A file system of a few dozen megabytes."""
    try:
        if request.param == "tmpfs":
            with small_tmpfs(tmp_path, 48) as path:
                yield path
            return
        disk = LoopDisk(tmp_path, size_mib=64)
    except NotAllowed as reason:
        pytest.skip(f"no small disk here: {reason}")
    yield disk.path
    disk.unmount()


def fill(folder: Path) -> Path:
    """Take every byte that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, no_space_is_fine():
        for size in (1024 * 1024, 4096, 512, 1):
            with no_space_is_fine():
                while file.write(bytes(size)) == size:
                    pass
        os.fsync(file.fileno())
    return filler


@contextmanager
def no_space_is_fine():
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def try_to_produce(bootstrap: str, topic: str, count: int) -> list[int]:
    """Produce without trying again; the error code of each record, 0 for an acknowledged one."""
    codes: list[int] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "retries": 0, "linger.ms": 0, "log_level": 0})
    for _ in range(count):
        producer.produce(
            topic, VALUE, partition=0, on_delivery=lambda error, _: codes.append(error.code() if error else 0)
        )
        assert producer.flush(30) == 0
    return codes


def test_a_full_disk_refuses_produces_serves_reads_and_heals(small_disk, start_broker, tmp_path) -> None:
    broker = start_broker(data_dir=small_disk / "data")
    broker.log_file = tmp_path / "broker.stderr"
    topic = "full"
    PRODUCERS["confluent"](broker.bootstrap, topic, [Record(b"%d" % n) for n in range(100)])
    filler = fill(small_disk)

    def refused() -> list[int]:
        codes = try_to_produce(broker.bootstrap, topic, 20)
        return codes if any(codes) else []

    codes = eventually(refused, seconds=30, what="produces are refused")
    assert {code for code in codes if code} == {confluent_kafka.KafkaError.KAFKA_STORAGE_ERROR}
    assert broker.running

    got = CONSUMERS["confluent"](broker.bootstrap, topic, 100)
    assert [r.value for r in got] == [b"%d" % n for n in range(100)]

    filler.unlink()
    eventually(
        lambda: try_to_produce(broker.bootstrap, topic, 3) == [0, 0, 0],
        seconds=30,
        what="produces work again with room",
    )

    def all_there() -> list[bytes | None]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ends"})
        _, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=20)
        consumer.close()
        return [r.value for r in CONSUMERS["confluent"](broker.bootstrap, topic, high)]

    before = all_there()
    assert set(before[100:]) == {VALUE}
    broker.restart()
    assert all_there() == before


def test_a_broker_starts_on_a_full_disk_and_serves_reads(small_disk, start_broker, tmp_path) -> None:
    broker = start_broker(data_dir=small_disk / "data")
    broker.log_file = tmp_path / "broker.stderr"
    PRODUCERS["confluent"](broker.bootstrap, "full", [Record(b"%d" % n) for n in range(100)])
    broker.kill()
    filler = fill(small_disk)
    broker.start()
    assert len(CONSUMERS["confluent"](broker.bootstrap, "full", 100)) == 100
    filler.unlink()
    eventually(lambda: try_to_produce(broker.bootstrap, "full", 1) == [0], what="produces work with room")
