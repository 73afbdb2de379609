"""The four codecs of record batches, with a bound on what may come out.

A few kilobytes can decompress to gigabytes, so :func:`decompress` has a limit and never allocates more: the output goes into
a buffer of limited size, and the codec stops where the buffer ends.

What other clients expect, and so what is written here:

- snappy: the blocks of Java's xerial library (its consumers read nothing else). Bare snappy is read too.
- lz4: frames of independent blocks; Java's consumers refuse linked ones.
- gzip, zstd: plain.
"""

from struct import Struct, error
from typing import Final

import cramjam

from penstock.errors import PenstockError, Reason
from penstock.limits import KIB
from penstock.records.batch import Compression
from penstock.types import Buffer

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + bytes([0, 0, 0, 1, 0, 0, 0, 1])
_XERIAL_BLOCK_BYTES: Final = 32 * KIB
"""As xerial's own default."""
_XERIAL_LENGTH: Final = Struct(">i")
_GZIP_SIZE: Final = Struct("<I")
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3

_GUESS_BYTES_MIN: Final = 64 * KIB
_GUESS_RATIO: Final = 6
_GROWTH: Final = 6
"""A wrong guess costs one more run over a sixth of the output; with this growth few are needed."""
_OUTPUT_FULL: Final = "failed to write whole buffer"


def compress(data: Buffer, compression: Compression) -> bytes:
    """``data`` compressed; unchanged for NONE."""
    match compression:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL))
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            compressor = cramjam.lz4.Compressor(block_linked=False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(data: Buffer, compression: Compression, bytes_max: int) -> bytes:
    """``data`` decompressed. RECORDS_TOO_LARGE if that is more than ``bytes_max``, CORRUPT_RECORDS if it is damaged."""
    if compression is Compression.NONE:
        if len(data) > bytes_max:
            raise too_large(bytes_max)
        return bytes(data)
    try:
        if compression is Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), bytes_max)
        return _decompress_stream(data, compression, bytes_max)
    except (cramjam.DecompressionError, error) as cause:
        raise PenstockError(
            Reason.CORRUPT_RECORDS,
            f"The {compression.name.lower()} records do not decompress ({cause}); send the batch again",
        ) from None


def _decompress_stream(data: Buffer, compression: Compression, bytes_max: int) -> bytes:
    match compression:
        case Compression.GZIP:
            decompress_into = cramjam.gzip.decompress_into
        case Compression.LZ4:
            decompress_into = cramjam.lz4.decompress_into
        case _:
            decompress_into = cramjam.zstd.decompress_into
    guess_bytes = _guess_bytes(data, compression)
    while True:
        output = bytearray(min(guess_bytes, bytes_max))
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError as cause:
            # Whatever the error text is: if a later version of the codec words it differently, a wrong guess must not become
            # a refusal of sound records.
            if len(output) < bytes_max:
                guess_bytes *= _GROWTH
                continue
            if _OUTPUT_FULL in str(cause):
                raise too_large(bytes_max) from None
            raise
        return bytes(memoryview(output)[:size])


def _guess_bytes(data: Buffer, compression: Compression) -> int:
    guess_bytes = max(_GUESS_BYTES_MIN, len(data) * _GUESS_RATIO)
    if compression is Compression.GZIP and len(data) > _GZIP_SIZE.size:
        # A gzip member ends with the size of its content. If that is wrong, growth or the bound helps.
        return max(guess_bytes, int(_GZIP_SIZE.unpack_from(data, len(data) - _GZIP_SIZE.size)[0]))
    return guess_bytes


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_XERIAL_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, bytes_max: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, bytes_max)
    # The versions after the magic are ignored: some producers write them in the other byte order.
    parts: list[bytes] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        (length,) = _XERIAL_LENGTH.unpack_from(data, position)
        position += _XERIAL_LENGTH.size
        if not 0 < length <= len(data) - position:
            raise cramjam.DecompressionError(f"{length} bytes declared, {len(data) - position} left")
        part = _decompress_snappy_block(data[position : position + length], bytes_max)
        bytes_max -= len(part)
        parts.append(part)
        position += length
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, bytes_max: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > bytes_max:
        raise too_large(bytes_max)
    output = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(block, output)
    return bytes(memoryview(output)[:written])


def too_large(bytes_max: int) -> PenstockError:
    """The error for records that decompress to more than ``bytes_max``."""
    return PenstockError(
        Reason.RECORDS_TOO_LARGE, f"The records decompress to more than {bytes_max} bytes; send smaller batches"
    )
