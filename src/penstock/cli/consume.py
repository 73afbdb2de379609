"""``penstock consume`` and ``penstock tail``: records to stdout.

``consume`` reads from a position to the end (where the end is when it is reached) and stops; ``tail`` starts at the end and
follows the topic. ``--timeout`` is how long to wait for another record at the end: 0 for consume, forever for tail.
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import BOOTSTRAP_DEFAULT, TIMEOUT_S_DEFAULT, Bootstrap, Timeout, TopicName, connected
from penstock.cli.output import Format, Row, StreamedTable, stream_json
from penstock.cli.places import moment, parse_place, partitions_there, resolve
from penstock.cli.progress import ProgressReporter, progress
from penstock.text import text_of

if TYPE_CHECKING:
    from penstock.client import Cluster, ConsumerRecord, TopicPartition

POLL_MS: Final = 500
FOREVER_S: Final = float("inf")

Batches = Generator[list["ConsumerRecord"], None, None]
"""Records as they arrive, some at a time."""


class RecordFormat(StrEnum):
    """How records are printed."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"


class RecordSource(Protocol):
    """What is read: given partitions, or those assigned to a member of a group."""

    @property
    def positions(self) -> Mapping["TopicPartition", int]: ...

    @property
    def high_watermarks(self) -> Mapping["TopicPartition", int]: ...

    def poll(self, timeout_ms: int) -> list["ConsumerRecord"]: ...

    def seek(self, place: "TopicPartition", offset: int) -> None: ...


From = Annotated[
    str | None,
    typer.Option(
        "--from", "-f", metavar="PLACE", help="Start at earliest, latest, an offset, or a time (ISO, or milliseconds)."
    ),
]
Last = Annotated[int | None, typer.Option("--last", "-l", min=1, metavar="N", help="Start with the last N records.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Read only this partition; can be repeated.")
]
Group = Annotated[
    str | None,
    typer.Option("--group", "-g", help="Read as a member of this group: continue at its offsets, and commit."),
]
Count = Annotated[int | None, typer.Option("--count", "-n", min=0, metavar="N", help="Stop after N records.")]
Wait = Annotated[
    float | None,
    typer.Option(
        "--timeout", "-t", min=0, metavar="SECONDS", help="Stop when no record arrives for this long at the end."
    ),
]
KeySeparator = Annotated[
    str | None,
    typer.Option("--key-separator", "-K", metavar="TEXT", help="Print key, this text, and value (text output only)."),
]
RecordOutput = Annotated[
    RecordFormat, typer.Option("--output", "-o", help="Print values as lines of text, a table, or records as JSON.")
]


