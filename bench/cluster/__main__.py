"""`python -m bench.cluster`: measure three nodes, print the tables, and write them to `bench/results`."""

from __future__ import annotations

import argparse
import signal
import sys

from bench.cluster.run import WORKLOADS, ClusterPlan, run
from bench.cluster.systems import SYSTEMS
from bench.cluster.tables import markdown
from bench.peers.base import Flush
from bench.saying import save
from penstock.bench.context import Options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main() -> int:
    """Exit code 0 when everything was measured, 1 when something failed, 2 for wrong usage."""
    systems = [kind.name for kind in SYSTEMS]
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster", description="Measure three nodes beside one, and beside Kafka."
    )
    parser.add_argument("--systems", type=_names, default=systems, help=f"measure only these of {', '.join(systems)}")
    parser.add_argument("--only", type=_names, default=[], help=f"run only these of {', '.join(WORKLOADS)}")
    parser.add_argument("--flush", choices=["os", "sync", "both"], default="both", help="compare with this durability")
    parser.add_argument("--rounds", type=int, default=2, help="run this many rounds; 0 leaves the rows out")
    parser.add_argument("--warmups", type=int, default=1, help="run this many rounds before these that do not count")
    parser.add_argument("--kills", type=int, default=20, help="kill this many leaders of Penstock")
    parser.add_argument("--stops", type=int, default=5, help="stop this many leaders of Penstock")
    parser.add_argument("--peer-kills", type=int, default=6, help="kill this many leaders of Kafka")
    parser.add_argument("--peer-stops", type=int, default=2, help="stop this many leaders of Kafka")
    parser.add_argument("--idle", type=float, default=20.0, help="measure the idle systems for this many seconds")
    parser.add_argument("--seconds", type=float, default=2.0, help="measure each row for this many seconds")
    parser.add_argument("--minutes", type=float, default=13.0, help="leave out repetitions after this many minutes")
    parser.add_argument(
        "--bytes-max", type=int, default=1 << 30, help="write at most this many bytes per row and system"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.systems if name not in systems]:
        parser.error(f"unknown system {', '.join(unknown)}; choose from {', '.join(systems)}")
    plan = ClusterPlan(
        systems=given.systems,
        only=given.only,
        flushes=list(Flush) if given.flush == "both" else [Flush(given.flush)],
        rounds=given.rounds,
        warmups=given.warmups,
        kills=given.kills,
        stops=given.stops,
        peer_kills=given.peer_kills,
        peer_stops=given.peer_stops,
        idle_s=given.idle,
        minutes=given.minutes,
        options=Options(seconds=given.seconds, warmup_s=0.5, bytes_max=given.bytes_max),
    )
    # On SIGTERM it still stops what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = run(plan)
    tables = markdown(report)
    written = save(report, tables, "-cluster")
    print(tables)
    print(f"written to {written[0]} and {written[1]}", file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
