import gzip
import subprocess
import sys
import textwrap

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError, Reason
from penstock.limits import KIB, MIB
from penstock.records.batch import Compression
from penstock.records.compression import compress, decompress

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
TEXT = b"the quick brown fox jumps over the lazy dog, again and again; " * 5000


def reason_or_none(data: bytes, compression: Compression) -> Reason | None:
    try:
        decompress(data, compression, 64 * KIB)
    except PenstockError as error:
        return error.reason
    return None


def reason_of(data: bytes, compression: Compression, bytes_max: int) -> Reason:
    with pytest.raises(PenstockError) as caught:
        decompress(data, compression, bytes_max)
    return caught.value.reason


@pytest.mark.parametrize("compression", Compression)
@given(data=st.binary(max_size=5000), repeat=st.integers(1, 100))
def test_what_is_compressed_opens_to_itself(compression, data, repeat) -> None:
    plain = data * repeat
    assert decompress(compress(plain, compression), compression, len(plain)) == plain


@pytest.mark.parametrize("compression", CODECS)
def test_compression_makes_text_smaller(compression) -> None:
    assert len(compress(TEXT, compression)) < len(TEXT) // 10


@pytest.mark.parametrize("compression", Compression)
def test_any_kind_of_buffer_is_taken(compression) -> None:
    for data in (TEXT, bytearray(TEXT), memoryview(TEXT)):
        assert decompress(memoryview(compress(data, compression)), compression, len(TEXT)) == TEXT


@pytest.mark.parametrize("compression", Compression)
def test_one_byte_above_the_bound_is_too_large(compression) -> None:
    packed = compress(TEXT, compression)
    assert decompress(packed, compression, len(TEXT)) == TEXT
    assert reason_of(packed, compression, len(TEXT) - 1) is Reason.RECORDS_TOO_LARGE


@pytest.mark.parametrize("compression", CODECS)
def test_output_far_larger_than_the_first_guess_still_opens(compression) -> None:
    plain = bytes(20 * MIB)
    assert decompress(compress(plain, compression), compression, 64 * MIB) == plain


@pytest.mark.parametrize("compression", CODECS)
@given(data=st.data())
def test_damage_is_a_refusal_and_never_a_crash(compression, data) -> None:
    packed = bytearray(compress(TEXT[:3000], compression))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    for _ in range(data.draw(st.integers(1, 4))):
        if packed:
            packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    assert reason_or_none(packed, compression) in {None, Reason.CORRUPT_RECORDS, Reason.RECORDS_TOO_LARGE}


@pytest.mark.parametrize("compression", CODECS)
@given(junk=st.binary(max_size=200))
def test_junk_is_a_refusal_and_never_a_crash(compression, junk) -> None:
    assert reason_or_none(junk, compression) in {None, Reason.CORRUPT_RECORDS, Reason.RECORDS_TOO_LARGE}


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_stream_cut_short_is_corrupt(compression) -> None:
    assert reason_of(compress(TEXT, compression)[:-4], compression, len(TEXT)) is Reason.CORRUPT_RECORDS


@pytest.mark.parametrize("length", [0, -1, 2**31 - 1, 7])
def test_a_hostile_length_of_a_snappy_block_is_corrupt(length) -> None:
    packed = compress(b"abc", Compression.SNAPPY)[:16] + length.to_bytes(4, "big", signed=True) + b"\x03\x08abc"
    assert reason_of(packed, Compression.SNAPPY, 1000) is Reason.CORRUPT_RECORDS


def test_a_bare_snappy_block_that_says_four_gigabytes_is_too_large() -> None:
    assert reason_of(b"\xff\xff\xff\xff\x0fabc", Compression.SNAPPY, MIB) is Reason.RECORDS_TOO_LARGE


def test_snappy_without_frames_is_read() -> None:
    assert decompress(bytes(cramjam.snappy.compress_raw(TEXT)), Compression.SNAPPY, len(TEXT)) == TEXT


def test_snappy_is_written_in_the_blocks_that_java_reads() -> None:
    packed = compress(TEXT, Compression.SNAPPY)
    assert packed[:16] == b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
    plain, position = b"", 16
    while position < len(packed):
        length = int.from_bytes(packed[position : position + 4], "big")
        plain += bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + length]))
        position += 4 + length
    assert plain == TEXT


def test_lz4_blocks_are_independent_since_java_refuses_linked_ones() -> None:
    packed = compress(TEXT, Compression.LZ4)
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0b1110_0000 == 0b0110_0000  # version 1, blocks independent
    assert not packed[4] & 0b0000_1011  # no content size, no dictionary, nothing reserved


def test_lz4_with_linked_blocks_is_read() -> None:
    plain = TEXT * 3
    packed = cramjam.lz4.Compressor(block_linked=True)
    packed.compress(plain)
    assert decompress(bytes(packed.finish()), Compression.LZ4, len(plain)) == plain


def test_gzip_of_several_members_is_read() -> None:
    assert decompress(gzip.compress(b"abc") + gzip.compress(b"defg"), Compression.GZIP, 7) == b"abcdefg"


def test_gzip_is_what_the_standard_library_reads() -> None:
    assert gzip.decompress(compress(TEXT, Compression.GZIP)) == TEXT


@pytest.mark.parametrize(
    ("compression", "encode", "decode"),
    [
        (Compression.GZIP, aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
        (Compression.SNAPPY, aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
        (Compression.LZ4, aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
        (Compression.ZSTD, aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
    ],
)
def test_aiokafka_reads_what_is_written_and_the_other_way_round(compression, encode, decode) -> None:
    assert bytes(decode(compress(TEXT, compression))) == TEXT
    assert decompress(bytes(encode(TEXT)), compression, len(TEXT)) == TEXT


BOMB = textwrap.dedent(
    """
    import resource, sys
    from penstock.errors import PenstockError, Reason
    from penstock.records.batch import Compression
    from penstock.records.compression import compress, decompress

    compression = Compression[sys.argv[1]]
    zeros = bytes(16 << 20)
    packed = compress(zeros, compression)
    # 1 GiB when opened: frames and members of these formats may follow each other.
    bomb = packed + packed[16:] * 63 if compression is Compression.SNAPPY else packed * 64
    with open("/proc/self/statm") as statm:
        used_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    room_bytes = 64 << 20
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + room_bytes, used_bytes + room_bytes))
    try:
        decompress(bomb, compression, 8 << 20)
    except PenstockError as error:
        print(error.reason.name)
    """
)


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.skipif(sys.platform != "linux", reason="the bound on memory is set the Linux way")
def test_a_bomb_of_a_gigabyte_goes_off_in_a_small_room(compression) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMB, compression.name], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("RECORDS_TOO_LARGE\n", "", 0)
