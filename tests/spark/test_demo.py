"""``make demo``, from its first line to its last, and what it leaves behind: nothing."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(tmp_path):
    """Start it, with its temporary folder in the test's own."""
    home = tmp_path / "tmp"
    home.mkdir()
    started: list[subprocess.Popen[str]] = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(home), "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    start.home = home  # type: ignore[attr-defined]
    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
        process.stdout.close()


def processes_of(folder):
    """Whatever runs with the folder on its command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in command:
            found.append((int(entry.name), command.replace(b"\0", b" ").decode(errors="replace")[:200]))
    return found


def left_nothing(demo) -> None:
    eventually(lambda: not processes_of(demo.home), 60, "its processes end")
    assert [path.name for path in demo.home.iterdir() if path.name.startswith("penstock-demo-")] == []


@pytest.mark.timeout(420)
def test_the_demo_tells_its_story_counts_every_paid_order_once_and_leaves_nothing(demo) -> None:
    process = demo("--orders", "120", "--seconds", "8")
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    paid, ordered = map(int, re.search(r"(\d+) of (\d+) orders are paid", said).groups())
    (dead,) = map(int, re.search(r"(\d+) orders could not be billed", said).groups())
    assert (ordered, paid + dead) == (120, 120)
    assert f"{paid} paid orders were counted, each once" in said
    assert "card declined" in said
    table = {name: int(orders) for name, orders in re.findall(r"^(\w+) +(\d+) +[\d.,]+$", said, re.MULTILINE)}
    assert sum(table.values()) == paid
    assert re.search(r"^\d\d:\d\d:\d\d +[\d.,]+ +█+", said, re.MULTILINE)
    assert "What to try next" in said
    assert "\x1b[" not in said
    left_nothing(demo)


@pytest.mark.timeout(420)
def test_what_is_kept_can_be_looked_at_with_the_commands_that_it_tells_and_ends_at_ctrl_c(demo) -> None:
    process = demo("--keep", "--orders", "20", "--seconds", "1")
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if "To stop, press Ctrl-C here" in line:
            break
    told = "".join(said)
    assert f"kill {process.pid} there" in told
    exported = re.search(r"export (PENSTOCK_BOOTSTRAP=\S+) (PENSTOCK_HTTP=\S+)", told)
    assert exported, told
    environment = os.environ | dict(each.split("=", 1) for each in exported.groups())
    for words, found in (("topic ls", "sales"), ("dlq ls", "dlq.orders")):
        (command,) = re.findall(rf"^ +(\S*penstock {words})$", told, re.MULTILINE)
        shown = subprocess.check_output(command.split(), cwd=ROOT, env=environment, text=True, timeout=60)
        assert found in shown
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=100)
    assert process.returncode == 0, rest
    assert "Everything is stopped, and the temporary folder is removed" in rest
    left_nothing(demo)


@pytest.mark.timeout(180)
def test_ctrl_c_ends_it_with_all_that_it_started(demo) -> None:
    process = demo("--orders", "500", "--seconds", "100")
    selling = threading.Event()
    said: list[str] = []

    def listen() -> None:
        for line in process.stdout:
            said.append(line)
            if "workers bill them" in line:
                selling.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert selling.wait(90), "".join(said)
    # A process that was started a moment ago may not have its command line yet.
    eventually(lambda: len(processes_of(demo.home)) >= 2, 60, "the broker and the pipeline run")
    process.send_signal(signal.SIGINT)
    assert process.wait(100) == 130, "".join(said)
    listener.join(10)
    assert said.count("stopping...\n") == 1
    assert said.index("stopping...\n") < said.index("Interrupted; everything is stopped.\n")
    assert "Traceback" not in "".join(said)
    left_nothing(demo)
