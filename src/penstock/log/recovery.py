"""Recovery of a log when a node starts.

:func:`open_log` builds a log from its directory. If the directory is as the checkpoint says, only the end of the active segment
is checked, batch by batch from the last index row on. Otherwise, because the node was killed or lost power, :func:`recover`
first scans everything from the recovery point on: headers, checksums, order of offsets.

After the recovery point, the log is truncated at the first incomplete or damaged batch, in closed segments and in the active
one. A power failure leaves zeros, old bytes or garbage wherever pages were not written. Sound batches may follow, but nothing
after the damage was acknowledged. Before the recovery point everything was synced, so damage is kept, and reading it is
refused; the same applies to the segment of the recovery point if compaction has replaced it.
If the checkpoint is lost, it is unknown what was synced: then damage in a closed segment is kept if sound batches follow, and
only a hole (zeros, or nothing at all) truncates the log. Everything that is truncated or damaged is reported.

What a crash interrupted is completed or undone first: ``.cleaned`` files are removed; a ``.swap`` file, which is whole and
synced, replaces the segments that it was made from; a ``.deleted`` segment is removed with all before it, or restored if no
segment follows it.
"""

from penstock.log.checkpoint import NO_PRODUCERS, SNAPSHOT_UNKNOWN, RecoveryPoint
from penstock.log.cleaning import end_clean_note, load_clean_note
from penstock.log.config import LogConfig
from penstock.log.cutting import CutNote
from penstock.log.environment import LogEnvironment
from penstock.log.epochs import EpochHistory
from penstock.log.log import Log
from penstock.log.names import (
    CLEANED,
    CUT,
    DELETED,
    LEADER_EPOCHS,
    LOG,
    SEGMENT_SUFFIXES,
    START_OFFSET,
    START_OFFSET_TITLE,
    TEMPORARY,
    folders_above,
    offset_of,
    segment_stem,
    swap_range,
)
from penstock.log.notes import read_note, write_note
from penstock.log.scan import DamageError
from penstock.log.segment import OFFSET_LIMIT, Segment, Segments, list_segments, segment_bases
from penstock.log.snapshots import drop_snapshots_above, load_producers, snapshot_path, write_snapshot
from penstock.log.tail import SegmentTail, check_end, index_tail
from penstock.ports import Disk, File
from penstock.types import NO_EPOCH

FEW_ROWS = 32
_HOLE_BYTES = 64


def open_log(environment: LogEnvironment, directory: str, config: LogConfig, point: RecoveryPoint | None = None) -> Log:
    """The log in ``directory``, recovered if it does not match ``point``; an empty log if there is none."""
    disk = environment.disk
    if not matches(disk, directory, point):
        point = recover(environment, directory, config.index_interval_bytes, point)
    segments = list_segments(disk, environment.files, directory)
    last_epoch = NO_EPOCH
    if segments:
        last_epoch = _settle_tail(environment, segments[-1], config.index_interval_bytes, point)
    else:
        segments.append(Segment(disk, environment.files, directory, 0, size=0, next_offset=0))
    next_offset = segments[-1].next_offset
    drop_snapshots_above(disk, directory, next_offset)
    listed = Segments(segments)
    start_offset = _start_offset(disk, directory, segments)
    end_clean_note(disk, directory, next_offset)
    return Log(
        environment,
        directory,
        config,
        listed,
        start_offset,
        # Epochs below the start offset are forgotten, although their batches may still be in a segment.
        epochs=_load_epochs(environment, directory, listed, last_epoch if start_offset < next_offset else NO_EPOCH),
        producers=load_producers(disk, directory, listed, point, next_offset, environment.clock.now_ms()),
    )


def matches(disk: Disk, directory: str, point: RecoveryPoint | None) -> bool:
    """Whether the log ends as ``point`` says, so that nothing needs to be scanned."""
    names = disk.listdir(directory)
    if not names:
        return True
    if point is None or CUT in names:
        return False
    active = -1
    for name in names:
        base = offset_of(name, LOG)
        if base is not None:
            active = max(active, base)
        elif name.endswith((DELETED, CLEANED, TEMPORARY)) or swap_range(name) is not None:
            return False
    return active == point.segment_base and disk.size(segment_stem(directory, active) + LOG) == point.position


# Scanning.


