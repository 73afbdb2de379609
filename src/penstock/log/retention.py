"""Dropping the oldest records of a log: by age and size, and on request.

On disk: ``start-offset``, below which records are deleted although their segment still exists.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, Reason
from penstock.log.config import NO_LIMIT, LogConfig
from penstock.log.names import START_OFFSET, START_OFFSET_TITLE
from penstock.log.notes import write_note
from penstock.log.segment import Segment
from penstock.log.snapshots import drop_snapshots_below, keep_producers
from penstock.ports import Disk
from penstock.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from penstock.log.log import Log


def expired_count(
    segments: Sequence[Segment],
    config: LogConfig,
    now_ms: int,
    *,
    start_offset: int,
    upto_offset: int,
    archived_offset: int | None = None,
) -> int:
    """How many of the oldest segments may be dropped; the last one of them may be the active one.

    A segment is dropped if it is completely below ``start_offset`` (DeleteRecords), if its greatest timestamp is older than
    ``retention_ms``, or if the others without it still have ``retention_bytes``. Always from the start, and never
    anything at or above ``upto_offset``, which readers cannot see yet. A segment without timestamps has no age.
    With a tier, age and size drop only what is archived: records below ``archived_offset``.
    """
    surplus_bytes = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for number, segment in enumerate(segments):
        is_active = number == len(segments) - 1
        if segment.next_offset > upto_offset or (is_active and segment.size == 0):
            break
        below_start = segment.next_offset <= start_offset
        kept = archived_offset is not None and segment.next_offset > archived_offset
        too_old = (
            config.deletes and config.retention_ms != NO_LIMIT and _is_older(segment, now_ms - config.retention_ms)
        )
        too_much = (
            config.deletes and config.retention_bytes != NO_LIMIT and not is_active and surplus_bytes >= segment.size
        )
        if not (below_start or ((too_old or too_much) and not kept)):
            break
        surplus_bytes -= segment.size
        count += 1
    return count


def _is_older(segment: Segment, than_ms: int) -> bool:
    return NO_TIMESTAMP < segment.max_timestamp < than_ms


@dataclass(frozen=True, slots=True)
class RemovalTask:
    """Files that are no longer read. Removing large ones is slow, so it is done off the event loop."""

    disk: Disk
    paths: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def run(self) -> None:
        """Remove them. After a crash in between the next start removes the rest."""
        for directory in {os.path.dirname(path) for path in self.paths}:
            # Recovery must find these files until their new names are durable. The directory is gone if the topic was deleted.
            with suppress(FileNotFoundError):
                self.disk.sync_dir(directory)
        for path in self.paths:
            self.disk.remove(path)
        for folder in self.folders:
            self.disk.remove_tree(folder)


def retire(log: "Log", now_ms: int, upto_offset: int | None, archived_offset: int | None) -> list[RemovalTask]:
    """See :meth:`penstock.log.log.Log.retire`."""
    # Until a checkpoint is made after a cut, recovery trusts no snapshot made since, and needs the batches instead.
    if not log.is_usable or log.cut_note.is_there:
        return []
    log.producers.expire(now_ms)
    # First: a segment must not be checked while records for it are not written.
    log.flush()
    # A full disk may have no space for a new segment: then closed segments are dropped anyway, which frees some.
    with suppress(PenstockError):
        _roll_by_age(log, now_ms)
    upto_offset = log.written_offset if upto_offset is None else min(upto_offset, log.written_offset)
    count = expired_count(
        log.segment_list.items,
        log.config,
        now_ms,
        start_offset=log.start_offset,
        upto_offset=upto_offset,
        archived_offset=archived_offset,
    )
    if count == len(log.segment_list.items):
        with suppress(PenstockError):
            log.roll()
        count = min(count, len(log.segment_list.items) - 1)
    if count == 0:
        return []
    paths: list[str] = []
    try:
        if len(log.producers):
            count = keep_producers(log.disk, log.directory, log.segment_list.items, count, log.clock.now_ms())
        expired, kept = log.segment_list.items[:count], log.segment_list.items[count:]
        # Oldest first, so that there is never a gap.
        for segment in expired:
            paths += segment.put_aside()
            log.unsynced.drop_segment(segment)
    except OSError as error:
        raise log.storage_error(error) from error
    log.segment_list.replace(kept)
    log.reader.forget()
    drop_snapshots_below(log.disk, log.directory, kept[0].base_offset)
    log.start_offset = max(log.start_offset, kept[0].base_offset)
    # On a full disk this may fail. Older epochs do no harm, and space must be freed.
    with suppress(OSError):
        log.epochs.truncate_from_start(log.start_offset)
    return [RemovalTask(log.disk, tuple(paths))]


def _roll_by_age(log: "Log", now_ms: int) -> None:
    active = log.active
    if active.size == 0 or log.config.segment_ms < 0:
        return
    if active.created_ms is None:
        # Created before the node started: its first batch tells best when.
        header = next(active.headers_at(0), None)
        active.created_ms = now_ms if header is None or header.max_timestamp < 0 else header.max_timestamp
    if now_ms - active.created_ms >= log.config.segment_ms:
        log.roll()


def delete_before(log: "Log", offset: int, *, sync: bool) -> None:
    """See :meth:`penstock.log.log.Log.delete_before`."""
    if not log.start_offset <= offset <= log.written_offset:
        raise PenstockError(
            Reason.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} is out of range {log.start_offset} to {log.written_offset}; nothing was deleted",
        )
    if offset == log.start_offset:
        return
    log.check_usable()
    try:
        write_note(log.disk, f"{log.directory}/{START_OFFSET}", START_OFFSET_TITLE, offset, sync=sync)
    except OSError as error:
        raise log.storage_error(error) from error
    log.start_offset = offset
