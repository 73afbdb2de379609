"""A topic's own codec: the records of a batch, unchanged, in another compression.

Costs milliseconds for a large batch, so it runs off the event loop; it is a pure function of its arguments.
"""

from penstock.records.batch import Compression, read_header
from penstock.records.builder import seal
from penstock.records.records import open_records
from penstock.types import Buffer


def recompress(batch: Buffer, compression: Compression, bytes_max: int) -> bytearray:
    """The same batch in another codec: offsets, timestamps, producer and sequence stay; length, codec bits and CRC are set.

    ``bytes_max`` bounds what the records may open to (RECORDS_TOO_LARGE above it).
    """
    header = read_header(batch)
    return seal(open_records(batch, header, bytes_max), header, compression)
