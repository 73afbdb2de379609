import struct

import pytest

from penstock.limits import REQUEST_BYTES_MAX
from penstock.log.scan import HEADER_CHUNK_BYTES, SCAN_CHUNK_BYTES, DamageError, sound_length, walk
from penstock.records.batch import read_header, set_offset
from penstock.testing.disk import SimulatedDisk
from tests.unit.log.kit import make_batch

OFFSETS = struct.Struct(">q")


def stream(*sizes):
    data = bytearray()
    offset = 10
    for size in sizes:
        batch = make_batch(b"x" * size, b"y")
        set_offset(batch, offset, 3)
        data += batch
        offset += 2
    return data


def file_with(data):
    disk = SimulatedDisk()
    file = disk.open("/f", create=True)
    file.pwritev((bytes(data),), 0)
    return file


def walked(data, *, check_crc=True, offset_min=10, offset_limit=10**6, position=0):
    found = walk(
        file_with(data), position, len(data), offset_min=offset_min, offset_limit=offset_limit, check_crc=check_crc
    )
    return [(at, header.base_offset) for at, header in found]


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [(), (5,), (5, 50, 500), (HEADER_CHUNK_BYTES - 90, 10, HEADER_CHUNK_BYTES * 2, 7), (SCAN_CHUNK_BYTES + 9, 3)],
)
def test_every_batch_is_met_once_whatever_the_size_of_the_reads(sizes, check_crc) -> None:
    data = stream(*sizes)
    expected = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        expected.append((position, header.base_offset))
        position += header.size_bytes
    assert walked(data, check_crc=check_crc) == expected


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (lambda data, at: data.__setitem__(at + 16, 9), "no batch header"),
        (lambda data, at: struct.pack_into(">i", data, at + 8, 3), "invalid length of 3"),
        (lambda data, at: struct.pack_into(">i", data, at + 8, REQUEST_BYTES_MAX + 1), "invalid length"),
        (lambda data, at: struct.pack_into(">i", data, at + 8, 10_000), "incomplete"),
        (lambda data, at: struct.pack_into(">i", data, at + 23, -1), "invalid counts"),
        (lambda data, at: struct.pack_into(">q", data, at, 11), "out of order"),
        (lambda data, at: struct.pack_into(">q", data, at, 10**7), "out of order"),
        (lambda data, at: data.__setitem__(at + 70, data[at + 70] ^ 4), "checksum"),
    ],
)
def test_the_walk_stops_at_damage_and_says_what_and_where(how, why) -> None:
    data = stream(5, 50, 500)
    at = read_header(data).size_bytes
    how(data, at)
    with pytest.raises(DamageError, match=why) as damage:
        walked(data)
    assert damage.value.position == at


def test_stray_bytes_behind_the_last_batch_are_damage() -> None:
    data = stream(5) + b"\0" * 20
    with pytest.raises(DamageError, match="20 stray bytes"):
        walked(data)


def test_without_the_checksum_only_headers_are_looked_at() -> None:
    data = stream(5, 50)
    data[80] ^= 1
    assert len(walked(data, check_crc=False)) == 2


def test_a_file_shorter_than_promised_is_damage() -> None:
    data = stream(5, 5000)
    file = file_with(data[:-100])
    with pytest.raises(DamageError, match="incomplete batch"):
        list(walk(file, 0, len(data), offset_min=10, offset_limit=99, check_crc=True))


def test_the_sound_part_of_a_slice_ends_before_a_partial_batch() -> None:
    data = stream(5, 50, 500)
    whole = len(data) - read_header(data, len(stream(5, 50))).size_bytes
    assert sound_length(data, 10, 99) == (len(data), None)
    assert sound_length(bytes(data[:-1]), 10, 99) == (whole, None)
    assert sound_length(bytes(data[: whole + 30]), 10, 99) == (whole, None)


def test_the_sound_part_of_a_slice_ends_before_damage() -> None:
    data = stream(5, 50, 500)
    first = read_header(data).size_bytes
    data[first + 70] ^= 1
    length, fault = sound_length(data, 10, 99)
    assert length == first
    assert fault is not None
    assert "checksum" in fault
