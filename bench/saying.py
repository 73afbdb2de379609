"""The output of a side-by-side run: progress, a description of the machine, and the files of its tables."""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys
import time
from pathlib import Path

import msgspec

from penstock.bench.context import Options

RESULTS = Path(__file__).with_name("results")


def machine(rounds: int, warm_rounds: int, options: Options) -> dict[str, str | int | float]:
    """What was measured, and how."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": f"{os.cpu_count()} x {model}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "method": f"best of {rounds} rounds (after {warm_rounds} that did not count) of {options.seconds:g} s, {options.value_bytes} B values, loopback",
    }


def save(report: object, tables: str, kind: str = "") -> tuple[Path, Path]:
    """Write the JSON and the Markdown file."""
    RESULTS.mkdir(exist_ok=True)
    stem = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ") + kind
    as_json, as_markdown = RESULTS / f"{stem}.json", RESULTS / f"{stem}.md"
    as_json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    as_markdown.write_text(tables)
    return as_json, as_markdown


def fail(failures: list[str], text: str) -> None:
    """Note that something could not be measured; the rest continues."""
    failures.append(" ".join(text.split()))
    say(f"FAILED {text}")


def say(text: str) -> None:
    """Show progress on stderr."""
    print(text, file=sys.stderr, flush=True)
