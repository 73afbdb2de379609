"""Which segments have had their time, and the task that removes them."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.log.config import NO_LIMIT, LogConfig
from penstock.log.segment import Segment
from penstock.ports import Disk
from penstock.types import NO_TIMESTAMP


def expired_count(
    segments: Sequence[Segment],
    config: LogConfig,
    now_ms: int,
    *,
    start_offset: int,
    upto_offset: int,
    archived_offset: int | None = None,
) -> int:
    """How many of the oldest segments may go; the last one of them may be the active one.

    A segment goes when it lies below ``start_offset`` as a whole (DeleteRecords), when its greatest timestamp is older than
    ``retention_ms``, or while the others without it still have ``retention_bytes``. Always from the start, and never
    anything at or above ``upto_offset``, which readers have not been shown yet. Without timestamps there is no age.
    With a tier, age and size take only what is archived: records below ``archived_offset``.
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
    """Files that nobody reads any more; removing large ones takes a while, so it is done off the event loop."""

    disk: Disk
    paths: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def run(self) -> None:
        """Remove them. After a crash half-way the next start removes the rest."""
        for directory in {os.path.dirname(path) for path in self.paths}:
            # Recovery must find these files until their new names are durable. The folder is gone if the topic was deleted.
            with suppress(FileNotFoundError):
                self.disk.sync_dir(directory)
        for path in self.paths:
            self.disk.remove(path)
        for folder in self.folders:
            self.disk.remove_tree(folder)
