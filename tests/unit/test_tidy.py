"""The source tree holds itself to its rules: what the linters cannot say.

Each rule is a function from a file to its findings, and each has a sample that breaks it, so that no rule can fall asleep.
"""

import ast
import functools
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"

# The rules: time, disk, network and entropy are handed to them, so that a test can own them.
PURE = ("records", "wire", "log", "operations", "core", "metadata/port.py")
FORBIDDEN_IN_PURE = {"asyncio", "time", "random", "socket", "secrets", "threading"}
# A coroutine has to wait for something. A future has no clock and no transport.
ALLOWED_IN_PURE = {("asyncio", "Future")}

MAY_PRINT = ("cli", "server.py", "bench", "__main__.py")

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80

# Tests wait for what they wait for, never for time to pass. Path -> the reason why this one may sleep.
MAY_SLEEP: dict[str, str] = dict.fromkeys(
    (
        "tests/simulation/moves.py",
        "tests/simulation/scenarios.py",
        "tests/simulation/test_followers.py",
        "tests/simulation/test_lives.py",
        "tests/simulation/test_settling.py",
        "tests/unit/testing/simulation/test_loop.py",
        "tests/unit/testing/simulation/test_network.py",
        "tests/unit/testing/simulation/test_store.py",
    ),
    "its time is simulated: it passes when nothing else is left to happen",
)
MAY_SLEEP["tests/support/powerfs/server.py"] = "a disk takes its time to sync, and a cut must be able to come meanwhile"

# Files over the limit, each with the reason why it is one thing.
MAY_BE_LONG: dict[str, str] = {}

Finding = str
Rule = Callable[[str, str], Iterator[Finding]]


def python_files(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


def text_files() -> list[Path]:
    suffixes = {".py", ".md", ".toml", ".sh", ".yaml", ".yml", ".json", ".service", ".txt", ".xml", ".properties"}
    names = {"Makefile", "run"}
    found: list[Path] = [
        path for path in ROOT.iterdir() if path.is_file() and (path.suffix in suffixes or path.name in names)
    ]
    for folder in ("src", "tests", "tools", "bench", "docs", "examples", ".ci", ".github"):
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT)
            if "__pycache__" in relative.parts or relative.parts[:2] == ("bench", "results"):
                continue
            if path.is_file() and (path.suffix in suffixes or path.name in names):
                found.append(path)
    return sorted(found)


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def is_generated(name: str) -> bool:
    return name.endswith("_generated.py")


def in_source(name: str) -> str:
    """The path below src/penstock, or nothing for a file outside it."""
    return name.removeprefix("src/penstock/") if name.startswith("src/penstock/") else ""


def starts_with_any(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + "/") for prefix in prefixes)


def has_docstring(name: str, text: str) -> Iterator[Finding]:
    docstring = ast.get_docstring(parsed(text))
    if docstring is None or not docstring.strip():
        yield "the module has no docstring: say what it is for, what always holds, what lies on disk"


def rules_do_not_touch_the_world(name: str, text: str) -> Iterator[Finding]:
    if not starts_with_any(in_source(name), PURE):
        return
    imports: list[tuple[int, str]] = []
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "", alias.name) for alias in node.names}
            imports += [] if names <= ALLOWED_IN_PURE else [(node.lineno, node.module or "")]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield f"line {node.lineno}: opens a file itself: use the Disk port"
    for line, module in imports:
        if module.partition(".")[0] in FORBIDDEN_IN_PURE:
            yield f"line {line}: imports {module}: time, disk, network and entropy are handed in (ports.py)"


def is_short(name: str, text: str) -> Iterator[Finding]:
    if is_generated(name) or name in MAY_BE_LONG:
        return
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines are more than {FILE_LINES_MAX}: what is it really two of?"
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: {node.name} has {length} lines, more than {FUNCTION_LINES_MAX}"


def does_not_print(name: str, text: str) -> Iterator[Finding]:
    inner = in_source(name)
    if not inner or starts_with_any(inner, MAY_PRINT):
        return
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"line {node.lineno}: prints: log it, or hand it to the command line"


def does_not_sleep(name: str, text: str) -> Iterator[Finding]:
    if not name.startswith("tests/") or name in MAY_SLEEP:
        return
    for node in ast.walk(parsed(text)):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(".sleep")
            and ast.unparse(node.args[0]) != "0"
        ):
            yield f"line {node.lineno}: sleeps: wait for the thing itself, with a deadline"
        if isinstance(node, ast.ImportFrom) and any(alias.name == "sleep" for alias in node.names):
            yield f"line {node.lineno}: imports sleep: wait for the thing itself, with a deadline"


