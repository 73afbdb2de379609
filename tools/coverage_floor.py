"""Report the coverage that was measured and hold it to the floor in pyproject.toml, or raise the floor (``--raise``).

Used by ``make coverage``, ``make coverage-report`` and ``make coverage-raise``. The floor is ``fail_under`` of
``[tool.coverage.report]``, in whole percent: :func:`raised` never lowers it.
"""

import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
FLOOR = re.compile(r"^(fail_under = )(\d+)", re.MULTILINE)


def floor_in(text: str) -> int:
    """The floor that a pyproject.toml sets."""
    return int(tomllib.loads(text)["tool"]["coverage"]["report"]["fail_under"])


def raised(text: str, measured: float) -> str:
    """The pyproject.toml with the floor at what was measured, rounded down; unchanged where that is no higher."""
    floor = math.floor(measured)
    return FLOOR.sub(rf"\g<1>{floor}", text) if floor > floor_in(text) else text


def coverage(*words: str, capture_output: bool = False) -> subprocess.CompletedProcess[str]:
    """Run coverage's command line."""
    return subprocess.run(
        [sys.executable, "-m", "coverage", *words], check=False, text=True, capture_output=capture_output
    )


def main(words: list[str]) -> int:
    """Exit code 0 unless nothing was measured or it is below the floor."""
    # What one process of a test measured is a file of its own. Killed processes leave none, or a broken one.
    coverage("combine", "--quiet", "--append")
    text = PYPROJECT.read_text()
    total = coverage("report", "--format=total", "--fail-under=0", capture_output=True)
    if total.returncode:
        print("no coverage was measured; run make coverage, or a test target with COVERAGE=1", file=sys.stderr)
        return 1
    measured, floor = float(total.stdout), floor_in(text)
    if "--raise" in words:
        PYPROJECT.write_text(raised(text, measured))
        print(f"coverage is {measured:.1f} %; the floor was {floor} % and is {floor_in(raised(text, measured))} %")
        return 0
    coverage("report", "--fail-under=0")
    if measured < floor:
        print(f"coverage is {measured:.1f} %, below the floor of {floor} %: add tests for the lines listed above")
        return 1
    print(f"coverage is {measured:.1f} %, the floor is {floor} %")
    if math.floor(measured) > floor:
        print("run make coverage-raise and commit pyproject.toml to hold on to it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
