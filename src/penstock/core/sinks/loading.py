"""From records back to sinks: the replay of ``__sinks``, in steps, so that a large log holds nobody up."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from penstock.core.sinks.stored import StoredSink, decode
from penstock.types import Buffer

_RECORDS_MAX: Final = 500
"""Replayed in one step: an intent may name thousands of ranges."""


class SinksLoad:
    """One replay. The last record of a sink is all that is known of it."""

    def __init__(self, records: Iterator[tuple[Buffer, Buffer | None]]) -> None:
        self._records = records
        self.found: dict[str, StoredSink] = {}
        self.strange = 0
        """Records of a later version."""

    def step(self) -> bool:
        """Replay some records; True when there are no more."""
        left = _RECORDS_MAX
        for key, value in islice(self._records, _RECORDS_MAX):
            left -= 1
            if value is None:
                self.found.pop(bytes(key).decode("utf-8", "replace"), None)
            elif (read := decode(key, value)) is None:
                self.strange += 1
            else:
                self.found[read[0]] = read[1]
        return left > 0
