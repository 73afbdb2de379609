"""Scanning the batches of a segment, and telling a sound batch from damage.

A scan trusts nothing: a header must be plausible (format 2, a length that fits, offsets that increase and stay below the
limit), and on request the CRC must match. The CRC does not cover the base offset, so the order of offsets is checked too.
"""

from collections.abc import Callable, Iterator
from typing import Final

from penstock.limits import KIB, MIB, REQUEST_BYTES_MAX
from penstock.ports import File
from penstock.records.batch import HEADER_BYTES, LENGTH_END, LENGTH_MIN, MAGIC, BatchHeader, crc_matches, read_header

SCAN_CHUNK_BYTES: Final = 1 * MIB
HEADER_CHUNK_BYTES: Final = 16 * KIB
"""Read at once if only headers are needed: little more than the header of a large batch."""
OUT_OF_ORDER: Final = "out of order"
NO_HEADER: Final = "no batch header"
INCOMPLETE: Final = "an incomplete batch"
WRONG_CHECKSUM: Final = "a batch with a wrong checksum"
WRONG_EPOCH: Final = "a batch with an unknown leader epoch"


class DamageError(Exception):
    """There is no sound batch at ``position``. This error never leaves the package."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"{why} at position {position}")
        self.position = position
        self.why = why


def fault_of(header: BatchHeader, room: int, offset_min: int, offset_limit: int) -> str | None:
    """What is wrong with a header that has ``room`` bytes up to the end, in words; None if it is plausible.

    Its offsets must be in ``offset_min`` to ``offset_limit`` (excluded).
    """
    if header.magic != MAGIC:
        return NO_HEADER
    if header.length < LENGTH_MIN or header.length > REQUEST_BYTES_MAX:
        return f"a batch with an invalid length of {header.length}"
    if header.length + LENGTH_END > room:
        return f"{INCOMPLETE} ({room} of {header.length + LENGTH_END} bytes)"
    if header.last_offset_delta < 0 or header.record_count < 0:
        return "a batch with invalid counts"
    if header.base_offset < offset_min or header.base_offset + header.last_offset_delta >= offset_limit:
        return f"offset {header.base_offset} {OUT_OF_ORDER}"
    return None


def walk(
    file: File, position: int, end: int, *, offset_min: int, offset_limit: int, check_crc: bool
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from ``position`` up to ``end``; raises DamageError at the first that is not sound."""
    chunk_bytes = SCAN_CHUNK_BYTES if check_crc else HEADER_CHUNK_BYTES
    chunk = b""
    chunk_at = position
    while position < end:
        at = position - chunk_at
        if len(chunk) - at < HEADER_BYTES:
            chunk = file.pread(min(chunk_bytes, end - position), position)
            chunk_at, at = position, 0
            if len(chunk) < HEADER_BYTES:
                raise DamageError(position, f"{end - position} stray bytes")
        header = read_header(chunk, at)
        fault = fault_of(header, end - position, offset_min, offset_limit)
        if fault is not None:
            raise DamageError(position, fault)
        size = header.length + LENGTH_END
        if check_crc:
            if len(chunk) - at < size:
                chunk = file.pread(min(max(chunk_bytes, size), end - position), position)
                chunk_at, at = position, 0
                if len(chunk) < size:
                    raise DamageError(position, f"{INCOMPLETE} ({len(chunk)} of {size} bytes)")
            if not crc_matches(memoryview(chunk)[at : at + size]):
                raise DamageError(position, WRONG_CHECKSUM)
        yield position, header
        position += size
        offset_min = header.base_offset + header.last_offset_delta + 1


def sound_length(
    data: bytes | memoryview,
    offset: int,
    offset_limit: int,
    epoch_max: int | None = None,
    following: Callable[[int], int] | None = None,
) -> tuple[int, str | None]:
    """How many bytes of ``data`` are whole batches with a correct CRC, and what is wrong with the next whole one (None: nothing).

    The first batch must contain ``offset`` or come after it. The CRC does not cover offsets: if there is a gap before a batch and
    the next batch has lower offsets, the former is wrong. It does not cover the leader epoch either, which must not be above
    ``epoch_max``, the newest one of the log. ``following`` returns the offset of the batch after this many bytes of ``data``, for a gap at the end.
    """
    view = memoryview(data)
    total = len(view)
    position = 0
    # A batch may begin before the offset asked for, but must not end before it.
    expected = offset
    jumped_at = -1
    while total - position >= HEADER_BYTES:
        header = read_header(view, position)
        size = header.length + LENGTH_END
        fault = fault_of(header, size, 0 if position == 0 else expected, offset_limit)
        if fault is None and header.next_offset <= offset:
            fault = f"offset {header.base_offset} {OUT_OF_ORDER}"
        if fault is not None:
            if jumped_at >= 0 and OUT_OF_ORDER in fault:
                return jumped_at, f"a batch {OUT_OF_ORDER}"
            return position, fault
        if position + size > total:
            break
        if not crc_matches(view[position : position + size]):
            return position, WRONG_CHECKSUM
        if epoch_max is not None and header.leader_epoch > epoch_max:
            return position, WRONG_EPOCH
        jumped_at = position if header.base_offset > expected else -1
        position += size
        expected = header.next_offset
    if jumped_at >= 0 and following is not None and following(position) < expected:
        return jumped_at, f"a batch {OUT_OF_ORDER}"
    return position, None