def has_no_note_to_self(name: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
            yield f"line {number}: a note to oneself: do it, or write it in docs/limitations.md"
        if re.search(r"\bNotImplementedError\b", line):
            yield f"line {number}: NotImplementedError: a part that is not there is not advertised"


def names_no_machine(name: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(r"(?<![\w.}/-])/(work|root|home)(?![\w-])", line):
            yield f"line {number}: a path of one machine: {line.strip()[:80]}"


PYTHON_RULES: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "every module has a docstring": (has_docstring, ("src", "tools", "bench", "examples")),
    "rules do not touch the world": (rules_do_not_touch_the_world, ("src",)),
    "files and functions are short": (is_short, ("src", "tests", "tools", "bench", "examples")),
    "only the command line prints": (does_not_print, ("src",)),
    "tests do not sleep": (does_not_sleep, ("tests",)),
}
TEXT_RULES: dict[str, Rule] = {
    "no notes to self": has_no_note_to_self,
    "no path of one machine": names_no_machine,
}


def findings(rule: Rule, files: list[Path]) -> list[Finding]:
    return [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in files
        for finding in rule(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("name", PYTHON_RULES)
def test_the_source_keeps_the_rule(name: str) -> None:
    rule, folders = PYTHON_RULES[name]
    assert findings(rule, python_files(*folders)) == []


@pytest.mark.parametrize("name", TEXT_RULES)
def test_every_text_keeps_the_rule(name: str) -> None:
    files = [path for path in text_files() if path != Path(__file__).resolve()]
    assert findings(TEXT_RULES[name], files) == []


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (has_docstring, "src/penstock/x.py", "x = 1\n"),
        (has_docstring, "src/penstock/x.py", '""" """\n'),
        (rules_do_not_touch_the_world, "src/penstock/log/x.py", "import time\n"),
        (rules_do_not_touch_the_world, "src/penstock/core/groups/x.py", "from asyncio import Lock\n"),
        (rules_do_not_touch_the_world, "src/penstock/core/groups/x.py", "from asyncio import Future, sleep\n"),
        (rules_do_not_touch_the_world, "src/penstock/metadata/port.py", "import socket\n"),
        (rules_do_not_touch_the_world, "src/penstock/records/x.py", "open('x')\n"),
        (is_short, "src/penstock/x.py", "\n" * (FILE_LINES_MAX + 1)),
        (is_short, "tests/x.py", "def f():\n" + "    a = 1\n" * FUNCTION_LINES_MAX),
        (does_not_print, "src/penstock/core/x.py", "print(1)\n"),
        (does_not_sleep, "tests/x.py", "import time\ntime.sleep(1)\n"),
        (does_not_sleep, "tests/x.py", "from asyncio import sleep\n"),
        (has_no_note_to_self, "x.md", "TODO: later\n"),
        (has_no_note_to_self, "x.py", "raise NotImplementedError\n"),
        (names_no_machine, "x.md", "cd /home/me\n"),
        (names_no_machine, "x.py", 'path = "/root"\n'),
    ],
)
def test_each_rule_finds_what_breaks_it(rule: Rule, name: str, text: str) -> None:
    assert list(rule(name, text))


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (rules_do_not_touch_the_world, "src/penstock/log/x.py", "from penstock.ports import Disk\ndisk.open('x')\n"),
        (rules_do_not_touch_the_world, "src/penstock/runtime/x.py", "import time\n"),
        (rules_do_not_touch_the_world, "src/penstock/core/x.py", "from asyncio import Future\n"),
        (does_not_print, "src/penstock/cli/x.py", "print(1)\n"),
        (does_not_sleep, "tests/x.py", "await asyncio.sleep(0)\n"),
        (names_no_machine, "x.md", "see docs/how-to/workers.md and https://example.org/home\n"),
    ],
)
def test_rules_leave_good_code_alone(rule: Rule, name: str, text: str) -> None:
    assert list(rule(name, text)) == []


def test_every_folder_of_the_package_says_what_may_live_in_it() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts}
    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_exceptions_to_the_rules_are_still_needed() -> None:
    gone = [name for name in (*MAY_SLEEP, *MAY_BE_LONG) if not (ROOT / name).exists()]
    assert gone == []


def markdown_files() -> list[Path]:
    return [path for path in text_files() if path.suffix == ".md"]


def anchors(text: str) -> set[str]:
    """The names by which the headings of a Markdown file can be linked to."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_in_the_documents_lead_somewhere() -> None:
    broken: list[str] = []
    for path in markdown_files():
        prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            goal = (path.parent / file).resolve() if file else path
            if not goal.exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
            elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text(encoding="utf-8")):
                broken.append(f"{path.relative_to(ROOT)}: {target} (no such heading)")
    assert broken == []


def named_paths(text: str) -> set[str]:
    """What stands in backticks and looks like a file or a folder of the tree."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    words = re.findall(r"`([^`\s]+)`", prose)
    return {word for word in words if re.fullmatch(r"[\w./-]+(\.(py|md|toml|sh)|/)", word)}


def test_every_file_that_the_architecture_names_exists() -> None:
    named = named_paths((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(named) > 30, "ARCHITECTURE.md should name the files of every part"
    assert sorted(name for name in named if not (ROOT / name).exists() and not (SOURCE / name).exists()) == []


def below_package(path: Path) -> str:
    """The path below src/penstock, as the architecture has it; that of another package from the root."""
    name = path.relative_to(ROOT).as_posix()
    return in_source(name) or name


def test_the_architecture_names_every_module_of_the_package() -> None:
    named = named_paths((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    folders = tuple(name for name in named if name.endswith("/"))
    missing = [
        name
        for name in (below_package(path) for path in python_files("src"))
        if name not in named
        and not is_generated(name)
        and not name.endswith("__init__.py")
        and not any(name.startswith(folder) for folder in folders)
    ]
    assert missing == []


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in requirements}


def test_every_dependency_has_its_reason_and_every_reason_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = requirement_names(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted |= requirement_names(extra)
    wanted.discard(project["name"])  # one extra may take in another
    rows = re.findall(
        r"^\| `([^`]+)` \|", (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert set(rows) == wanted
    assert len(rows) == len(set(rows))


def test_the_lock_has_what_development_needs_and_names_no_index() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    locked = {name: Version(version) for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock, flags=re.MULTILINE)}
    needed = [
        *extras["dependencies"],
        *extras["optional-dependencies"]["dev"],
        *extras["optional-dependencies"]["spark"],
    ]
    wrong = [
        text
        for text in needed
        if (wanted := Requirement(text)).name != extras["name"]
        and (wanted.name not in locked or locked[wanted.name] not in wanted.specifier)
    ]
    assert wrong == [], "run make lock"
    assert "//" not in lock