def consume(
    topic: TopicName,
    start: From = None,
    last: Last = None,
    partition: Partitions = None,
    group: Group = None,
    count: Count = None,
    wait: Wait = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Follow the topic at its end, as tail does.")] = False,
    key_separator: KeySeparator = None,
    output: RecordOutput = RecordFormat.TEXT,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Print the records of a topic.

    Starts at the earliest record, or with --group at the committed offsets, and stops at the end.
    """
    wait_s = wait if wait is not None else FOREVER_S if follow else 0.0
    wanted = _Query(topic, start or "earliest", last, partition or [], group, count, wait_s)
    _run(wanted, output, key_separator, bootstrap, timeout)


def tail(
    topic: TopicName,
    start: From = None,
    last: Last = None,
    partition: Partitions = None,
    group: Group = None,
    count: Count = None,
    wait: Wait = None,
    key_separator: KeySeparator = None,
    output: RecordOutput = RecordFormat.TEXT,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Print records as they arrive.

    With --last N, prints the last N existing records first.
    """
    wait_s = FOREVER_S if wait is None else wait
    wanted = _Query(topic, start or "latest", last, partition or [], group, count, wait_s)
    _run(wanted, output, key_separator, bootstrap, timeout)


@dataclass(frozen=True, slots=True)
class _Query:
    topic: str
    start: str
    last: int | None
    partitions: list[int]
    group: str | None
    count: int | None
    wait_s: float


def _run(wanted: _Query, output: RecordFormat, key_separator: str | None, bootstrap: str, timeout_s: float) -> None:
    if wanted.group is not None and (wanted.partitions or wanted.last is not None):
        raise Failure(
            "--group cannot be combined with --partition and --last: the group assigns the partitions", Exit.USAGE
        )
    with connected(bootstrap, timeout_s) as cluster:
        batches = _partition_batches(cluster, wanted) if wanted.group is None else _group_batches(cluster, wanted)
        # On a terminal the records themselves show the progress.
        shown = sys.stderr.isatty() and not sys.stdout.isatty()
        with closing(batches), progress(f"from {wanted.topic}", "records", shown=shown) as bar:
            _print(_counted(batches, bar), output, key_separator)


def _counted(batches: Batches, bar: ProgressReporter) -> Batches:
    for batch in batches:
        yield batch
        bar.advance(len(batch))


def _partition_batches(cluster: "Cluster", wanted: _Query) -> Batches:
    from penstock.client import Consumer, OutOfRange, watermarks

    topic = wanted.topic
    known = [partition.index for partition in cluster.topic(topic).partitions]
    for number in wanted.partitions:
        if number not in known:
            raise Failure(f"Topic {topic!r} has no partition {number}: it {partitions_there(known)}", Exit.NOT_FOUND)
    places = [(topic, number) for number in sorted(set(wanted.partitions or known))]
    # Retention may delete the records at the position while they are read; then the next ones are wanted.
    consumer = Consumer(cluster, out_of_range=OutOfRange.EARLIEST)
    left = wanted.count
    if wanted.last is None:
        consumer.assign(resolve(cluster, places, parse_place(wanted.start)))
    else:
        bounds = watermarks(cluster, places)
        consumer.assign({place: max(first, end - wanted.last) for place, (first, end) in bounds.items()})
        there = _read_until(consumer, {place: end for place, (_, end) in bounds.items()})
        there = sorted(there, key=lambda record: record.timestamp_ms)[-wanted.last :][:left]
        yield there
        left = None if left is None else left - len(there)
    for batch in _until_idle(consumer, wanted.wait_s, left):
        yield batch[:left]
        left = None if left is None else max(0, left - len(batch))


def _group_batches(cluster: "Cluster", wanted: _Query) -> Batches:
    """Commits exactly what was printed: a batch counts once the next one is requested."""
    from penstock.client import At, GroupConsumer

    starts = {"earliest": At.EARLIEST, "latest": At.LATEST}
    assert wanted.group is not None
    if wanted.start not in starts:
        raise Failure(
            f"--from {wanted.start!r}: with --group, write earliest or latest, which apply if the group has no offsets yet. "
            "To move a group, use penstock group reset",
            Exit.USAGE,
        )
    cluster.topic(wanted.topic)
    member = GroupConsumer(cluster, wanted.group, [wanted.topic], start=starts[wanted.start])
    left = wanted.count
    try:
        for batch in _until_idle(member, wanted.wait_s, left):
            yield batch[:left]
            if left is not None:
                for record in reversed(batch[left:]):
                    member.seek((record.topic, record.partition), record.offset)
                left = max(0, left - len(batch))
    except GeneratorExit:
        member.close(commit=False)
        raise
    finally:
        member.close()


def _read_until(consumer: RecordSource, ends: Mapping["TopicPartition", int]) -> list["ConsumerRecord"]:
    """The records below the given ends; later ones are left for later."""
    found: list[ConsumerRecord] = []
    while any(consumer.positions[place] < end for place, end in ends.items()):
        found += consumer.poll(POLL_MS)
    there = [record for record in found if record.offset < ends[record.topic, record.partition]]
    for place, end in ends.items():
        consumer.seek(place, end)
    return there


def _until_idle(source: RecordSource, wait_s: float, count: int | None) -> Batches:
    """Records until all partitions are at their ends and none came for ``wait_s``, or ``count`` is reached."""
    since = monotonic()
    while count is None or count > 0:
        left_ms = (since + wait_s - monotonic()) * 1000
        records = source.poll(int(max(0.0, min(left_ms, POLL_MS))))
        if records:
            yield records
            since = monotonic()
            count = None if count is None else count - len(records)
        elif _at_end(source) and monotonic() - since >= wait_s:
            return


def _at_end(source: RecordSource) -> bool:
    ends = source.high_watermarks
    return all(place in ends and position >= ends[place] for place, position in source.positions.items())


def _print(batches: Batches, output: RecordFormat, key_separator: str | None) -> None:
    """Print each batch as soon as it arrives."""
    if output is RecordFormat.TEXT:
        _print_text(batches, None if key_separator is None else key_separator.replace("\\t", "\t").encode())
    elif output is RecordFormat.TABLE:
        _print_table(batches)
    else:
        from penstock.cli.record_json import encode_record

        stream_json((map(encode_record, batch) for batch in batches), Format(output.value))


def _print_text(batches: Batches, separator: bytes | None) -> None:
    def line(record: "ConsumerRecord") -> bytes:
        value = (record.value or b"") + b"\n"
        return value if separator is None or record.key is None else record.key + separator + value

    for batch in batches:
        sys.stdout.buffer.writelines(map(line, batch))
        sys.stdout.buffer.flush()


def _print_table(batches: Batches) -> None:
    lines = StreamedTable(["partition", "offset", "time", "key", "value", "headers"], numbers=["partition", "offset"])
    for batch in batches:
        lines.print([_row(record) for record in batch])
    if not lines.count:
        note("no records")


def _row(record: "ConsumerRecord") -> Row:
    headers = {name: None if value is None else value.decode(errors="replace") for name, value in record.headers}
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": moment(record.timestamp_ms),
        "key": text_of(record.key)[0],
        "value": text_of(record.value)[0],
        "headers": headers,
    }
