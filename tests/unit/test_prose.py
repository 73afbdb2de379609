"""The documents and the texts in the source are plain English: phrases that native speakers do not use, and the form of errors."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PHRASES = {
    r"(?:is|are|was|were|be|been|being) told": "is reported, receives, learns",
    r"whoever": "the client that, the caller that",
    r"that (?:does|do|did) not say": "not specified, by default",
    r"stands?(?! (?:alone|by|for|out)\b)|stood": "is, appears, is listed",
    r"lies?|lay (?:in|on|there)": "is, is stored",
    r"(?:go|goes|went|gone|going) on": "continues",
    r"behind (?:it|them|him)": "after it, under it",
    r"nobody (?:speaks|is shown)|speaks? for": "no coordinator is available, is the coordinator of",
    r"of (?:its|their) own accord": "by itself",
    r"(?:have|has|had) (?:its|their) say": "is asked, takes part",
    r"it is so": "what is true, in words",
    r"(?<!there )(?:is|are) no (?-i:[A-Z])\w+": "is not a valid",
    r"(?:is|are|was|were) (?:given|handed) (?:up|out) to": "is returned to, is sent to",
    r"hears? of": "learns about, receives",
    r"by (?:its|their) leader's word": "as its leader reports",
    r"for ever": "forever",
    r"anew": "again",
    r"at the most": "at most",
}
FORBIDDEN = re.compile(r"\b(?:" + "|".join(f"({pattern})" for pattern in PHRASES) + r")\b", re.IGNORECASE)
PREFERRED = list(PHRASES.values())

# The API under /v1 answers in lower case, since its clients compare texts with those of DriftQ-Core.
LOWER_CASE_ERRORS = "src/penstock/gateways/http/v1/"

Text = tuple[int, str]


def markdown(text: str) -> Iterator[Text]:
    """The prose of a document by line, without code."""
    without_code = re.sub(r"```.*?```|`[^`\n]*`", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL)
    yield from enumerate(without_code.splitlines(), start=1)


def strings_and_comments(text: str) -> Iterator[Text]:
    """Each docstring, comment and string literal of a module, with its line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from enumerate(node.value.splitlines(), start=node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def odd_phrases(texts: Iterator[Text]) -> Iterator[str]:
    for number, line in texts:
        for found in FORBIDDEN.finditer(line):
            yield f"line {number}: {found[0]!r}: write for instance {PREFERRED[(found.lastindex or 1) - 1]!r}"


def error_texts(text: str) -> Iterator[Text]:
    """The text of each ``raise SomeError("...")``; what an f-string puts in is a bar."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.lineno, argument.value
                elif isinstance(argument, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else "|" for part in argument.values)
                    yield argument.lineno, "".join(map(str, parts))


def wrong_form(text: str) -> str:
    """What is wrong with the form of an error; nothing if it is fine. A name of code may come first as it is."""
    first = text.split(" ", 1)[0]
    if " " in text and re.fullmatch(r"[a-z]+(?:'s)?,?", first):
        return "begins without a capital letter"
    if text.endswith(".") and not text.endswith("...") and not re.search(r"[.:;?!] ", text):
        return "ends with a period although it is one sentence"
    return ""


def badly_formed_errors(name: str, text: str) -> Iterator[str]:
    for number, error in error_texts(text):
        wrong = wrong_form(error)
        if wrong and not (name.startswith(LOWER_CASE_ERRORS) and "capital" in wrong):
            yield f"line {number}: the error text {error[:50]!r} {wrong}"


def phrases(name: str, text: str) -> list[str]:
    return list(odd_phrases(markdown(text) if name.endswith(".md") else strings_and_comments(text)))


def errors(name: str, text: str) -> list[str]:
    return [] if name.endswith(".md") else list(badly_formed_errors(name, text))


RULES = {"errors": errors, "phrases": phrases}


def texts() -> dict[str, str]:
    """What must be plain: the documents for users, and the source that a person wrote."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(paths)
        if not path.name.endswith("_generated.py") and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("rule", RULES)
def test_texts_are_plain_english(rule: str) -> None:
    assert [f"{name}: {finding}" for name, text in texts().items() for finding in RULES[rule](name, text)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.md", "The node is told of it."),
        ("x.md", "Whoever asks, waits."),
        ("x.md", "It goes on when the lock lies open."),
        ("x.py", '"""Where the topic stands."""\n'),
        ("x.py", "# the tasks behind it\n"),
        ("x.py", 'f"{name} that does not say {when}"\n'),
        ("x.py", 'raise ValueError("the size is wrong")\n'),
        ("x.py", 'raise RefusedError(Reason.INVALID, f"The size {size} is wrong.")\n'),
    ],
)
def test_each_rule_finds_what_breaks_it(name: str, text: str) -> None:
    assert errors(name, text) or phrases(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.md", "Run `penstock lies`.\n```\nstands\n```\n"),
        ("x.md", "The leader reports the failure, and an understanding follower continues."),
        ("x.py", "whoever = lies = 1\n"),
        ("x.py", 'raise ValueError("The size is wrong: use 1 to 5")\n'),
        ("x.py", 'raise ValueError("The size is wrong. Use 1 to 5.")\n'),
        ("x.py", 'raise ValueError(f"{size} is wrong")\n'),
        ("x.py", 'raise ValueError("min.insync.replicas is wrong")\n'),
        ("x.py", 'raise KeyError("name")\n'),
    ],
)
def test_rules_leave_good_texts_alone(name: str, text: str) -> None:
    assert errors(name, text) + phrases(name, text) == []
