"""What a topic may demand of every record, which the header alone cannot tell."""

from penstock.records.batch import BatchHeader
from penstock.records.records import open_records, read_spans
from penstock.types import Buffer


def check_keys(batch: Buffer, header: BatchHeader, bytes_max: int) -> list[tuple[int, str]]:
    """The records that a compacted topic refuses: (index in the batch, what to do about it); empty when all have keys.

    Raises CORRUPT_RECORDS or RECORDS_TOO_LARGE when the batch cannot be opened within ``bytes_max``.
    """
    return [
        (index, "a record in a compacted topic needs a key; add a key")
        for index, (_, _, _, _, _, key, _, _) in enumerate(read_spans(open_records(batch, header, bytes_max), header))
        if key is None
    ]
