"""The end of the active segment: scanned batch by batch, and indexed at the same time."""

from typing import NamedTuple

from penstock.log.index import IndexBuilder
from penstock.log.scan import DamageError
from penstock.log.segment import Segment
from penstock.types import NO_EPOCH


class SegmentTail(NamedTuple):
    """Where the sound batches of a segment end."""

    end: int
    next_offset: int
    last_epoch: int
    """Leader epoch of the last batch; -1 if there was none."""
    damage: DamageError | None
    skipped_damage: bool = False
    """Whether damage was skipped, which only the new index makes possible."""


def index_tail(
    segment: Segment, interval_bytes: int, trusted: int, trusted_offset: int, epochs: dict[int, int]
) -> SegmentTail:
    """Complete the index, and check the batches from position ``trusted`` on; adds to ``epochs`` where each began.

    Up to ``trusted``, where ``trusted_offset`` is next, everything was sound and synced once. Damage there is skipped: reading
    it is refused. After that the first batch that is not sound ends the log. The segment's ``size`` and ``next_offset`` are not
    changed: they are the limits of the scan.
    """
    position, offset = segment.load_indexes_upto(trusted)
    builder = IndexBuilder(segment.base_offset, segment.offsets, segment.times, interval_bytes)
    epoch = NO_EPOCH
    damage: DamageError | None = None
    skipped_damage = False
    while position < segment.size:
        known = position < trusted
        try:
            for at, header in segment.walk(position, offset, trusted if known else None, check_crc=not known):
                builder.add(at, header)
                position, offset, epoch = at + header.size_bytes, header.next_offset, header.leader_epoch
                epochs.setdefault(epoch, header.base_offset)
        except DamageError as found:
            if not known:
                damage = found
                break
            sound = segment.next_sound(found.position, offset)
            position, offset = sound if sound is not None and sound[0] < trusted else (trusted, trusted_offset)
            skipped_damage = True
    segment.max_timestamp = builder.finish()
    return SegmentTail(position, offset, epoch, damage, skipped_damage)


def check_end(segment: Segment) -> SegmentTail:
    """Check the last few batches, from the last index row on. The index must be complete."""
    last = segment.offsets.last()
    position, offset = (0, segment.base_offset) if last is None else (last[1], segment.base_offset + last[0])
    start = position
    epoch = NO_EPOCH
    damage: DamageError | None = None
    try:
        for at, header in segment.walk(position, offset, check_crc=True):
            position, offset, epoch = at + header.size_bytes, header.next_offset, header.leader_epoch
    except DamageError as found:
        damage = found
    segment.verified_from, segment.verified_to = start, position
    return SegmentTail(position, offset, epoch, damage)
