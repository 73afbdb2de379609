"""``penstock log``: inspects a data directory without a broker."""

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.locks import LOCK, is_locked
from penstock.cli.options import EncryptionKeyFile, Output
from penstock.cli.output import (
    PAGE_ROWS,
    Format,
    Row,
    StreamedTable,
    as_text,
    emit,
    one_line,
    picked,
    stream_json,
    to_json,
)
from penstock.cli.places import moment, partitions_there
from penstock.cli.progress import progress

if TYPE_CHECKING:
    from penstock.cli.data_folder import PartitionFolder
    from penstock.log.inspect import BatchRow, Checked
    from penstock.ports import Disk
    from penstock.records.batch import BatchHeader
    from penstock.types import TimestampType

app = typer.Typer(help="Inspect the files of a data directory without a broker.", no_args_is_help=True)

OPENED_BYTES_MAX: Final = 1 << 30

DataDir = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Inspect this data directory.")]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", "-t", help="Inspect only this topic (name or id); can be repeated.")
]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Inspect only this partition; can be repeated.")
]
Live = Annotated[
    bool, typer.Option("--live", help="Inspect it even if a broker is using it; new records may appear damaged.")
]


@app.command("verify")
def verify(
    data_dir: DataDir = Path("data"),
    topic: Topics = None,
    partition: Partitions = None,
    live: Live = False,
    encryption_key_file: EncryptionKeyFile = None,
    show_progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Show progress.  [default: on a terminal]", show_default=False),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Check every batch and every index.

    Prints the problems found (with -o json or ndjson, all files). Exits with 1 if records are damaged or missing. The broker
    repairs problems with severity note itself when it starts.
    """
    from penstock.cli.data_folder import disk_of
    from penstock.log import inspect

    disk = disk_of(data_dir, encryption_key_file)
    folders = _chosen(disk, data_dir, topic, partition, live=live)
    chosen = (checked for folder in folders for checked in inspect.verify_log(disk, folder.path))
    files: Iterator[Checked] = chosen if topic or partition else inspect.verify(disk, str(data_dir))
    totals = _Totals()
    rows: list[Row] = []
    with progress("verifying", "bytes", _log_bytes(folders), shown=show_progress) as bar:
        for checked in files:
            row = totals.add(checked, folders)
            bar.advance(checked.size_bytes if checked.path.endswith(".log") else 0)
            if output is Format.NDJSON:
                sys.stdout.write(to_json(row) + "\n")
            elif output is Format.JSON or checked.findings:
                rows.append(row)
    if output is Format.JSON:
        emit(rows, [], output)
    elif output is Format.TABLE:
        found = [{**row, **finding} for row in rows for finding in _findings_of(row)]
        emit(
            found, ["severity", "topic", "partition", "file", "position", "first_offset", "last_offset", "text"], output
        )
    note(totals.sentence())
    if totals.errors:
        raise typer.Exit(Exit.FAILED)


@app.command("dump")
def dump(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name or id of the topic.")],
    data_dir: DataDir = Path("data"),
    partition: Partitions = None,
    start: Annotated[
        int,
        typer.Option("--from", "-f", min=0, metavar="OFFSET", help="Start with the batch that contains this offset."),
    ] = 0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Print at most N batches.")
    ] = None,
    records: Annotated[bool, typer.Option("--records", "-r", help="Also print the records of each batch.")] = False,
    wide: Annotated[bool, typer.Option("--wide", "-w", help="Show all columns (wider than 80 characters).")] = False,
    live: Live = False,
    encryption_key_file: EncryptionKeyFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Print the contents of the segments, batch by batch.

    A damaged range is a row of its own that describes the damage; the batches after it are still shown.
    """
    from penstock.cli.data_folder import disk_of

    disk = disk_of(data_dir, encryption_key_file)
    folders = _chosen(disk, data_dir, [topic], partition, live=live)
    rows = _dumped(disk, folders, start, count, with_records=records)
    if output is not Format.TABLE:
        stream_json([rows], output)
        return
    _print_batches(rows, wide=wide)


def _print_batches(rows: Iterator[Row], *, wide: bool) -> None:
    """A line for each batch; its records, if any, are indented below it."""
    columns = ["part", "offsets", "records", "bytes", "time", "codec", "fault"]
    if wide:
        columns = ["partition", "segment", "position", "size_bytes", "base_offset", "last_offset", "record_count"]
        columns += ["leader_epoch", "time", "compression", "producer_id", "base_sequence", "crc_ok", "fault"]
    left = {"offsets", "segment", "time", "codec", "compression", "crc_ok", "fault"}
    lines = StreamedTable(columns, numbers=[column for column in columns if column not in left])
    page: list[Row] = []
    for row in rows:
        page.append({**row, **_short(row), "time": _time(row["max_timestamp"])})
        records = row.get("records")
        if not records and len(page) < PAGE_ROWS:
            continue
        lines.print(page)
        page = []
        for record in records if isinstance(records, list) else []:
            sys.stdout.write(
                f"    {one_line(record['offset'])}  {one_line(record['key'])}  {one_line(record['value'])}\n"
            )
    lines.print(page)


def _short(row: Row) -> Row:
    """The cells of the usual columns, by their short names."""
    first, last = row["base_offset"], row["last_offset"]
    return {
        "part": row["partition"],
        "offsets": as_text(first) if first == last else f"{as_text(first)}-{as_text(last)}",
        "records": row["record_count"],
        "bytes": row["size_bytes"],
        "codec": row["compression"],
    }


@dataclass(slots=True)
class _Totals:
    files: int = 0
    records: int = 0
    size_bytes: int = 0
    errors: int = 0
    notes: int = 0

    def add(self, checked: "Checked", folders: list["PartitionFolder"]) -> Row:
        """Count a file; its row."""
        self.files += 1
        self.records += checked.records
        self.size_bytes += checked.size_bytes
        findings: list[Row] = [
            {
                "severity": finding.severity.value,
                **picked(finding, "text", "position", "first_offset", "last_offset"),
            }
            for finding in checked.findings
        ]
        errors = sum(finding["severity"] == "error" for finding in findings)
        self.errors += errors
        self.notes += len(findings) - errors
        path = Path(checked.path)
        folder = next((folder for folder in folders if folder.path == str(path.parent)), None)
        return {
            "file": path.name,
            "path": checked.path,
            "topic": folder.topic if folder else None,
            "partition": folder.partition if folder else None,
            **picked(checked, "size_bytes", "base_offset", "next_offset", "batches", "records", "ok"),
            "findings": findings,
        }

    def sentence(self) -> str:
        """The summary."""
        looked = f"Checked {self.files:,} files with {self.records:,} records in {self.size_bytes:,} bytes"
        if self.errors:
            problems = f"{self.errors:,} problem{'' if self.errors == 1 else 's'}"
            return f"{looked}: {problems}; records outside the damage remain readable"
        return f"{looked}: no damage" + (f", {self.notes:,} notes" if self.notes else "")


def _chosen(
    disk: "Disk", data_dir: Path, topics: list[str] | None, numbers: list[int] | None, *, live: bool
) -> list["PartitionFolder"]:
    from penstock.cli.data_folder import partition_folders

    if not data_dir.is_dir():
        raise Failure(f"Data directory {data_dir} does not exist; specify it with --data-dir", Exit.NOT_FOUND)
    if not live and is_locked(data_dir / LOCK):
        raise Failure(f"A broker is using {data_dir}; stop it, inspect a copy, or add --live")
    folders = partition_folders(disk, data_dir)
    known = {folder.topic for folder in folders}
    for name in topics or []:
        if name not in known:
            raise Failure(f"{data_dir} has no records of topic {name!r}", Exit.NOT_FOUND)
    for number in numbers or []:
        held = [folder.partition for folder in folders if not topics or folder.topic in topics]
        if number not in held:
            of = f" of {', '.join(map(repr, topics))}" if topics else ""
            raise Failure(f"{data_dir} has no partition {number}{of}; it {partitions_there(held)}", Exit.NOT_FOUND)
    return [
        folder
        for folder in folders
        if (not topics or folder.topic in topics) and (not numbers or folder.partition in numbers)
    ]


def _log_bytes(folders: list["PartitionFolder"]) -> int:
    return sum(file.stat().st_size for folder in folders for file in Path(folder.path).glob("*.log"))


def _findings_of(row: Row) -> list[Row]:
    findings = row["findings"]
    assert isinstance(findings, list)
    return findings


def _dumped(
    disk: "Disk", folders: list["PartitionFolder"], start: int, count: int | None, *, with_records: bool
) -> Iterator[Row]:
    from penstock.log import inspect

    left = count
    for folder in folders:
        for batch in inspect.dump(disk, folder.path, start):
            if left == 0:
                return
            left = None if left is None else left - 1
            row = _batch_row(batch, folder)
            yield {**row, "records": _records(disk, batch, folder)} if with_records else row


def _batch_row(batch: "BatchRow", folder: "PartitionFolder") -> Row:
    in_header = ("leader_epoch", "base_timestamp", "max_timestamp")
    of_producer = ("producer_id", "producer_epoch", "base_sequence")
    header = batch.header
    sequenced = header if header is not None and header.producer_id >= 0 else None
    return {
        **picked(folder, "topic", "partition"),
        "segment": Path(batch.segment).name,
        **picked(batch, "position", "size_bytes", "base_offset", "last_offset"),
        "record_count": header.record_count if header else 0,
        **(picked(header, *in_header) if header else dict.fromkeys(in_header)),
        "timestamp_type": _timestamp_type(header).value if header else None,
        "compression": _codec(header) if header else None,
        **(picked(sequenced, *of_producer) if sequenced else dict.fromkeys(of_producer)),
        "transactional": bool(header and header.is_transactional),
        "control": bool(header and header.is_control),
        "crc_ok": header is not None,
        "fault": batch.fault,
    }


def _timestamp_type(header: "BatchHeader") -> "TimestampType":
    from penstock.types import TimestampType

    return TimestampType.LOG_APPEND_TIME if header.is_log_append_time else TimestampType.CREATE_TIME


def _codec(header: "BatchHeader") -> str | None:
    try:
        return header.compression.name.lower()
    except ValueError:
        return None


def _records(disk: "Disk", batch: "BatchRow", folder: "PartitionFolder") -> list[Row]:
    from penstock.cli.record_json import encode_record
    from penstock.client import ConsumerRecord
    from penstock.errors import PenstockError
    from penstock.records.records import read_records

    if batch.header is None:
        return []
    with closing(disk.open(batch.segment)) as file:
        data = file.pread(batch.size_bytes, batch.position)
    kind = _timestamp_type(batch.header)
    try:
        return [
            encode_record(
                ConsumerRecord(folder.topic, folder.partition, r.offset, r.timestamp, kind, r.key, r.value, r.headers)
            )
            for r in read_records(data, OPENED_BYTES_MAX)
        ]
    except PenstockError as error:
        raise Failure(f"{batch.segment} at {batch.position}: {error.text}") from error


def _time(timestamp_ms: object) -> str | None:
    return moment(timestamp_ms) if isinstance(timestamp_ms, int) and timestamp_ms >= 0 else None
