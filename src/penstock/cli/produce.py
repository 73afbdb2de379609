"""``penstock produce``: records from the lines of files or stdin."""

import os
import select
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Bootstrap,
    Output,
    Timeout,
    TopicName,
    connected,
)
from penstock.cli.output import Format, Row, emit_one
from penstock.cli.progress import progress
from penstock.cli.record_json import JsonRecord, decode_record

if TYPE_CHECKING:
    from penstock.client import DeliveredBatch, Producer

READ_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 64 << 20
"""A longer line is most likely not text but a binary file."""
STDIN: Final = "-"


class CompressionChoice(StrEnum):
    """The codecs by name."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class ProduceAcks(StrEnum):
    """What to wait for, in the words of Kafka's clients and of the other APIs."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"
    NONE_BY_NAME = "none"
    LEADER_BY_NAME = "leader"


class Input(StrEnum):
    """What each line holds."""

    LINES = "lines"
    NDJSON = "ndjson"


def produce(
    topic: TopicName,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Read these files; read stdin if none is given, or for -."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Split each line into key and value at this text."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Use this key for every record.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Add a header to every record; can be repeated."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Write to this partition.  [default: by key, or in turn]"),
    ] = None,
    compression: Annotated[
        CompressionChoice, typer.Option("--compression", "-z", help="Compress batches with this codec.")
    ] = CompressionChoice.NONE,
    acks: Annotated[
        ProduceAcks,
        typer.Option("--acks", help="Wait for all in-sync replicas, for the leader (1), or not at all (0)."),
    ] = ProduceAcks.ALL,
    input_format: Annotated[
        Input,
        typer.Option("--input", "-i", help="Read values, or records as consume -o ndjson writes them."),
    ] = Input.LINES,
    show_progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Show progress.  [default: on a terminal]", show_default=False),
    ] = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Send lines as records.

    Each line of the files or stdin is a value. With --key-separator, the text before the first separator is the key;
    a line without a separator has no key.
    """
    from penstock.client import Acks, Producer
    from penstock.records.batch import Compression

    wanted = Acks[acks.name.removesuffix("_BY_NAME")]
    headers = _parse_headers(header)
    separator = _bytes_option(key_separator, "--key-separator")
    fixed_key = None if key is None else key.encode()
    sources = files or [STDIN]
    delivered: dict[int, list[int]] = {}

    def count(delivery: "DeliveredBatch") -> None:
        row = delivered.setdefault(delivery.partition, [0, delivery.base_offset, 0])
        row[0] += delivery.record_count
        row[2] = delivery.base_offset + delivery.record_count - 1

    with connected(bootstrap, timeout) as cluster:
        codec = Compression[compression.name]
        producer = Producer(cluster, acks=wanted, compression=codec, on_delivery=count)
        # Checked now: a wrong topic or a broker that is down should be reported before a line is typed.
        cluster.topic(topic, auto_create=True)
        shown = False if sources == [STDIN] and sys.stdin.isatty() else show_progress
        with producer, progress(f"to {topic}", "bytes", _total_bytes(sources), shown=shown) as bar:
            for chunk in _chunks(sources):
                for line in chunk:
                    if input_format is Input.NDJSON:
                        _send_json(producer, topic, line, partition)
                    else:
                        own_key, value = _split(line, separator, fixed_key)
                        producer.send(topic, value, key=own_key, partition=partition, headers=headers)
                bar.advance(sum(map(len, chunk)) + len(chunk))
                if _would_wait(sources):
                    producer.flush()
    _summarise(topic, producer.records_sent, delivered, output, acknowledged=wanted is not Acks.NONE)


def _chunks(sources: Sequence[str]) -> Iterator[list[bytes]]:
    """The lines, as many at a time as a read returned."""
    for source in sources:
        if source == STDIN:
            yield from _lines(sys.stdin.fileno(), "stdin")
            continue
        try:
            descriptor = os.open(source, os.O_RDONLY)
        except OSError as error:
            raise Failure(f"Cannot read {source}: {error.strerror}") from error
        try:
            yield from _lines(descriptor, source)
        finally:
            os.close(descriptor)


def _lines(descriptor: int, name: str) -> Iterator[list[bytes]]:
    # The beginning of an incomplete line is kept in pieces: joining them after every read would copy them every time.
    pieces: list[bytes] = []
    gathered = 0
    while data := os.read(descriptor, READ_BYTES):
        *lines, rest = data.split(b"\n")
        if lines:
            pieces.append(lines[0])
            lines[0] = b"".join(pieces)
            pieces, gathered = [], 0
        if rest:
            pieces.append(rest)
            gathered += len(rest)
        if gathered > LINE_BYTES_MAX or (lines and len(lines[0]) > LINE_BYTES_MAX):
            raise Failure(
                f"{name} has a line of more than {LINE_BYTES_MAX >> 20} MiB, of which nothing was sent; is it a text file?"
            )
        if lines:
            yield lines
    if pieces:
        yield [b"".join(pieces)]


def _would_wait(sources: Sequence[str]) -> bool:
    """Whether the next read of stdin would wait: then what is gathered is sent now, since the wait may be long."""
    if sources != [STDIN]:
        return False
    try:
        return not select.select([sys.stdin.fileno()], [], [], 0)[0]
    except (OSError, ValueError):
        return True


def _total_bytes(sources: Sequence[str]) -> int | None:
    if STDIN in sources:
        return None
    try:
        return sum(Path(source).stat().st_size for source in sources)
    except OSError as error:
        raise Failure(f"Cannot read {error.filename}: {error.strerror}") from error


def _split(line: bytes, separator: bytes | None, fixed_key: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return fixed_key, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (fixed_key, line)


def _send_json(producer: "Producer", topic: str, line: bytes, partition: int | None) -> None:
    if not line.strip():
        return
    try:
        record: JsonRecord = decode_record(line)
    except (msgspec.DecodeError, ValueError) as error:
        shown = line[:60].decode(errors="replace")
        raise Failure(
            f"{shown!r} is not a record: {error}; write each line as penstock consume -o ndjson does"
        ) from error
    producer.send(
        topic,
        record.value,
        key=record.key,
        partition=partition,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
    )


def _parse_headers(texts: list[str] | None) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Failure(f"--header {text!r}: write NAME=VALUE", Exit.USAGE)
        headers.append((name, value.encode()))
    return headers


def _bytes_option(text: str | None, flag: str) -> bytes | None:
    if text is None:
        return None
    # A shell makes it hard to type a tab; \t is what people write.
    value = text.replace("\\t", "\t").encode()
    if not value:
        raise Failure(f"{flag} must not be empty; write for example ':' or '\\t'", Exit.USAGE)
    return value


def _summarise(topic: str, count: int, delivered: dict[int, list[int]], output: Format, *, acknowledged: bool) -> None:
    partitions: list[Row] = [
        {
            "partition": partition,
            "records": records,
            "first_offset": first if acknowledged else None,
            "last_offset": last if acknowledged else None,
        }
        for partition, (records, first, last) in sorted(delivered.items())
    ]
    document: Row = {"topic": topic, "records": count, "partitions": partitions}
    if output is Format.TABLE:
        note(f"{'produced' if acknowledged else 'sent'} {count:,} {'record' if count == 1 else 'records'} to {topic}")
    else:
        emit_one(document, output)
