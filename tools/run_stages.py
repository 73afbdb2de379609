"""Run make targets one after the other, go on when one fails, and close with a table of what happened.

Used by ``make check`` and ``make test``: a failed lint should not hide that a crash test fails too.
"""

import subprocess
import sys
import time


def main(stages: list[str]) -> int:
    """Run each stage with make; the exit code is the number of those that failed."""
    rows: list[tuple[str, bool, float]] = []
    for stage in stages:
        print(f"\n== make {stage}", flush=True)
        started = time.monotonic()
        passed = subprocess.run(["make", "--no-print-directory", stage], check=False).returncode == 0
        rows.append((stage, passed, time.monotonic() - started))
    failed = [stage for stage, passed, _ in rows if not passed]
    print(f"\n== {'passed' if not failed else 'FAILED: ' + ', '.join(failed)}")
    for stage, passed, seconds in rows:
        print(f"  {'ok  ' if passed else 'FAIL'}  {stage:<18} {seconds:7.1f} s")
    print(f"        {'together':<18} {sum(seconds for _, _, seconds in rows):7.1f} s")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
