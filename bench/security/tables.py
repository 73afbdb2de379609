"""The tables of a run, as a section for docs/performance.md.

Invariant: a ratio is the median of the ratios of all rounds, each of two measurements of the same round; beside it are the smallest and the largest. One whose rounds
do not agree on which of the two costs more, or that has a single round, is marked.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.results import table
from bench.security.loads import BY_NAME, Sample
from bench.security.run import COMPARISONS, Comparison, SecurityReport
from penstock.bench.report import number

_ABOUT = """\
`make bench-security` compares a broker with the same broker with one more part of security: CPU time of the broker's process per
request and per MB (10^6 bytes of values), while one connection sends requests one at a time. A ratio of 1.10 means 10 % more CPU. It is the
median of the rounds, with the smallest and the largest; with a ~, the rounds do not agree on which of the two costs more, or there was only one.
"""


def markdown(report: SecurityReport) -> str:
    """The whole section."""
    about = "".join(f"- {name}: {value}\n" for name, value in report.machine.items())
    about += "".join(f"- {name}: not measured, {reason}\n" for name, reason in report.missing.items())
    parts = ["### Security\n", _ABOUT, about]
    parts += [text for each in COMPARISONS if (text := _compared(each, report.samples))]
    names = {sample.load for sample in report.samples}
    if names:
        legend = [[name, load.title] for name, load in BY_NAME.items() if name in names]
        parts.append("#### The loads\n\n" + table(["row", "load"], legend))
    if report.failures:
        parts.append("#### What failed\n\n" + "".join(f"- {failure}\n" for failure in report.failures))
    return "\n".join(parts)


def _compared(comparison: Comparison, samples: list[Sample]) -> str:
    lines = []
    for load in comparison.loads:
        base, other = (_by_turn(samples, name, load) for name in (comparison.base, comparison.other))
        ratios = [other[turn].cpu_us_per_request / base[turn].cpu_us_per_request for turn in base.keys() & other.keys()]
        if not ratios:
            continue
        cells = [_median(each, of) for of in (_per_request, _per_mb) for each in (base, other)]
        lines.append([load, *cells, *_spread(ratios)])
    if not lines:
        return ""
    heads = [f"{what}, {head}" for what in ("CPU us per request", "CPU ms per MB") for head in comparison.heads]
    return f"#### {comparison.title}\n\n" + table(["row", *heads, "ratio", "min to max"], lines)


def _by_turn(samples: list[Sample], system: str, load: str) -> dict[int, Sample]:
    return {sample.turn: sample for sample in samples if (sample.system, sample.load) == (system, load)}


def _per_request(sample: Sample) -> float | None:
    return sample.cpu_us_per_request


def _per_mb(sample: Sample) -> float | None:
    return sample.cpu_ms_per_mb


def _median(by_turn: dict[int, Sample], of: Callable[[Sample], float | None]) -> str:
    values = [value for sample in by_turn.values() if (value := of(sample)) is not None]
    return number(statistics.median(values) if values else None)


def _spread(ratios: list[float]) -> tuple[str, str]:
    is_unclear = len(ratios) < 2 or min(ratios) <= 1 <= max(ratios)
    return f"{statistics.median(ratios):.2f}{' ~' if is_unclear else ''}", f"{min(ratios):.2f} to {max(ratios):.2f}"
