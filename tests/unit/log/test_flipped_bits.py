"""Each bit of a stored segment is flipped, one after the other: a reader gets the batches as they were written, or an error.

One field is an exception in the clear: the leader epoch is not part of a record, and no checksum of Kafka's format covers it. A lower
one cannot be told from the right one; a newer one than the log has is refused. A sealed segment covers it too.
"""

import pytest

import penstock.encryption.file as file_module
from penstock.errors import PenstockError, Reason
from penstock.log.log import Log
from penstock.log.names import LOG
from penstock.records.batch import read_header
from penstock.testing.disk import SimulatedDisk
from tests.support.encrypted import encrypted
from tests.unit.log.kit import SMALL, Kit, append, batches_in, sync

SIZES = (0, 3, 60, 200, 7, 90)
BITS = range(8)


@pytest.fixture(params=["clear", "encrypted"])
def stored(request, monkeypatch):
    """A simulated disk, and a kit on it as a new process sees it."""
    monkeypatch.setattr(file_module, "CHUNK_BYTES", 512)
    disk = SimulatedDisk(seed=11)
    disk.make_dirs("/data/topics/t")
    kits = {
        "clear": lambda: Kit(disk, "/data/topics/t/0"),
        "encrypted": lambda: Kit(encrypted(disk, "/data"), "/data/topics/t/0"),
    }
    return disk, kits[request.param]


def filled(log: Log, count: int) -> None:
    """Batches of several epochs and sizes, some of idempotent producers."""
    for number in range(count):
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number // 3} if number % 3 == 0 else {}
        append(log, b"%d " % number + b"x" * SIZES[number % len(SIZES)], epoch=number // 5, **producer)
    log.write_pending()
    sync(log)


def delivered(log: Log) -> tuple[list[bytes], int]:
    """Every batch that a reader gets, and how many reads were refused."""
    found: list[bytes] = []
    refused = 0
    offset = log.start_offset
    while offset < log.written_offset:
        try:
            slice_ = log.read(offset, 700, log.written_offset)
        except PenstockError as error:
            assert error.reason is Reason.CORRUPT_RECORDS
            refused += 1
            offset += 1
            continue
        found += [data for _, data in batches_in(slice_.data)]
        assert slice_.next_offset > offset
        offset = slice_.next_offset
    return found, refused


def test_no_flipped_bit_of_a_closed_segment_is_delivered(stored) -> None:
    disk, kit_on_disk = stored
    kit = kit_on_disk()
    log = kit.open(SMALL)
    filled(log, 40)
    whole = delivered(log)[0]
    assert len(whole) == 40
    segment = log.segments[1]
    assert segment is not log.active
    epochs_at = [at + 12 for at, _ in segment.batches_at(0)]
    log.close()
    path = segment.log_path
    size = disk.size(path)
    shown: list[str] = []
    for position in range(size - segment.size, size):
        for bit in BITS if position < size - segment.size + 70 else (position % 8,):
            flip(disk, path, position, bit)
            again = kit_on_disk().open(SMALL, point=log.recovery_point())
            found, refused = delivered(again)
            again.close(clean=False)
            flip(disk, path, position, bit)
            if epoch_of(position - size + segment.size, epochs_at) and kit.disk is disk:
                assert all(read_header(data).leader_epoch <= log.epochs.latest for data in found)
                found = [data[:12] + data[16:] for data in found]
                assert set(found) <= {data[:12] + data[16:] for data in whole}
            elif not set(found) <= set(whole) or not refused:
                shown.append(f"bit {bit} of byte {position - size + segment.size}")
    assert shown == []


def epoch_of(position: int, epochs_at: list[int]) -> bool:
    """Whether the byte at ``position`` is of a leader epoch."""
    return any(at <= position < at + 4 for at in epochs_at)


def flip(disk: SimulatedDisk, path: str, position: int, bit: int) -> None:
    def change(data: bytearray) -> None:
        data[position] ^= 1 << bit

    assert path.endswith(LOG)
    disk.change(path, change)
