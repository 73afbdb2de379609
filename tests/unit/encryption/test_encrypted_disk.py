"""The encrypted disk keeps the contract of a disk, and what it stores cannot be read or changed."""

import errno
import threading

import pytest

import penstock.encryption.disk as disk_module
import penstock.encryption.file as file_module
from penstock.encryption import crypto, header
from penstock.encryption.header import HEADER_BYTES, SPANS_MAX
from penstock.encryption.state import Kind
from penstock.testing.disk import SimulatedDisk
from tests.support.encrypted import encrypted
from tests.unit.encryption.recording import Recorder

ROOT = "/data"
DIRECTORY = f"/data/topics/{7:032x}/0"
LOG = f"{DIRECTORY}/{0:020d}.log"
TEXT = b"the quick brown fox jumps over the lazy dog, " * 20


@pytest.fixture
def disk():
    disk = SimulatedDisk(seed=5)
    disk.make_dirs(DIRECTORY)
    return disk


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(crypto, "encryptor_at", recorder.encryptor_at)
    return recorder


def written(disk, data=TEXT, *, seal=False):
    file = encrypted(disk, ROOT).open(LOG, create=True)
    file.pwritev((data,), 0)
    if seal:
        assert file.seal()
    file.sync()
    file.close()


def read(disk, reports=None) -> bytes:
    file = encrypted(disk, ROOT, (reports or []).append).open(LOG)
    return file.pread(file.size(), 0)


def test_what_is_written_is_read_at_any_position_and_cannot_be_read_below(disk) -> None:
    written(disk)
    raw = disk.read_bytes(LOG)
    assert len(raw) == HEADER_BYTES + len(TEXT)
    assert all(TEXT[at : at + 8] not in raw for at in range(0, len(TEXT), 8))
    file = encrypted(disk, ROOT).open(LOG)
    for position in range(40):
        for length in (0, 1, 15, 16, 17, 300, 5000):
            assert file.pread(length, position) == TEXT[position : position + length]
    assert file.size() == encrypted(disk, ROOT).size(LOG) == len(TEXT)


def test_pieces_of_any_length_are_appended_by_one_process_with_one_nonce(disk, recorder) -> None:
    file = encrypted(disk, ROOT).open(LOG, create=True)
    position = 0
    for length in (1, 15, 16, 17, 31, 200, 3):
        assert file.pwritev((TEXT[:length], bytearray(b"ab"), memoryview(b"c")), position) == length + 3
        position += length + 3
    assert file.size() == position
    assert len({nonce for _, nonce, _ in recorder.seen}) == 1
    assert recorder.doubles == []


@pytest.mark.parametrize("how", ["restart", "truncate", "failed write", "short write"])
def test_a_position_that_may_have_been_written_gets_another_nonce(disk, recorder, how) -> None:
    disk_of_process = encrypted(disk, ROOT)
    file = disk_of_process.open(LOG, create=True)
    file.pwritev((b"a" * 100,), 0)
    if how == "restart":
        disk.end_process()
        file = encrypted(disk, ROOT).open(LOG)
        file.truncate(50)
    elif how == "truncate":
        file.truncate(50)
    elif how == "failed write":
        disk.fail_next("pwritev", errno.ENOSPC)
        with pytest.raises(OSError, match="space"):
            file.pwritev((b"b" * 100,), 100)
        file.truncate(50)
    else:
        disk.capacity_bytes = sum(len(inode.data) for inode in disk._inodes()) + 10
        with pytest.raises(OSError, match="space"):
            file.pwritev((b"b" * 100,), 100)
        disk.capacity_bytes = None
        file.truncate(50)
    file.pwritev((b"c" * 100,), 50)
    assert file.pread(200, 0) == b"a" * 50 + b"c" * 100
    assert recorder.doubles == []
    file.sync()
    assert read(disk) == b"a" * 50 + b"c" * 100


