"""`python -m bench.security`: measure what security costs, print the tables, and write them to `bench/results`."""

from __future__ import annotations

import argparse
import signal
import sys

from bench.saying import save
from bench.security.loads import BY_NAME, Limits
from bench.security.run import SecurityPlan, run
from bench.security.tables import markdown

_QUICK = {"rounds": 1, "warm_rounds": 0, "seconds": 0.1, "warmup": 0.02}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main() -> int:
    """Exit code 0 when everything was measured, 1 when something failed, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.security",
        description="Measure the CPU time that TLS, access rules and encryption at rest cost, in Penstock and in Kafka.",
    )
    parser.add_argument("--only", type=_names, default=[], help=f"run only these of {', '.join(BY_NAME)}")
    parser.add_argument("--no-kafka", action="store_true", help="measure Penstock alone")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--warm-rounds", type=int, default=2, help="run this many rounds before these that do not count"
    )
    parser.add_argument("--seconds", type=float, default=0.4, help="measure each row for this many seconds")
    parser.add_argument("--warmup", type=float, default=0.1, help="warm each row up for this many seconds before that")
    parser.add_argument("--minutes", type=float, default=4.5, help="begin no round after this many minutes")
    parser.add_argument("--bytes-max", type=int, default=128 << 20, help="write at most this many bytes per row")
    parser.add_argument(
        "--quick", action="store_true", help="one short round, to see that it runs: the numbers mean little"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.only if name not in BY_NAME]:
        parser.error(f"unknown row {', '.join(unknown)}; choose from {', '.join(BY_NAME)}")
    if given.quick:
        vars(given).update(_QUICK)
    plan = SecurityPlan(
        only=given.only,
        with_kafka=not given.no_kafka,
        rounds=given.rounds,
        warm_rounds=given.warm_rounds,
        minutes=given.minutes,
        limits=Limits(given.seconds, given.warmup, given.bytes_max),
    )
    # On SIGTERM it still stops what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = run(plan)
    tables = markdown(report)
    written = save(report, tables, "-security")
    print(tables)
    print(f"written to {written[0]} and {written[1]}", file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
