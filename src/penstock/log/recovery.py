"""Finding out what a log holds when a node starts.

:func:`open_log` builds a log from its folder: it tidies what a crash interrupted, checks the end of the active segment batch
by batch from the last index row on, and cuts what is torn or damaged there.
"""

from penstock.log.config import LogConfig
from penstock.log.epochs import EpochHistory
from penstock.log.files import FilePool
from penstock.log.log import Log
from penstock.log.names import LEADER_EPOCHS, LOG, offset_of
from penstock.log.producer_state import ProducerStates
from penstock.log.scan import DamageError, walk
from penstock.log.segment import IndexBuilder, Segment
from penstock.ports import Clock, Disk, Report


def open_log(*, disk: Disk, directory: str, config: LogConfig, files: FilePool, clock: Clock, report: Report) -> Log:
    """The log in ``directory``; an empty one when there is none."""
    bases = [base for name in disk.listdir(directory) if (base := offset_of(name, LOG)) is not None]
    segments = []
    for number, base in enumerate(bases):
        size = disk.size(f"{directory}/{base:020d}{LOG}")
        next_offset = bases[number + 1] if number + 1 < len(bases) else 2**63 - 1
        segments.append(Segment(disk, files, directory, base, size=size, next_offset=next_offset))
    if segments:
        check_tail(segments[-1], config.index_interval_bytes, report)
    else:
        segments.append(Segment(disk, files, directory, 0, size=0, next_offset=0))
    epochs = EpochHistory.load(disk, f"{directory}/{LEADER_EPOCHS}")
    producers = ProducerStates()
    now_ms = clock.now_ms()
    for segment in segments:
        if not segment.size:
            continue
        for _, header in walk(
            segment.opened(),
            0,
            segment.size,
            offset_min=segment.base_offset,
            offset_limit=segment.next_offset,
            check_crc=False,
        ):
            if header.producer_id >= 0:
                producers.update(header, header.base_offset, now_ms)
    return Log(
        disk=disk,
        directory=directory,
        config=config,
        files=files,
        clock=clock,
        report=report,
        segments=segments,
        start_offset=segments[0].base_offset,
        epochs=epochs,
        producers=producers,
    )


def check_tail(segment: Segment, interval_bytes: int, report: Report) -> None:
    """Walk from the last index row to the end, and cut the file where a batch is not sound."""
    last = segment.offsets.last()
    position, offset_min = (0, segment.base_offset) if last is None else (last[1], segment.base_offset + last[0])
    builder = IndexBuilder(segment, interval_bytes)
    end, next_offset = position, offset_min
    try:
        for at, header in walk(
            segment.opened(),
            position,
            segment.size,
            offset_min=offset_min,
            offset_limit=segment.next_offset,
            check_crc=True,
        ):
            builder.add(at, header.base_offset, header.max_timestamp)
            end, next_offset = at + header.size_bytes, header.next_offset
    except DamageError as damage:
        report(f"{segment.log_path}: {damage}; {segment.size - end} bytes from offset {next_offset} on were cut")
        segment.opened().truncate(end)
        segment.opened().sync()
        segment.size = segment.synced_size = end
    segment.next_offset = next_offset
    builder.finish()
    segment.verified_from, segment.verified_to = position, 2**63
