"""Splits the bytes of a connection into lines, for JSON over TCP.

Invariant: the lines are the same however the bytes are split into calls, and at most one line of ``line_bytes_max`` is kept
between two calls. A longer line is returned once, as None, as soon as it is too long; the rest of it is skipped. Blank lines
are not returned.
"""

Line = bytes | None
"""A line without its line end; None if it was too long."""


class LineSplitter:
    """The lines of one connection."""

    __slots__ = ("_kept", "_skipping", "kept_bytes", "line_bytes_max")

    def __init__(self, line_bytes_max: int) -> None:
        assert line_bytes_max > 0
        self.line_bytes_max = line_bytes_max
        # In pieces: joining them at each call would take quadratic time.
        self._kept: list[bytes] = []
        self.kept_bytes = 0
        """Of an incomplete line."""
        self._skipping = False

    def feed(self, data: bytes) -> list[Line]:
        """The lines that end in ``data``, or become too long in it."""
        ended = data.split(b"\n")
        rest = ended.pop()
        lines: list[Line] = []
        if ended:
            if self._skipping:
                self._skipping = False
                del ended[0]
            elif self._kept:
                self._kept.append(ended[0])
                ended[0] = b"".join(self._kept)
            if len(data) + self.kept_bytes > self.line_bytes_max:
                longest = self.line_bytes_max
                lines += [
                    line if len(line) <= longest else None
                    for line in ended
                    if (line and not line.isspace()) or len(line) > longest
                ]
            else:
                lines += [line for line in ended if line and not line.isspace()]
            self._kept.clear()
            self.kept_bytes = 0
        if rest and not self._skipping:
            self._keep(rest, lines)
        return lines

    def _keep(self, rest: bytes, lines: list[Line]) -> None:
        self.kept_bytes += len(rest)
        if self.kept_bytes > self.line_bytes_max:
            self.skip()
            lines.append(None)
        else:
            self._kept.append(rest)

    def skip(self) -> None:
        """Drop the incomplete line: it counts as too long, and the rest of it is skipped."""
        self._kept.clear()
        self.kept_bytes = 0
        self._skipping = True

    def end(self) -> list[Line]:
        """The last line: it needs no line end, because no more bytes come."""
        return self.feed(b"\n") if self._kept else []
