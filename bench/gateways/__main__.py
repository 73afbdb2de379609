"""`python -m bench.gateways`: run the gateways beside Redis, print the tables, and write them to `bench/results`."""

from __future__ import annotations

import argparse
import signal
import sys

import msgspec

from bench.gateways.run import NAMES, GatewayPlan, run
from bench.gateways.tables import markdown
from bench.peers.base import Flush
from bench.saying import save
from penstock.bench.context import Options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main() -> int:
    """Exit code 0 when every row was measured, 1 when one failed, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gateways", description="Measure Penstock's gateways beside Redis."
    )
    parser.add_argument("--only", type=_names, default=[], help=f"run only these of {', '.join(NAMES)}")
    parser.add_argument("--flush", choices=["os", "sync", "both"], default="both", help="compare with this durability")
    parser.add_argument("--no-redis", action="store_true", help="measure Penstock alone")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--warm-rounds", type=int, default=0, help="run this many rounds before these that do not count"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measure each row for this many seconds; wrk takes whole ones"
    )
    parser.add_argument("--warmup", type=float, default=1.0, help="warm each row up for this many seconds before that")
    parser.add_argument(
        "--bytes-max", type=int, default=1 << 30, help="write at most this many bytes of values per row"
    )
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    given = parser.parse_args()
    if unknown := [name for name in given.only if name not in NAMES]:
        parser.error(f"unknown row {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    plan = GatewayPlan(
        only=given.only,
        flushes=list(Flush) if given.flush == "both" else [Flush(given.flush)],
        with_redis=not given.no_redis,
        rounds=given.rounds,
        warm_rounds=given.warm_rounds,
        options=Options(seconds=given.seconds, warmup_s=given.warmup, bytes_max=given.bytes_max),
    )
    # On SIGTERM it still stops what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = run(plan)
    tables = markdown(report)
    written = save(report, tables, "-gateways")
    print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() if given.output == "json" else tables)
    print(f"written to {written[0]} and {written[1]}", file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
