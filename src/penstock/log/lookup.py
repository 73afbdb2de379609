"""Finding an offset by time (ListOffsets).

The time index gives a position before which no record is later than a timestamp. From there batch headers are read, and only
the batch that contains the record is opened.
"""

from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.limits import DECOMPRESSED_RATIO_MAX, MESSAGE_BYTES_DEFAULT
from penstock.log.scan import DamageError
from penstock.log.segment import Segment, Segments
from penstock.records.batch import BatchHeader
from penstock.records.records import read_records
from penstock.types import NO_TIMESTAMP


class TimestampAndOffset(NamedTuple):
    """A record found by time."""

    offset: int
    timestamp: int
    leader_epoch: int


def find_by_time(
    segments: Segments, timestamp_ms: int, start_offset: int, upto_offset: int
) -> TimestampAndOffset | None:
    """The first record from ``start_offset`` up to ``upto_offset`` (excluded) that is not older than ``timestamp_ms``."""
    for segment in segments.items:
        if segment.next_offset <= start_offset or not segment.size or segment.max_timestamp < timestamp_ms:
            continue
        if segment.base_offset >= upto_offset:
            return None
        found = _find_in(segment, timestamp_ms, start_offset, upto_offset)
        if found is not None:
            return found
    return None


def find_latest(segments: Segments, start_offset: int, upto_offset: int) -> TimestampAndOffset | None:
    """The first record with the greatest timestamp between the offsets."""
    greatest = NO_TIMESTAMP
    for segment in segments.items:
        if segment.size and start_offset < segment.next_offset and segment.base_offset < upto_offset:
            whole = start_offset <= segment.base_offset and segment.next_offset <= upto_offset
            greatest = max(
                greatest, segment.max_timestamp if whole else _greatest_in(segment, start_offset, upto_offset)
            )
    if greatest == NO_TIMESTAMP:
        return None
    return find_by_time(segments, greatest, start_offset, upto_offset)


def _find_in(segment: Segment, timestamp_ms: int, start_offset: int, upto_offset: int) -> TimestampAndOffset | None:
    row = segment.times.floor(timestamp_ms - 1)
    first = max(start_offset, segment.base_offset + (0 if row is None else row[1]))
    position = segment.locate(first, segment.size) if first > segment.base_offset else 0
    try:
        for at, header in segment.walk(position, segment.base_offset):
            if header.base_offset >= upto_offset:
                return None
            if header.max_timestamp >= timestamp_ms and header.next_offset > start_offset:
                found = _find_in_batch(segment, at, header, timestamp_ms, start_offset)
                if found is not None:
                    return found if found.offset < upto_offset else None
    except DamageError:
        # Nothing after the damage can be trusted; reading there reports the damage.
        return None
    return None


def _find_in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    if header.is_log_append_time and header.base_offset >= start_offset:
        return TimestampAndOffset(header.base_offset, header.max_timestamp, header.leader_epoch)
    batch = segment.opened().pread(header.size_bytes, position)
    try:
        for record in read_records(batch, max(MESSAGE_BYTES_DEFAULT, len(batch)) * DECOMPRESSED_RATIO_MAX):
            if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                return TimestampAndOffset(record.offset, record.timestamp, header.leader_epoch)
    except PenstockError:
        # A batch that cannot be opened can still be read: return its offset.
        return TimestampAndOffset(max(header.base_offset, start_offset), header.max_timestamp, header.leader_epoch)
    return None


def _greatest_in(segment: Segment, start_offset: int, upto_offset: int) -> int:
    greatest = NO_TIMESTAMP
    position = segment.locate(start_offset, segment.size) if start_offset > segment.base_offset else 0
    for header in segment.headers_at(position):
        if header.next_offset > upto_offset:
            break
        greatest = max(greatest, header.max_timestamp)
    return greatest
