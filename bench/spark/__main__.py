"""`python -m bench.spark`: run the Spark connector beside its ceilings, print the table, and write it to `bench/results`."""

from __future__ import annotations

import argparse
import signal
import sys

import msgspec

from bench.saying import save
from bench.spark.rows import ROWS
from bench.spark.run import SparkPlan, run
from bench.spark.tables import markdown


def main() -> int:
    """Exit code 0 when every row was measured, 1 when one failed, 2 for wrong usage."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="Measure the Spark connector.")
    parser.add_argument("--only", default="", help=f"run only these of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4_000_000, help="process this many rows of 100 B per query")
    parser.add_argument("--flush", choices=["os", "sync"], default="sync", help="run the broker with this durability")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    given = parser.parse_args()
    only = [name.strip() for name in given.only.split(",") if name.strip()]
    if unknown := [name for name in only if name not in names]:
        parser.error(f"unknown row {', '.join(unknown)}; choose from {', '.join(names)}")
    # On SIGTERM it still stops what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = run(SparkPlan(only, given.rounds, given.rows, given.flush))
    tables = markdown(report)
    written = save(report, tables, "-spark")
    print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() if given.output == "json" else tables)
    print(f"written to {written[0]} and {written[1]}", file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
