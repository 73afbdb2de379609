"""A cache of the records that queues deliver, with one limit for all queues.

Records are delivered in order, so a read for one record also serves the following ones, in all groups. Only committed records are read.
A piece never changes, because the record at an offset never changes.
"""

from bisect import bisect_left, bisect_right
from itertools import islice
from typing import Final

from penstock.core.partitions.replica import Replica
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, KIB, MIB
from penstock.records.batch import CONTROL_BIT, read_header
from penstock.records.records import Headers, Record, read_records

NOT_HERE: Final = frozenset(
    {Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE, Reason.COORDINATOR_LOAD_IN_PROGRESS}
)
"""Temporary reasons why records of a cluster cannot be read on this node."""
CACHE_BYTES_MAX: Final = 64 * MIB
PIECES_MAX: Final = 8192
"""Single records are a piece each, which costs more than the record, and makes the search for the oldest piece slower."""
_READ_BYTES: Final = 64 * KIB
_PIECE_BYTES_MAX: Final = 8 * MIB
_OPENED_AT_ONCE: Final = 64
_RECORD_BYTES: Final = 260
"""The memory of a record besides its key and value."""


_HEADER_BYTES: Final = 200
"""The memory of a header besides its name and value."""


class Piece:
    """The records of a range of offsets: offsets from ``first`` to ``next_offset`` that are not in ``records`` do not exist."""

    __slots__ = ("first", "next_offset", "offsets", "records", "size_bytes", "source")

    def __init__(self, source: Replica, first: int, next_offset: int, records: list[Record]) -> None:
        self.source: Final = source
        self.first: Final = first
        self.next_offset: Final = next_offset
        self.records: Final = records
        # Without gaps, the position of a record follows from its offset.
        dense = len(records) == next_offset - first
        self.offsets: Final = None if dense else [record.offset for record in records]
        self.size_bytes: Final = _size(records)

    def index(self, offset: int) -> int:
        """The position in ``records`` of the first one at or after ``offset``."""
        return offset - self.first if self.offsets is None else bisect_left(self.offsets, offset)


class RecordCache:
    """The pieces of all queues; the least recently used one is dropped first."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pieces: dict[Piece, None] = {}
        self._by_source: dict[Replica, list[Piece]] = {}

    def piece(self, source: Replica, offset: int) -> Piece | None:
        """The piece with ``offset``; None before the start and from the end on. PenstockError if it cannot be read."""
        if not source.log.start_offset <= offset < source.high_watermark:
            return None
        pieces = self._by_source.get(source)
        if pieces:
            at = bisect_right(pieces, offset, key=_first) - 1
            if at >= 0 and offset < pieces[at].next_offset:
                piece = pieces[at]
                # The dict's order is the order of use.
                del self._pieces[piece]
                self._pieces[piece] = None
                return piece
        return self._read(source, offset)

    def record(self, source: Replica, offset: int) -> Record | None:
        """One record; None if there is none at this offset."""
        piece = self.piece(source, offset)
        if piece is None:
            return None
        at = piece.index(offset)
        if at < len(piece.records) and piece.records[at].offset == offset:
            return piece.records[at]
        return None

    def forget(self, source: Replica) -> None:
        """Drop the pieces of a partition."""
        for piece in self._by_source.pop(source, ()):
            self._bytes -= piece.size_bytes
            del self._pieces[piece]

    def _read(self, source: Replica, offset: int) -> Piece:
        data, next_offset = source.read(offset, _READ_BYTES)
        if not data:
            # It is committed, and this node does not have it yet: that is not a gap without records.
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE,
                f"{source.topic.name}/{source.index}@{offset} has not been copied to this node yet",
            )
        bytes_max = source.topic.config.max_message_bytes * DECOMPRESSED_RATIO_MAX
        records, next_offset = _open(memoryview(data), offset, next_offset, bytes_max)
        # The first batch may begin before the requested offset; those records are kept too.
        first = min(offset, records[0].offset) if records else offset
        piece = Piece(source, first, max(next_offset, offset + 1), records)
        self._keep(piece)
        return piece

    def _keep(self, piece: Piece) -> None:
        pieces = self._by_source.setdefault(piece.source, [])
        at = bisect_right(pieces, piece.first, key=_first)
        pieces.insert(at, piece)
        self._pieces[piece] = None
        self._bytes += piece.size_bytes
        while (self._bytes > self._bytes_max or len(self._pieces) > PIECES_MAX) and len(self._pieces) > 1:
            oldest = next(iter(self._pieces))
            del self._pieces[oldest]
            self._bytes -= oldest.size_bytes
            siblings = self._by_source[oldest.source]
            siblings.remove(oldest)
            if not siblings:
                del self._by_source[oldest.source]


def _open(view: memoryview, offset: int, next_offset: int, bytes_max: int) -> tuple[list[Record], int]:
    """The records of the batches in ``view`` from ``offset`` on, perhaps some before it, and the offset after them.

    That is ``next_offset``, unless there are more records than a piece may have, or a later batch cannot be decoded. PenstockError if
    the first batch cannot be decoded.
    """
    records: list[Record] = []
    size = position = 0
    while position < len(view):
        header = read_header(view, position)
        end = position + header.size_bytes
        opened = iter(()) if header.attributes & CONTROL_BIT else read_records(view[position:end], bytes_max)
        try:
            while some := list(islice(opened, _OPENED_AT_ONCE)):
                records += some
                size += _size(some)
                if size > _PIECE_BYTES_MAX:
                    # A compressed kilobyte may contain a million records: not all are kept at once.
                    if some[-1].offset >= offset:
                        return records, some[-1].offset + 1
                    records.clear()
                    size = 0
        except PenstockError:
            if header.base_offset <= offset:
                raise
            return records[: bisect_left(records, header.base_offset, key=_offset)], header.base_offset
        position = end
    return records, next_offset


def _size(records: list[Record]) -> int:
    return sum(
        _RECORD_BYTES + len(value or b"") + len(key or b"") + (_headers_size(headers) if headers else 0)
        for _, _, key, value, headers in records
    )


def _headers_size(headers: Headers) -> int:
    return sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)


def _first(piece: Piece) -> int:
    return piece.first


def _offset(record: Record) -> int:
    return record.offset