def recover(
    environment: LogEnvironment,
    directory: str,
    interval_bytes: int,
    point: RecoveryPoint | None,
    *,
    synced: bool = False,
) -> RecoveryPoint:
    """Make the log sound and durable from the recovery point on; returns the point at its new end.

    With ``synced`` it is already durable, and only changes made here have to be synced.
    """
    disk = environment.disk
    tidy(disk, directory)
    note = CutNote(disk, directory)
    cut = note.read()
    if cut is not None:
        drop_snapshots_above(disk, directory, cut[1])
        if point is not None and cut[1] < point.offset:
            point = RecoveryPoint(cut[0], cut[1], cut[2], SNAPSHOT_UNKNOWN)
    elif note.is_there:
        # The log was cut at an unknown offset: the checkpoint may describe batches that are gone.
        point = None
    segments = list_segments(disk, environment.files, directory)
    if not segments:
        return RecoveryPoint(0, 0, 0, NO_PRODUCERS)
    first, trusted = _where_to_begin(segments, point)
    trusted_offset = segments[first].base_offset if point is None else point.offset
    tail = SegmentTail(0, segments[0].base_offset, NO_EPOCH, None)
    epochs: dict[int, int] = {}
    gaps_to = load_clean_note(disk, directory).touched_to
    if point is not None and _was_rewritten(segments[first], point, gaps_to):
        trusted, trusted_offset = segments[first].size, segments[first].next_offset
    for number in range(first, len(segments)):
        segment = segments[number]
        if number < len(segments) - 1:
            tail = _scan_closed(environment, segment, interval_bytes, trusted, trusted_offset, epochs)
            if tail.damage is None and tail.next_offset < segment.next_offset and segment.next_offset > gaps_to:
                lost = f"offsets {tail.next_offset} to {segment.next_offset - 1} are missing"
                tail = tail._replace(damage=DamageError(tail.end, lost))
        else:
            tail = index_tail(segment, interval_bytes, trusted, trusted_offset, epochs)
        trusted = 0
        if not synced:
            segment.opened().sync()
        if tail.damage is not None:
            _cut_at(environment, segments, number, tail)
            break
        if number == len(segments) - 1:
            segment.next_offset = tail.next_offset
    _seal_closed(segments[max(first - 1, 0) : -1])
    _flush_index(environment, segments[-1], tail)
    if tail.damage is not None or not synced:
        disk.sync_dir(directory)
    if not synced:
        _sync_names_above(environment, directory)
    active = segments[-1]
    next_offset = active.next_offset
    _bring_epochs_up(environment, directory, epochs, next_offset)
    snapshot_offset = _bring_snapshot_up(environment, directory, Segments(segments), point, next_offset)
    for segment in segments:
        segment.close()
    return RecoveryPoint(active.base_offset, next_offset, active.size, snapshot_offset)


def _seal_closed(segments: list[Segment]) -> None:
    """A crash may have come before the sync that seals a closed segment, even if its bytes were synced while it was active."""
    for segment in segments:
        file = segment.opened()
        if file.seal():
            file.sync()


def _sync_names_above(environment: LogEnvironment, directory: str) -> None:
    """A crash may have come before the first sync of the log, which makes the folder's own name durable."""
    for folder in folders_above(directory):
        if folder not in environment.synced_dirs:
            environment.disk.sync_dir(folder)
            environment.synced_dirs.add(folder)


def tidy(disk: Disk, directory: str) -> None:
    """Complete or undo what a crash interrupted."""
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        if name.endswith((CLEANED, TEMPORARY)):
            disk.remove(path)
            continue
        swapped = swap_range(name)
        if swapped is None:
            continue
        # The indexes of what it replaces would point into the wrong file.
        for base in segment_bases(disk, directory):
            if swapped[0] <= base < swapped[1]:
                stem = segment_stem(directory, base)
                for suffix in SEGMENT_SUFFIXES:
                    if suffix != LOG or base != swapped[0]:
                        disk.remove(stem + suffix)
        # If the rename survived a power failure and the removals did not, segments would overlap.
        disk.sync_dir(directory)
        disk.rename(path, segment_stem(directory, swapped[0]) + LOG)
        disk.sync_dir(directory)
    # A compacted segment may have been dropped since.
    _drop_deleted(disk, directory)