def test_a_span_that_could_not_be_noted_is_not_used(disk, recorder) -> None:
    file = encrypted(disk, ROOT).open(LOG, create=True)
    file.pwritev((b"a" * 100,), 0)
    file.truncate(40)
    for _ in range(3):
        disk.fail_next("pwritev", errno.ENOSPC)
        with pytest.raises(OSError, match="space"):
            file.pwritev((b"b" * 100,), 40)
    file.pwritev((b"c" * 10,), 40)
    assert file.pread(100, 0) == b"a" * 40 + b"c" * 10
    assert read(disk) == b"a" * 40 + b"c" * 10
    assert recorder.doubles == []


def test_a_file_that_is_closed_and_opened_again_by_the_process_continues(disk, recorder) -> None:
    disk_of_process = encrypted(disk, ROOT)
    for number in range(20):
        file = disk_of_process.open(LOG, create=True)
        file.pwritev((b"%04d" % number,), number * 4)
        file.close()
    assert len({nonce for _, nonce, _ in recorder.seen}) == 1
    assert recorder.doubles == []


def test_more_restarts_than_the_header_has_room_for_rewrite_the_segment(disk, recorder) -> None:
    expected = b""
    for number in range(SPANS_MAX + 20):
        disk.end_process()
        file = encrypted(disk, ROOT).open(LOG, create=True)
        assert file.pread(len(expected) + 1, 0) == expected
        file.pwritev((b"%05d" % number,), len(expected))
        file.sync()
        expected += b"%05d" % number
    assert read(disk) == expected
    assert len({key for key, _, _ in recorder.seen}) == 2
    assert recorder.doubles == []
    assert disk.listdir(DIRECTORY) == [LOG.rpartition("/")[2]]


def test_a_segment_that_is_begun_again_gets_a_fresh_key(disk, recorder) -> None:
    file = encrypted(disk, ROOT).open(LOG, create=True)
    file.pwritev((b"a" * 100,), 0)
    file.truncate(0)
    assert file.size() == 0
    assert file.pread(10, 0) == b""
    file.pwritev((b"b" * 100,), 0)
    assert len({key for key, _, _ in recorder.seen}) == 2
    assert read(disk) == b"b" * 100


def test_a_file_grows_by_truncate_with_zeros(disk) -> None:
    file = encrypted(disk, ROOT).open(LOG, create=True)
    file.pwritev((b"abc",), 0)
    file.truncate(10)
    assert file.pread(20, 0) == b"abc" + bytes(7)


def test_every_bit_of_a_header_may_flip_in_one_of_its_halves(disk) -> None:
    written(disk, seal=True)
    for position in [*range(60), *range(512, 568), *range(1024, 1064)]:
        for half in (0, header.HALF_BYTES):
            flip(disk, half + position)
            assert read(disk) == TEXT
            flip(disk, half + position)


def flip(disk, position, bits=1, path=LOG) -> None:
    def change(data: bytearray) -> None:
        data[position] ^= bits

    disk.change(path, change)


def test_a_header_that_is_damaged_in_both_halves_reads_as_damage(disk) -> None:
    written(disk)
    flip(disk, 20)
    flip(disk, header.HALF_BYTES + 20)
    reports: list[str] = []
    file = encrypted(disk, ROOT, reports.append).open(LOG)
    assert file.pread(1000, 0) == bytes(len(TEXT))
    assert "header is damaged" in reports[-1]
    with pytest.raises(OSError, match="nothing can be added"):
        file.pwritev((b"more",), len(TEXT))


def test_a_segment_is_bound_to_its_place(disk) -> None:
    written(disk)
    other = f"{DIRECTORY}/{7:020d}.log"
    disk.rename(LOG, other)
    assert encrypted(disk, ROOT).open(other).pread(100, 0) == bytes(100)
    disk.rename(other, LOG + ".deleted")
    assert encrypted(disk, ROOT).open(LOG + ".deleted").pread(100, 0) == TEXT[:100]


