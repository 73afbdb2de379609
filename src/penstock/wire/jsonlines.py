"""From bytes to lines: what JSON over TCP is made of.

Invariant: the lines that come out are the same however the bytes were cut on their way, and what is kept between two calls is
at most one line of ``line_bytes_max``. A longer line comes out once, as None, as soon as it is too long; the rest of it is
skipped. Lines with nothing but white space do not come out at all.
"""

from typing import Final

Line = bytes | None
"""One line without its end; None stands for one that was too long."""


class LineSplitter:
    """The lines of one connection."""

    __slots__ = ("_kept", "_line_bytes_max", "_skipping", "kept_bytes")

    def __init__(self, line_bytes_max: int) -> None:
        assert line_bytes_max > 0
        self._line_bytes_max: Final = line_bytes_max
        # In pieces: joining them at each call would take a time that grows with the square of the line.
        self._kept: list[bytes] = []
        self.kept_bytes = 0
        """Of a line that has not ended."""
        self._skipping = False

    def feed(self, data: bytes) -> list[Line]:
        """The lines that end in ``data``, or are known to be too long since."""
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
            if len(data) + self.kept_bytes > self._line_bytes_max:
                longest = self._line_bytes_max
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
        if self.kept_bytes > self._line_bytes_max:
            self.skip()
            lines.append(None)
        else:
            self._kept.append(rest)

    def skip(self) -> None:
        """Let go of what is kept: the line counts as too long, and the rest of it is skipped."""
        self._kept.clear()
        self.kept_bytes = 0
        self._skipping = True

    def end(self) -> list[Line]:
        """No more bytes come: a last line needs no end."""
        return self.feed(b"\n") if self._kept else []
