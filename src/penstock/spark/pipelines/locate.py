"""The line of every key in a TOML text, which ``tomllib`` does not provide.

The text is valid TOML, so the scanner only finds positions. A path is ``("steps", 0, "sql")``: names of keys, and numbers for the items of
an array.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

Path = tuple[str | int, ...]

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANK: Final = " \t"
_BLANK_OR_LINE: Final = " \t\r\n"
_PLAIN_VALUE: Final = re.compile(r"[^\s,\]}#]+(?: \d[^\s,\]}#]*)?")
_ESCAPES: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "e": "\x1b"}


@dataclass(slots=True)
class LineNumbers:
    """Lines, counted from 1."""

    keys: dict[Path, int] = field(default_factory=dict)
    """The line of each key and each table header."""
    values: dict[Path, int] = field(default_factory=dict)
    """The line on which the text of a value begins: of a multi-line string, that of its first character."""

    def of(self, path: Path) -> int:
        """The line of a key; if it is missing, that of its table, else the first line."""
        for length in range(len(path), 0, -1):
            line = self.keys.get(path[:length])
            if line is not None:
                return line
        return 1

    def of_value(self, path: Path) -> int:
        """The line on which a value's text begins."""
        return self.values.get(path) or self.of(path)


def lines_of(text: str) -> LineNumbers:
    """The lines of a text that ``tomllib`` accepts."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._breaks = [match.start() for match in re.finditer("\n", self._text)]
        self._at = 0
        self._lines = LineNumbers()
        self._array_lengths: dict[Path, int] = {}

    def scan(self) -> LineNumbers:
        table: Path = ()
        while self._skip(_BLANK_OR_LINE):
            if self._text.startswith("[[", self._at):
                table = self._head("[[", "]]")
            elif self._text[self._at] == "[":
                table = self._head("[", "]")
            else:
                self._pair(table)
        return self._lines

    def _line(self, at: int | None = None) -> int:
        return bisect_left(self._breaks, self._at if at is None else at) + 1

    def _skip(self, characters: str) -> bool:
        """Skip blanks and comments; false at the end of the text."""
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "#" and "\n" in characters:
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif character in characters:
                self._at += 1
            else:
                return True
        return False

    def _head(self, opening: str, closing: str) -> Path:
        line = self._line()
        self._at += len(opening)
        path = self._entered(self._key())
        self._skip(_BLANK)
        self._at += len(closing)
        if opening == "[[":
            number = self._array_lengths.get(path, 0)
            self._array_lengths[path] = number + 1
            self._lines.keys.setdefault(path, line)
            path = (*path, number)
        self._lines.keys[path] = line
        self._note_parents(path, line)
        return path

    def _entered(self, names: list[str]) -> Path:
        """The path of a table header. Below an array of tables, it refers to the last table so far."""
        path: Path = ()
        for number, name in enumerate(names):
            path = (*path, name)
            if number < len(names) - 1 and path in self._array_lengths:
                path = (*path, self._array_lengths[path] - 1)
        return path

    def _note_parents(self, path: Path, line: int) -> None:
        for length in range(1, len(path)):
            self._lines.keys.setdefault(path[:length], line)

    def _key(self) -> list[str]:
        names: list[str] = []
        while True:
            self._skip(_BLANK)
            if self._text[self._at] in "\"'":
                names.append(self._string()[0])
            else:
                match = _BARE_KEY.match(self._text, self._at)
                assert match is not None, "tomllib accepted a key that is none"
                names.append(match.group())
                self._at = match.end()
            self._skip(_BLANK)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = (*table, *self._key())
        self._lines.keys[path] = line
        self._note_parents(path, line)
        assert self._text[self._at] == "=", "tomllib accepted a pair without a value"
        self._at += 1
        self._skip(_BLANK)
        self._value(path)

    def _value(self, path: Path) -> None:
        character = self._text[self._at]
        self._lines.values[path] = self._line()
        if character in "\"'":
            self._lines.values[path] = self._string()[1]
        elif character == "[":
            self._array(path)
        elif character == "{":
            self._inline_table(path)
        else:
            match = _PLAIN_VALUE.match(self._text, self._at)
            assert match is not None, "tomllib accepted a value that is none"
            self._at = match.end()

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._skip(_BLANK_OR_LINE) and self._text[self._at] != "]":
            item = (*path, number)
            self._lines.keys[item] = self._line()
            self._value(item)
            number += 1
            self._skip(_BLANK_OR_LINE)
            if self._text[self._at] == ",":
                self._at += 1
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._skip(_BLANK_OR_LINE) and self._text[self._at] != "}":
            self._pair(path)
            self._skip(_BLANK_OR_LINE)
            if self._text[self._at] == ",":
                self._at += 1
        self._at += 1

    def _string(self) -> tuple[str, int]:
        """The next string and the line of its first character. Only one-line strings can be keys, so only these are returned."""
        quote = self._text[self._at]
        if self._text.startswith(quote * 3, self._at):
            return "", self._long_string(quote * 3)
        line = self._line()
        self._at += 1
        characters: list[str] = []
        while self._text[self._at] != quote:
            if self._text[self._at] == "\\" and quote == '"':
                characters.append(self._escape())
            else:
                characters.append(self._text[self._at])
                self._at += 1
        self._at += 1
        return "".join(characters), line

    def _escape(self) -> str:
        kind = self._text[self._at + 1]
        digits = {"x": 2, "u": 4, "U": 8}.get(kind, 0)
        start = self._at + 2
        self._at = start + digits
        return chr(int(self._text[start : self._at], 16)) if digits else _ESCAPES[kind]

    def _long_string(self, quotes: str) -> int:
        self._at += 3
        # A line break right after the quotes is not part of the text.
        first = self._at + 1 if self._text[self._at] == "\n" else self._at
        line = self._line(first)
        while not self._text.startswith(quotes, self._at):
            self._at += 2 if self._text[self._at] == "\\" and quotes == '"""' else 1
        self._at += 3
        # There may be up to two quotes directly before the closing ones.
        while self._text.startswith(quotes[0], self._at):
            self._at += 1
        return line
