"""Runs built-in pipelines in the test's own session, and in processes that can be killed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Never

import msgspec

from penstock.spark.pipelines.builtin import builtin_named
from penstock.spark.pipelines.registry import Registry
from penstock.spark.pipelines.run import Execution, RunSettings
from penstock.spark.pipelines.values import Trigger
from tests.support.marked import Mark


class Silent:
    """A screen that nobody looks at; what was said is kept."""

    def __init__(self) -> None:
        self.notes = []
        self.rows = []
        self.done = 0

    def show(self, run) -> None:
        pass

    def clear(self) -> None:
        pass

    def progress(self, what, total):
        del what, total
        return self

    def advance(self, amount=1, note="") -> None:
        del note
        self.done += amount

    def emit(self, rows, columns, nothing) -> None:
        del columns, nothing
        self.rows += rows

    def note(self, text) -> None:
        self.notes.append(text)

    def confirm(self, question) -> Never:
        raise AssertionError(f"nobody is there to answer: {question}")


def run_builtin(spark, kind, arguments, *, bootstrap, state, name="", rate=None, checkpoint=""):
    """One run that does all there is and ends; gives back the screen."""
    builtin = builtin_named(kind)
    screen = Silent()
    settings = RunSettings(
        name=name or kind, kind=kind, bootstrap=bootstrap, checkpoint=checkpoint, trigger=Trigger(once=True), rate=rate
    )
    execution = Execution(settings, Registry(Path(state)), screen, make_session=lambda _: spark)
    execution.execute(lambda context: builtin.run(msgspec.convert(arguments, builtin.arguments), context))
    return screen


class PipelineProcess:
    """``penstock pipeline ...`` with its JVM and its Python workers."""

    def __init__(self, *words, log, environment=None) -> None:
        self._log = log.open("ab")
        self._mark = Mark()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "pipeline", *words],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {}), **self._mark.environment},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def running(self):
        return self._process.poll() is None

    def wait(self, seconds):
        return self._process.wait(seconds)

    def kill(self) -> None:
        """kill -9 to all of it: driver, JVM, workers."""
        self._mark.kill()
        self._process.wait()
        self._log.close()

    def pythons(self):
        """All but the JVM, whose memory is what it was given."""
        return [pid for pid, words in self._mark.commands().items() if "python" in words[0]]

    def python_workers(self):
        """Those that run tasks: forked from the daemon of tasks, which is their parent.

        Spark has more daemons, named by what they are for: those plan and commit for the driver, and nothing
        tries again what one of them did when it dies.
        """
        commands = self._mark.commands()
        daemons = {pid for pid, words in commands.items() if words[-2:] == ["pyspark.daemon", "pyspark.worker"]}
        return [pid for pid in daemons if parent_of(pid) in daemons]


def peak_bytes(pid):
    """The most memory that a process had so far; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def command_of(pid):
    """How a process was started; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent_of(pid):
    """Who started a process; -1 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1
