"""Inspect a data directory: every batch (:func:`dump`), and whether everything is sound (:func:`verify`).

Offline and read-only. Nothing is repaired here: a start of the node truncates torn ends and rebuilds indexes, and what to do
about damage in the middle is for a person to decide.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial

from penstock.log.checkpoint import load_checkpoint
from penstock.log.cleaning import load_clean_note
from penstock.log.epochs import EpochHistory
from penstock.log.files import FilePool
from penstock.log.manager import CHECKPOINT, partitions
from penstock.log.names import LEADER_EPOCHS, LOG
from penstock.log.scan import DamageError
from penstock.log.segment import IndexCheck, Segment, list_segments
from penstock.log.snapshots import load_snapshot, snapshot_offsets, snapshot_path
from penstock.ports import Disk
from penstock.records.batch import BatchHeader

Progress = Callable[[int, int], None]
"""Called with the bytes verified so far and the total."""


class Severity(Enum):
    """How bad a finding is."""

    NOTE = "note"
    """Nothing is lost, and the next start repairs it."""
    ERROR = "error"
    """Records are damaged or missing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    severity: Severity
    text: str
    position: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch with a correct CRC, or a damaged range (``fault`` describes it, and there is no header)."""

    segment: str
    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    header: BatchHeader | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """One verified file."""

    path: str
    size_bytes: int
    base_offset: int | None = None
    next_offset: int | None = None
    batches: int = 0
    records: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no record is damaged or missing."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


# Dumping.


def dump(disk: Disk, directory: str, first_offset: int = 0) -> Iterator[BatchRow]:
    """A row for every batch of one log from the one that contains ``first_offset`` on, and one for every damaged range."""
    for segment in _segments(disk, directory):
        if segment.next_offset <= first_offset:
            continue
        try:
            for row in _dump_segment(segment):
                if row.last_offset >= first_offset or row.fault is not None:
                    yield row
        finally:
            segment.close()


def _dump_segment(segment: Segment) -> Iterator[BatchRow]:
    position, offset = 0, segment.base_offset
    while position < segment.size:
        try:
            for at, header in segment.walk(position, offset, check_crc=True):
                size, last_offset = header.size_bytes, header.next_offset - 1
                yield BatchRow(segment.log_path, at, size, header.base_offset, last_offset, header)
                position, offset = at + size, header.next_offset
        except DamageError as damage:
            sound = segment.next_sound(damage.position, offset)
            end, next_offset = (segment.size, None) if sound is None else sound
            yield BatchRow(
                segment=segment.log_path,
                position=damage.position,
                size_bytes=end - damage.position,
                base_offset=offset,
                last_offset=offset if next_offset is None else next_offset - 1,
                fault=damage.why,
            )
            if sound is None:
                return
            position, offset = sound


# Verifying.


def verify(disk: Disk, data_dir: str, progress: Progress | None = None) -> Iterator[Checked]:
    """A row for every verified file in a data directory, with its findings."""
    folders = [directory for _, _, directory in partitions(disk, data_dir)]
    total = sum(segment.size for directory in folders for segment in _segments(disk, directory))
    done = 0
    checkpoint = f"{data_dir}/{CHECKPOINT}"
    load = partial(load_checkpoint, disk, checkpoint)
    yield from _verify_small(disk, checkpoint, load, "the next start scans every log")
    for directory in folders:
        for checked in verify_log(disk, directory):
            if checked.path.endswith(LOG):
                done += checked.size_bytes
                if progress is not None:
                    progress(done, total)
            yield checked


def verify_log(disk: Disk, directory: str) -> Iterator[Checked]:
    """As :func:`verify`, for one log."""
    segments = _segments(disk, directory)
    gaps_to = load_clean_note(disk, directory).touched_to
    for segment in segments:
        try:
            yield _verify_segment(segment, gaps_to, is_active=segment is segments[-1])
        finally:
            segment.close()
    epochs = f"{directory}/{LEADER_EPOCHS}"
    yield from _verify_small(
        disk, epochs, partial(EpochHistory.load, disk, epochs), "it is made again from the batches"
    )
    for snapshot in (snapshot_path(directory, offset) for offset in snapshot_offsets(disk, directory)):
        load = partial(load_snapshot, disk, snapshot)
        yield from _verify_small(disk, snapshot, load, "the log is replayed instead")


def _verify_segment(segment: Segment, gaps_to: int, *, is_active: bool) -> Checked:
    findings: list[Finding] = []
    index = IndexCheck(segment)
    batches = records = 0
    position, offset = 0, segment.base_offset
    while True:
        try:
            for at, header in segment.walk(position, offset, check_crc=True):
                batches += 1
                records += header.record_count
                index.add(at, header)
                position, offset = at + header.size_bytes, header.next_offset
        except DamageError as damage:
            sound = segment.next_sound(damage.position, offset)
            findings.append(_damage(segment, damage, offset, sound, is_active=is_active))
            if sound is not None:
                position, offset = sound
                continue
        else:
            if not is_active and offset < segment.next_offset and segment.next_offset > gaps_to:
                text = f"offsets {offset} to {segment.next_offset - 1} are missing"
                findings.append(Finding(Severity.ERROR, text, position, offset, segment.next_offset - 1))
        break
    index.finish()
    if index.wrong_places and not findings:
        text = f"the offset index has {index.wrong_places} wrong entries; it is rebuilt when it is used"
        findings.append(Finding(Severity.NOTE, text))
    if index.wrong_times and not findings:
        findings.append(Finding(Severity.NOTE, "the time index is wrong; it is rebuilt when it is used"))
    if batches and not is_active and not index.has_times:
        findings.append(Finding(Severity.NOTE, "the index is missing; it is rebuilt when it is used"))
    return Checked(segment.log_path, segment.size, segment.base_offset, offset, batches, records, tuple(findings))


def _damage(
    segment: Segment, damage: DamageError, offset: int, sound: tuple[int, int] | None, *, is_active: bool
) -> Finding:
    if sound is not None:
        text = f"{damage.why}: offsets {offset} to {sound[1] - 1} cannot be read"
        return Finding(Severity.ERROR, text, damage.position, offset, sound[1] - 1)
    left = segment.size - damage.position
    if is_active:
        text = f"{damage.why}: the last {left} bytes, from offset {offset} on; the next start removes them"
        return Finding(Severity.ERROR, text, damage.position, offset)
    text = f"{damage.why}: offsets {offset} to {segment.next_offset - 1} cannot be read"
    return Finding(Severity.ERROR, text, damage.position, offset, segment.next_offset - 1)


def _verify_small(disk: Disk, path: str, load: Callable[[], object], otherwise: str) -> Iterator[Checked]:
    """A file that is rebuilt if it is damaged."""
    if not disk.exists(path):
        return
    findings: tuple[Finding, ...] = ()
    try:
        load()
    except ValueError as error:
        findings = (Finding(Severity.NOTE, f"{error}; {otherwise}"),)
    yield Checked(path, disk.size(path), findings=findings)


def _segments(disk: Disk, directory: str) -> list[Segment]:
    """The segments of a log, with their indexes as they are on disk: nothing is rebuilt."""
    segments = list_segments(disk, FilePool(disk, 1), directory)
    for segment in segments:
        segment.set_indexes(*segment.indexes_on_disk())
    return segments
