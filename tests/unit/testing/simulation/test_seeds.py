"""Many seeds on several processes: reports in order, a sum at the end, and a way to continue."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.testing.simulation import seeds as seeds_module
from penstock.testing.simulation.__main__ import main, report_all
from penstock.testing.simulation.seeds import Report, parsed, run_seeds, shown
from penstock.testing.simulation.simulation import SimulationResult

PROGRAM = (sys.executable, "-m", "penstock.testing.simulation")
HANGS_SECONDS = 120


def run_badly(seed: int) -> Report:
    """Stands for a seed: every third does not hold."""
    return Report(seed, seed % 3 != 0, f"seed {seed}")


@pytest.mark.parametrize("text", ["7", "1-200", "3,5,10-20", "4-5,9"])
def test_seeds_are_shown_as_they_are_written(text: str) -> None:
    assert shown(parsed(text)) == text


@pytest.mark.parametrize("text", ["", "x", "1-", "-3", "5-3", "1,,2"])
def test_what_is_not_a_list_of_seeds_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["--", text])
    assert refusal.value.code == 2
    assert f"{text!r} is not a list of seeds such as 7, 1-200 or 3,5,10-20" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_reports_come_in_the_order_of_the_seeds_and_each_once(jobs: int) -> None:
    wanted = [*range(50, 0, -1), *range(51, 80)]
    assert [report.seed for report in run_seeds(wanted, jobs, run_badly)] == wanted


@pytest.mark.parametrize("jobs", [1, 2])
def test_seeds_that_do_not_hold_are_listed_at_the_end(jobs: int, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = [1, 2, 3, 4, 6, 9, 10]
    assert report_all(wanted, run_seeds(wanted, jobs, run_badly)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["[1/7] seed 1", "[2/7] seed 2", "seed 3"]
    assert lines[-2].startswith("7 seeds in ")
    assert lines[-1] == "3 seeds failed; repeat with: make simulate SEEDS=3,6,9"


def test_several_processes_report_what_one_does() -> None:
    found = [
        subprocess.run((*PROGRAM, "1-3", "--jobs", jobs), capture_output=True, text=True, check=True).stdout
        for jobs in ("1", "2")
    ]
    one, two = ([line for line in each.splitlines() if line.startswith("[")] for each in found)
    assert one == two
    assert [line.split(":")[0] for line in one] == ["[1/3] seed 1", "[2/3] seed 2", "[3/3] seed 3"]


def test_a_run_that_is_stopped_says_where_to_continue_and_leaves_no_process() -> None:
    with subprocess.Popen((*PROGRAM, "1-1000", "--jobs", "2"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("[1/1000] seed 1: holds")
        process.send_signal(signal.SIGTERM)
        # The pipe ends when the last process that has it is gone.
        *_, stopped, total = process.communicate(timeout=HANGS_SECONDS)[0].splitlines()
    done = int(total.split()[0])
    assert stopped == f"stopped; continue with: make simulate SEEDS={done + 1}-1000"
    assert process.returncode == 130


def test_a_simulation_that_fails_itself_is_a_seed_that_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate = seeds_module.simulate  # type: ignore[attr-defined]

    def failing(seed: int) -> SimulationResult:
        if seed == 1:
            raise ZeroDivisionError("the world ends")
        return simulate(seed)

    monkeypatch.setattr(seeds_module, "simulate", failing)
    assert main(["1-2", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    assert "ZeroDivisionError: the world ends\nseed 1: the simulation itself failed\n" in printed
    assert "[2/2] seed 2: holds" in printed
    assert printed.endswith("1 seeds failed; repeat with: make simulate SEEDS=1\n")


def test_events_are_shown_of_one_seed_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["1-2", "--verbose", "--jobs", "2"])
    assert "remove --jobs" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """``main`` takes SIGTERM for Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