def _drop_deleted(disk: Disk, directory: str) -> None:
    """Remove the ``.deleted`` segments and those before the last of them: retention dropped them with it.

    A power failure may keep only some of these renames, and the gap would look like lost records. It may also lose the name of
    the segment that follows: then the last one is restored, because otherwise the end of the log would be unknown.
    """
    deleted = [name for name in disk.listdir(directory) if name.endswith(DELETED)]
    if not deleted:
        return
    dropped = max((base for name in deleted if (base := offset_of(name, LOG + DELETED)) is not None), default=-1)
    bases = segment_bases(disk, directory)
    for base in bases:
        if base < dropped:
            for suffix in SEGMENT_SUFFIXES:
                disk.remove(segment_stem(directory, base) + suffix)
    # Until this is durable the ``.deleted`` files must be kept: only they show that no records are missing.
    disk.sync_dir(directory)
    if max(bases, default=-1) < dropped:
        path = segment_stem(directory, dropped) + LOG
        disk.rename(path + DELETED, path)
        disk.sync_dir(directory)
    for name in deleted:
        disk.remove(f"{directory}/{name}")


def _where_to_begin(segments: list[Segment], point: RecoveryPoint | None) -> tuple[int, int]:
    """Number of the first segment to scan, and up to which position its index can be trusted."""
    if point is None:
        return 0, 0
    number = max((n for n, segment in enumerate(segments) if segment.base_offset <= point.offset), default=0)
    segment = segments[number]
    if segment.base_offset == point.segment_base and point.position <= segment.size:
        return number, point.position
    return number, 0


def _was_rewritten(segment: Segment, point: RecoveryPoint, touched_to: int) -> bool:
    """Whether compaction has since replaced the segment of the recovery point. Its files are synced before they are installed."""
    moved = segment.base_offset != point.segment_base or segment.size < point.position
    return moved and segment.base_offset < point.offset and segment.next_offset <= touched_to


def _scan_closed(
    environment: LogEnvironment,
    segment: Segment,
    interval_bytes: int,
    trusted: int,
    trusted_offset: int,
    epochs: dict[int, int],
) -> SegmentTail:
    """Check a closed segment from the last index row before ``trusted`` on. Damage in the result means: truncate there."""
    # Its index may not have been synced when the node stopped: zeros in it could make the segment look old.
    segment.check_indexes(interval_bytes)
    row = segment.offsets.floor_by_value(trusted)
    position, offset = 0, segment.base_offset
    if row is not None and segment.row_is_true(*row):
        position, offset = row[1], segment.base_offset + row[0]
    epoch = NO_EPOCH
    while True:
        file = segment.opened()
        try:
            for at, header in segment.walk(position, offset, check_crc=True):
                position, offset, epoch = at + header.size_bytes, header.next_offset, header.leader_epoch
                epochs.setdefault(epoch, header.base_offset)
        except DamageError as damage:
            if environment.has_checkpoint and damage.position >= trusted:
                return SegmentTail(position, offset, epoch, damage)
            sound = None if _is_hole(file, damage.position) else segment.next_sound(damage.position, offset)
            if sound is None and damage.position < trusted:
                sound = trusted, trusted_offset
            if sound is None:
                return SegmentTail(position, offset, epoch, damage)
            environment.report(
                f"{segment.log_path}: {damage}; offsets {offset} to {sound[1] - 1} cannot be read; the rest is kept"
            )
            position, offset = sound
            continue
        return SegmentTail(position, offset, epoch, None)


def _is_hole(file: File, position: int) -> bool:
    """Whether nothing was ever written here: a power failure leaves zeros where bytes were not written."""
    return not any(file.pread(_HOLE_BYTES, position))


def _cut_at(environment: LogEnvironment, segments: list[Segment], number: int, tail: SegmentTail) -> None:
    """Truncate segment ``number`` to its sound part and remove all later segments."""
    segment = segments[number]
    later = segments[number + 1 :]
    environment.report(
        f"{segment.log_path}: {tail.damage}; the log was truncated there: {segment.size - tail.end} bytes and "
        f"{len(later)} later segments were removed, the next offset is {tail.next_offset}"
    )
    # In reverse order, so that another crash leaves a log without gaps.
    for gone in reversed(later):
        gone.remove()
    del segments[number + 1 :]
    cut_segment(segment, tail)


