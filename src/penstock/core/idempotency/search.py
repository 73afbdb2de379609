"""Looking for records by their produce keys, where a crash or a failed disk left open whether they were appended.

A search goes over a stretch of one partition in small steps, so that it holds nobody up. Records whose batch is damaged are
passed over: nobody can read them, so sending them again is right.
"""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.core.idempotency.stored import Key, digest_in
from penstock.core.partitions.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, KIB
from penstock.records.batch import read_header
from penstock.records.records import Record, read_records

_STEP_BYTES: Final = 256 * KIB
"""Some milliseconds of work."""

Found = Callable[[Key, Record | None], None]
"""Told of each key, once: its record, or that there is none."""


class Search:
    """One pass over a partition for all ``wanted`` keys, each from its offset on, up to ``end_offset``."""

    def __init__(self, partition: Partition, wanted: Mapping[Key, int], end_offset: int, found: Found) -> None:
        self._partition = partition
        self.topic_id: Final = partition.topic.topic_id
        self._wanted = {key.digest: (key, offset) for key, offset in wanted.items()}
        self._offset = min(wanted.values())
        self._end_offset = end_offset
        self._found = found

    def step(self) -> bool:
        """Look at a piece; True when all keys are told of."""
        partition = self._partition
        self._offset = max(self._offset, partition.log.start_offset)
        if self._wanted and self._offset < self._end_offset and not partition.gone:
            try:
                data, next_offset = partition.read(self._offset, _STEP_BYTES)
            except PenstockError as error:
                if error.reason is not Reason.CORRUPT_RECORDS:
                    raise
                self._offset += 1
                return False
            self._look(memoryview(data))
            if next_offset > self._offset:
                self._offset = next_offset
                return False
        wanted, self._wanted = self._wanted, {}
        for key, _ in wanted.values():
            self._found(key, None)
        return True

    def give_up(self) -> list[Key]:
        """The partition cannot be read: the keys that nothing was told of, and will not be."""
        wanted, self._wanted = self._wanted, {}
        return [key for key, _ in wanted.values()]

    def _look(self, data: memoryview) -> None:
        bytes_max = self._partition.topic.config.max_message_bytes * DECOMPRESSED_RATIO_MAX
        position = 0
        while position < len(data) and self._wanted:
            end = position + read_header(data, position).size_bytes
            for record in read_records(data[position:end], bytes_max):
                if not record.headers or (digest := digest_in(record.headers)) not in self._wanted:
                    continue
                key, from_offset = self._wanted[digest]
                # Below it lies what the key was used for in an earlier window.
                if record.offset >= from_offset:
                    del self._wanted[digest]
                    self._found(key, record)
            position = end
