"""Columns made of headers with Arrow's kernels, without Python code per record.

``headers`` is ``list<struct<key: string, value: binary>>``, null or empty if a record has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_WHOLE_NUMBER: Final = "^[0-9]{1,18}$"
"""Eighteen digits always fit 64 bits."""


class HeaderColumns:
    """The headers of a batch, flattened once and read by name."""

    def __init__(self, headers: pa.ListArray) -> None:
        self._headers = headers
        self._rows = len(headers)
        flat = headers.flatten()
        self._keys = flat.field("key")
        self._values = flat.field("value")
        self._row_of: NDArray[np.int64] = np.asarray(pc.list_parent_indices(headers), dtype=np.int64)

    def text(self, name: str) -> pa.Array:
        """The header's value as text for each record, null without it; the last one counts if there are several."""
        is_it = pc.and_(pc.equal(self._keys, name), pc.is_valid(self._values))
        chosen = np.flatnonzero(np.asarray(pc.fill_null(is_it, False), dtype=bool))
        place = np.full(self._rows, -1, dtype=np.int64)
        # If a row occurs twice, the last assignment wins.
        place[self._row_of[chosen]] = chosen
        return as_text(self._values.take(pa.array(place, mask=place < 0)))

    def number(self, name: str, otherwise: pa.Array) -> pa.Array:
        """The header as an integer, or ``otherwise`` if it is missing or not one."""
        return _whole(self.text(name), otherwise)

    def number_if_there(self, name: str, otherwise: int) -> pa.Array:
        """The same, but null if the header is missing."""
        text = self.text(name)
        number = _whole(text, pa.repeat(pa.scalar(otherwise, pa.int64()), self._rows))
        return pc.if_else(pc.is_valid(text), number, pa.scalar(None, pa.int64()))

    def without(self, names: Iterable[str]) -> pa.ListArray:
        """The headers without those of these names; null if none is left."""
        kept = np.asarray(pc.invert(pc.is_in(self._keys, value_set=pa.array(sorted(names), pa.string()))), dtype=bool)
        counts = np.bincount(self._row_of[kept], minlength=self._rows)
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
        flat = self._headers.flatten().filter(pa.array(kept))
        return pa.ListArray.from_arrays(offsets, flat, type=self._headers.type, mask=pa.array(counts == 0))


def as_text(values: pa.Array) -> pa.Array:
    """Bytes as text, with replacement characters for what is not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        # Only headers that another program wrote: rare enough for a slow path.
        return pa.array(
            [None if each is None else each.decode(errors="replace") for each in values.to_pylist()], pa.string()
        )


def _whole(text: pa.Array, otherwise: pa.Array) -> pa.Array:
    fits = pc.fill_null(pc.match_substring_regex(text, _WHOLE_NUMBER), False)
    number = pc.if_else(fits, text, pa.scalar(None, pa.string())).cast(pa.int64())
    return pc.coalesce(number, otherwise.cast(pa.int64()))