def _flush_index(environment: LogEnvironment, segment: Segment, tail: SegmentTail) -> None:
    if segment.offsets.unflushed_rows < FEW_ROWS and not tail.skipped_damage:
        # Scanning the batches again is cheaper than a file.
        return
    try:
        segment.flush_indexes()
    except OSError as error:
        # The log must be readable even if the disk is full.
        environment.report(f"{segment.stem}: the index could not be written ({error}); it is rebuilt when needed")


def cut_segment(segment: Segment, tail: SegmentTail) -> None:
    """Keep only the sound part; durable when this returns."""
    file = segment.opened()
    file.truncate(tail.end)
    file.sync()
    segment.size = segment.synced_size = tail.end
    segment.next_offset = tail.next_offset
    segment.offsets.cut_from_value(tail.end)
    segment.times.cut_from_value(tail.next_offset - segment.base_offset)


def _bring_epochs_up(environment: LogEnvironment, directory: str, found: dict[int, int], next_offset: int) -> None:
    path = f"{directory}/{LEADER_EPOCHS}"
    try:
        history = EpochHistory.load(environment.disk, path)
    except ValueError:
        # Opening the log finds the same, and rebuilds the file from all batches.
        return
    history.truncate_from_end(next_offset + 1)
    for epoch, offset in found.items():
        history.assign(epoch, offset)


def _bring_snapshot_up(
    environment: LogEnvironment, directory: str, segments: Segments, point: RecoveryPoint | None, next_offset: int
) -> int:
    """Write a snapshot at the new end, so that opening the log has nothing to replay; returns its offset."""
    drop_snapshots_above(environment.disk, directory, next_offset)
    producers = load_producers(environment.disk, directory, segments, point, next_offset, environment.clock.now_ms())
    if not len(producers):
        return NO_PRODUCERS
    if producers.snapshot_offset == SNAPSHOT_UNKNOWN:
        try:
            write_snapshot(environment.disk, snapshot_path(directory, next_offset), producers.encode())
        except OSError:
            return SNAPSHOT_UNKNOWN
        return next_offset
    return producers.snapshot_offset


# Opening.


def _settle_tail(
    environment: LogEnvironment, segment: Segment, interval_bytes: int, point: RecoveryPoint | None
) -> int:
    """Check the end of the active segment and truncate it where it is not sound; returns the last batch's epoch."""
    index_tail(segment, interval_bytes, segment.size, segment.base_offset if point is None else point.offset, {})
    tail = check_end(segment)
    if tail.damage is not None:
        environment.report(
            f"{segment.log_path}: {tail.damage}; the log was truncated there: {segment.size - tail.end} bytes were removed, the next offset is {tail.next_offset}"
        )
        cut_segment(segment, tail)
    segment.next_offset = tail.next_offset
    # From now on only this process writes after the part just checked.
    segment.verified_to = OFFSET_LIMIT
    return tail.last_epoch


def _start_offset(disk: Disk, directory: str, segments: list[Segment]) -> int:
    note = read_note(disk, f"{directory}/{START_OFFSET}", START_OFFSET_TITLE, 1)
    kept, end = segments[0].base_offset, segments[-1].next_offset
    if note is None:
        return kept
    if note[0] > end:
        # The end was lost after its records had been deleted: records appended there instead are not deleted.
        write_note(disk, f"{directory}/{START_OFFSET}", START_OFFSET_TITLE, end)
    return min(max(note[0], kept), end)


def _load_epochs(environment: LogEnvironment, directory: str, segments: Segments, last_epoch: int) -> EpochHistory:
    path = f"{directory}/{LEADER_EPOCHS}"
    next_offset = segments.items[-1].next_offset
    try:
        history = EpochHistory.load(environment.disk, path)
        if last_epoch == NO_EPOCH or history.epoch_at(next_offset - 1) == last_epoch:
            return history
        found = "does not contain the epoch of the last batch"
    except ValueError as error:
        found = str(error)
    environment.report(f"{path}: {found}; it is rebuilt from the batches")
    headers = segments.headers_from(segments.items[0].base_offset)
    return EpochHistory.rebuild(
        environment.disk, path, ((header.leader_epoch, header.base_offset) for header in headers)
    )
