"""`python -m bench`: run the comparison, print its tables, and write them to `bench/results`."""

from __future__ import annotations

import argparse
import signal
import sys

from bench.clients import ALL_WORKLOADS
from bench.peers.base import Flush
from bench.results import markdown
from bench.run import PEERS, Plan, run
from bench.saying import save
from penstock.bench.context import Options
from penstock.bench.faults import BenchError
from penstock.bench.run import select


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main() -> int:
    """Exit code 0 when every row was measured, 1 when one failed, 2 for wrong usage."""
    all_peers = [kind.name for kind in PEERS]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Penstock and its peers side by side.")
    parser.add_argument("--peers", type=_names, default=all_peers, help=f"measure only these of {', '.join(all_peers)}")
    parser.add_argument(
        "--only",
        type=_names,
        default=[],
        help=f"run only these of {', '.join(workload.name for workload in ALL_WORKLOADS)}",
    )
    parser.add_argument("--flush", choices=["os", "sync", "both"], default="both", help="compare with this durability")
    parser.add_argument(
        "--acks", choices=["1", "all", "both"], default="both", help="wait for these acknowledgements in unsynced rows"
    )
    parser.add_argument("--rounds", type=int, default=2, help="run this many rounds; 0 measures only the cost")
    parser.add_argument(
        "--warm-rounds", type=int, default=1, help="run this many rounds before these that do not count"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="measure each row for this many seconds")
    parser.add_argument("--warmup", type=float, default=1.0, help="warm each row up for this many seconds before that")
    parser.add_argument(
        "--bytes-max", type=int, default=2 << 30, help="write at most this many bytes per row and system"
    )
    parser.add_argument("--no-cost", action="store_true", help="do not measure start times and memory")
    parser.add_argument(
        "--partitions",
        type=int,
        default=10_000,
        help="create this many partitions for the cost part; 0 leaves them out",
    )
    given = parser.parse_args()
    if unknown := [name for name in given.peers if name not in all_peers]:
        parser.error(f"unknown peer {', '.join(unknown)}; choose from {', '.join(all_peers)}")
    try:
        select(given.only, ALL_WORKLOADS)
    except BenchError as error:
        parser.error(str(error))
    plan = Plan(
        peers=given.peers,
        only=given.only,
        flushes=list(Flush) if given.flush == "both" else [Flush(given.flush)],
        acks=["1", "all"] if given.acks == "both" else [given.acks],
        rounds=given.rounds,
        warm_rounds=given.warm_rounds,
        options=Options(seconds=given.seconds, warmup_s=given.warmup, bytes_max=given.bytes_max),
        cost=not given.no_cost,
        partitions=given.partitions,
    )
    # On SIGTERM it still stops what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = run(plan)
    tables = markdown(report)
    written = save(report, tables)
    print(tables)
    print(f"written to {written[0]} and {written[1]}", file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
