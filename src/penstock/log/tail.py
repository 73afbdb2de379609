"""The end of a segment: walked batch by batch, indexed on the way, cut where it is not sound."""

from typing import NamedTuple

from penstock.log.scan import DamageError, walk
from penstock.log.segment import IndexBuilder, Segment
from penstock.types import NO_EPOCH


class Tail(NamedTuple):
    """Where the sound batches of a segment end."""

    end: int
    next_offset: int
    last_epoch: int
    """Leader epoch of the last batch; -1 when the walk met none."""
    damage: DamageError | None


def walk_tail(segment: Segment, interval_bytes: int, believed: int, epochs: dict[int, int] | None = None) -> Tail:
    """Walk the active segment from the last index row before ``believed`` to its end or to the first batch that is not
    sound, adding index rows, and to ``epochs`` where each leader epoch began.

    The segment's ``size`` and ``next_offset`` are left alone: they are the limits of the walk.
    """
    position, offset = segment.load_indexes_upto(believed)
    builder = IndexBuilder(segment, interval_bytes)
    start = position
    epoch = NO_EPOCH
    damage: DamageError | None = None
    try:
        for at, header in walk(
            segment.opened(),
            position,
            segment.size,
            offset_min=offset,
            offset_limit=segment.next_offset,
            check_crc=True,
        ):
            builder.add(at, header.base_offset, header.max_timestamp)
            position, offset, epoch = at + header.size_bytes, header.next_offset, header.leader_epoch
            if epochs is not None:
                epochs.setdefault(epoch, header.base_offset)
    except DamageError as found:
        damage = found
    if position:
        builder.finish()
    segment.verified_from, segment.verified_to = start, position
    return Tail(position, offset, epoch, damage)
