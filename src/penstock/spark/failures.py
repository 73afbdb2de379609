"""Errors of Spark as a sentence, without Java stack, Python traceback and query plan.

A Spark error contains the query's plan, the Java stack and, if Python code failed in a worker, its traceback as text. The useful part is
the first line, or the last line of the traceback, which is the error that our own code raised.
"""

from __future__ import annotations

import re
from typing import Any, Final

_PYTHON_ERROR: Final = re.compile(r"^(?:\w+\.)*(?P<kind>[A-Z]\w*): (?P<text>.+)$")
_TRACEBACK: Final = "Traceback (most recent call last):"
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_TAIL: Final = re.compile(r"\s*SQLSTATE: \w{5}.*$", re.DOTALL)
_POSITION: Final = re.compile(r";? ?\(?line (?P<line>\d+),? pos (?P<column>\d+)\)?")
_JAVA: Final = re.compile(r"\n\s*(?:at [\w.$]+\(|JVM stacktrace|Driver stacktrace)")
_ADVICE: Final = ("To tolerate the error on drop", "Search path:", "If you did not qualify", "Verify the spelling")
_OURS: Final = "penstock."


def sentence_of(error: BaseException) -> str:
    """The error in a line."""
    text = _said_by_java(getattr(error, "java_exception", None)) or str(error)
    if _TRACEBACK in text:
        found = _from_traceback(text)
        if found:
            return found
    text = _JAVA.split(text, maxsplit=1)[0]
    position = _POSITION.search(text)
    text = _TAIL.sub("", _CONDITION.sub("", text.strip()))
    lines = [line.strip() for line in text.splitlines()]
    kept = []
    for line in lines:
        if not line or line.startswith("== SQL"):
            break
        if not line.startswith(_ADVICE):
            kept.append(line)
    sentence = " ".join(kept) or type(error).__name__
    for advice in _ADVICE:
        sentence = sentence.split(f" {advice}")[0]
    sentence = _POSITION.sub("", sentence).rstrip(" .;")
    if position is not None:
        sentence += f" (line {position['line']}, character {int(position['column']) + 1})"
    return sentence


def _said_by_java(error: Any) -> str:
    """The text of a Java exception: that of the Python error in it, else of its first cause."""
    texts: list[str] = []
    while error is not None:
        texts.append(str(error.getMessage() or ""))
        error = error.getCause()
    return next((each for each in texts if _TRACEBACK in each), "") or next(filter(None, reversed(texts)), "")


def _from_traceback(text: str) -> str:
    """The last error of the last traceback."""
    lines = text.rsplit(_TRACEBACK, 1)[1].splitlines()
    for number, line in enumerate(lines):
        found = _PYTHON_ERROR.match(line)
        if found is not None:
            rest = []
            for more in lines[number + 1 :]:
                if not more.strip() or more.startswith(("\t", " ", "SQLSTATE")) or " at " in more[:4]:
                    break
                rest.append(more.strip())
            sentence = _TAIL.sub("", " ".join([found["text"], *rest])).strip()
            return sentence if line.startswith(_OURS) or _is_telling(found["kind"]) else f"{found['kind']}: {sentence}"
    return ""


def _is_telling(kind: str) -> bool:
    """Whether the text is clear without the name of the class."""
    return kind in ("ValueError", "PySparkRuntimeError", "PySparkException")