def test_a_seal_does_not_cover_a_span_that_could_not_be_noted(disk) -> None:
    """Memory knows that span, and the disk does not: a seal over both would look as if somebody had changed it."""
    file = encrypted(disk, ROOT).open(LOG, create=True)
    file.pwritev((TEXT,), 0)
    disk.fail_next("pwritev", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        file.pwritev((b"more",), len(TEXT))
    disk.fail_next("pwritev", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        file.pwritev((b"more",), len(TEXT))
    file.seal()
    file.sync()
    disk.end_process()
    assert encrypted(disk, ROOT).state_of(LOG).seal is not None
    assert read(disk) == TEXT


def test_a_changed_chunk_of_a_sealed_segment_reads_as_zeros_and_the_others_as_they_were(disk, monkeypatch) -> None:
    monkeypatch.setattr(file_module, "CHUNK_BYTES", 256)
    written(disk, seal=True)
    assert read(disk) == TEXT
    for position in range(0, len(TEXT), 50):
        flip(disk, HEADER_BYTES + position)
        reports: list[str] = []
        chunk = position // 256 * 256
        end = min(chunk + 256, len(TEXT))
        file = encrypted(disk, ROOT, reports.append).open(LOG)
        assert file.pread(len(TEXT), 0) == TEXT[:chunk] + bytes(end - chunk) + TEXT[end:]
        assert f"bytes {chunk} to {end - 1} were changed" in reports[-1]
        flip(disk, HEADER_BYTES + position)


def test_bits_and_checksum_changed_together_are_noticed_which_no_checksum_would(disk) -> None:
    """Encryption without authentication lets an attacker change known bytes to chosen ones."""
    written(disk, seal=True)
    for position, (old, new) in enumerate(zip(TEXT[:9], b"THE QUICK", strict=True)):
        flip(disk, HEADER_BYTES + position, old ^ new)
    assert read(disk)[:9] == bytes(9)


def test_a_sealed_segment_that_was_cut_short_or_grew_is_noticed(disk) -> None:
    written(disk, seal=True)
    whole = disk.read_bytes(LOG)
    disk.change(LOG, lambda data: data.__delitem__(slice(len(whole) - 10, None)))
    assert read(disk) == bytes(len(TEXT))
    disk.change(LOG, lambda data: data.__setitem__(slice(None), whole + b"more"))
    assert read(disk) == TEXT


def test_a_damaged_table_of_tags_costs_nothing(disk) -> None:
    written(disk, seal=True)
    flip(disk, header.TAGS_AT)
    assert read(disk) == TEXT
    flip(disk, HEADER_BYTES)
    assert read(disk) == bytes(len(TEXT))


def test_a_segment_is_sealed_without_space_for_its_tags(disk) -> None:
    file = encrypted(disk, ROOT).open(LOG, create=True)
    file.pwritev((TEXT,), 0)
    file.seal()
    disk.fail_next("pwritev", errno.ENOSPC)
    file.sync()
    assert encrypted(disk, ROOT).state_of(LOG).seal is not None
    assert read(disk) == TEXT


@pytest.mark.parametrize("length", [0, 100, len(TEXT)])
def test_a_sealed_segment_can_be_opened_again_by_truncation(disk, length) -> None:
    written(disk, seal=True)
    file = encrypted(disk, ROOT).open(LOG)
    file.truncate(length)
    file.pwritev((b"new",), length)
    assert file.pread(5000, 0) == TEXT[:length] + b"new"
    file.sync()
    disk.end_process()
    assert read(disk) == TEXT[:length] + b"new"


def test_a_seal_waits_for_the_sync_and_covers_only_what_is_durable(disk) -> None:
    for seed in range(40):
        disk = SimulatedDisk(seed)
        disk.make_dirs(DIRECTORY)
        file = encrypted(disk, ROOT).open(LOG, create=True)
        file.pwritev((b"a" * 100,), 0)
        file.sync()
        disk.sync_dir(DIRECTORY)
        file.pwritev((b"b" * 100,), 100)
        file.seal()
        # The power fails while the seal is written: at its first sync, or after it.
        disk.fail_next("sync")
        with pytest.raises(OSError, match="error"):
            file.sync()
        disk.lose_power()
        assert read(disk)[:100] == b"a" * 100


def test_a_seal_is_written_while_another_thread_reads(disk) -> None:
    disk_of_process = encrypted(disk, ROOT)
    file = disk_of_process.open(LOG, create=True)
    file.pwritev((TEXT,), 0)
    file.seal()
    thread = threading.Thread(target=file.sync)
    thread.start()
    other = disk_of_process.open(LOG)
    found = {other.pread(len(TEXT), 0) for _ in range(200)}
    thread.join()
    assert found == {TEXT}


def test_small_files_are_sealed_and_bound_to_their_path(disk) -> None:
    opened = encrypted(disk, ROOT)
    path = f"{DIRECTORY}/{7:020d}.snapshot"
    opened.write_atomic(path, b"producers")
    assert opened.read_bytes(path) == b"producers"
    assert b"producers" not in disk.read_bytes(path)
    raw = disk.read_bytes(path)
    for position in range(len(raw)):
        flip(disk, position, path=path)
        assert opened.read_bytes(path) == b""
        flip(disk, position, path=path)
    disk.rename(path, f"{DIRECTORY}/leader-epochs")
    assert opened.read_bytes(f"{DIRECTORY}/leader-epochs") == b""


def test_indexes_are_passed_through(disk) -> None:
    file = encrypted(disk, ROOT).open(f"{DIRECTORY}/{0:020d}.index", create=True)
    file.pwritev((b"rows",), 0)
    assert disk.read_bytes(f"{DIRECTORY}/{0:020d}.index") == b"rows"


def test_the_number_of_remembered_files_is_bounded_and_forgetting_one_reuses_no_nonce(
    disk, recorder, monkeypatch
) -> None:
    monkeypatch.setattr(disk_module, "ENCRYPTED_FILES_REMEMBERED_MAX", 8)
    opened = encrypted(disk, ROOT)
    for round_ in range(3):
        for base in range(20):
            file = opened.open(f"{DIRECTORY}/{base:020d}.log", create=True)
            file.pwritev((b"%d" % round_ * 40,), 40 * round_)
            file.close()
            assert len(opened._states) <= 8
    assert recorder.doubles == []
    file = opened.open(f"{DIRECTORY}/{3:020d}.log")
    assert file.pread(200, 0) == b"0" * 40 + b"1" * 40 + b"2" * 40


def test_a_header_torn_by_a_power_failure_is_an_empty_segment(disk) -> None:
    written(disk)
    whole = disk.read_bytes(LOG)
    for kept in [0, 1, 2, 8, 10, 30, 45, 59, 61, 1050, header.HALF_BYTES + 3]:
        torn = whole[:kept]
        disk.change(LOG, lambda data, torn=torn: data.__setitem__(slice(None), torn))
        file = encrypted(disk, ROOT).open(LOG)
        assert file.size() == 0
        file.pwritev((b"again",), 0)
        assert file.pread(10, 0) == b"again"


def test_what_is_in_the_clear_is_read_and_becomes_encrypted_when_it_grows(disk) -> None:
    file = disk.open(LOG, create=True)
    file.pwritev((TEXT,), 0)
    file.sync()
    opened = encrypted(disk, ROOT)
    assert opened.ring.complete
    assert opened.state_of(LOG).kind is Kind.ENCRYPTED, "the active segment is encrypted at the start"
    assert opened.open(LOG).pread(len(TEXT), 0) == TEXT
    assert TEXT[:16] not in disk.read_bytes(LOG)


def test_data_in_the_clear_is_refused_where_none_can_be_left(disk) -> None:
    encrypted(disk, ROOT)
    file = disk.open(LOG, create=True)
    file.pwritev((TEXT,), 0)
    disk.write_atomic(f"{DIRECTORY}/leader-epochs", b"forged")
    opened = encrypted(disk, ROOT)
    assert opened.state_of(LOG).kind is Kind.UNREADABLE
    assert opened.read_bytes(f"{DIRECTORY}/leader-epochs") == b""
