"""Checks a query without Spark: whether it is a query, and which views it reads.

This is not a parser. It examines words, in order to report common mistakes with their line before Spark has started. It leaves everything
else to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>[^\W\d]\w*)
      | (?P<number>\d[\w.]*)
      | (?P<open>['"`]|/\*)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_BEGINS: Final = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_WRITES: Final = ("INSERT", "CREATE", "UPDATE", "DELETE", "MERGE", "DROP", "ALTER", "COPY", "SET", "USE")
# FROM inside these is an argument: EXTRACT(HOUR FROM t).
_FROM_IN_CALL: Final = ("EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION")
_NOT_NAMES: Final = ("LATERAL", "SELECT", "VALUES", "STREAM", "TABLE", "UNNEST", "IDENTIFIER")


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a quoted name, a text, a number or a sign; ``line`` counts from 0."""

    kind: str
    text: str
    line: int
    end: int
    start: int

    @property
    def upper(self) -> str:
        """A word in upper case, to compare it with keywords; empty for other tokens."""
        return self.text.upper() if self.kind == "word" else ""


@dataclass(frozen=True, slots=True)
class Slip:
    """A mistake in a query: the line in it, from 0, and a sentence."""

    line: int
    text: str


def tokens_of(sql: str) -> Iterator[Token]:
    """The tokens, without blanks and comments."""
    line = 0
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup or "sign"
        if kind != "blank":
            yield Token(kind, match.group(), line, match.end(), match.start())
        line += match.group().count("\n")


def slips_of(sql: str) -> list[Slip]:
    """The certain mistakes in a query."""
    tokens = list(tokens_of(sql))
    if not tokens:
        return [Slip(0, "the query is empty; write SELECT ... FROM ...")]
    for token in tokens:
        if token.kind == "open":
            what = "comment" if token.text == "/*" else f"quote {token.text}"
            return [Slip(token.line, f"the {what} is not closed")]
    return [*_wrong_beginning(tokens[0]), *_brackets(tokens)]


def _wrong_beginning(first: Token) -> Iterator[Slip]:
    if first.upper in _WRITES:
        yield Slip(
            first.line,
            f"{first.upper} is not allowed: a step is a query; write SELECT ..., and specify the target in [[sinks]]",
        )
    elif first.text != "(" and first.upper not in _BEGINS:
        yield Slip(first.line, f"a query starts with SELECT, WITH, FROM or VALUES, not with {first.text}")


def _brackets(tokens: list[Token]) -> Iterator[Slip]:
    opened: list[Token] = []
    for token in tokens:
        if token.text == "(":
            opened.append(token)
        elif token.text == ")":
            if not opened:
                yield Slip(token.line, "there is an extra )")
                return
            opened.pop()
    if opened:
        yield Slip(opened[-1].line, "a closing ) is missing")


def views_read(sql: str) -> list[tuple[str, int]]:
    """The names after FROM and JOIN, with their lines from 0, without those that the query defines itself."""
    tokens = list(tokens_of(sql))
    own = {name.lower() for name in _own_names(tokens)}
    found: list[tuple[str, int]] = []
    calls: list[str] = []
    for index, token in enumerate(tokens):
        if token.text == "(":
            calls.append(tokens[index - 1].upper if index else "")
        elif token.text == ")" and calls:
            calls.pop()
        if token.upper not in ("FROM", "JOIN") or index + 1 == len(tokens):
            continue
        if token.upper == "FROM" and (
            (calls and calls[-1] in _FROM_IN_CALL) or (index and tokens[index - 1].upper == "DISTINCT")
        ):
            continue
        name = _name_at(tokens, index + 1)
        if name is not None and name.lower() not in own:
            found.append((name, tokens[index + 1].line))
    return found


def _name_at(tokens: list[Token], index: int) -> str | None:
    """A plain name; None for a subquery, a function, a path of names or a keyword."""
    token = tokens[index]
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    if after is not None and after.text in ("(", ".") and after.start == token.end:
        return None
    if token.kind == "quoted":
        return token.text[1:-1].replace("``", "`")
    if token.kind != "word" or token.upper in _NOT_NAMES or (after is not None and after.text == "("):
        return None
    # orders-eu without backquotes: return the whole name, so that the error can show how to write it.
    name, end = token.text, token.end
    for further in tokens[index + 1 :]:
        if further.start != end or not (further.text in ("-", ".") or further.kind in ("word", "number")):
            break
        name, end = name + further.text, further.end
    return name


def _own_names(tokens: list[Token]) -> Iterator[str]:
    for index, token in enumerate(tokens):
        if token.kind not in ("word", "quoted") or index == 0:
            continue
        if tokens[index - 1].text != "," and tokens[index - 1].upper not in ("WITH", "RECURSIVE"):
            continue
        after = index + 1
        if after < len(tokens) and tokens[after].text == "(":
            while after < len(tokens) and tokens[after].text != ")":
                after += 1
            after += 1
        if after + 1 < len(tokens) and tokens[after].upper == "AS" and tokens[after + 1].text == "(":
            yield token.text.strip("`")
