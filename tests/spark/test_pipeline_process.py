"""A pipeline as a process of its own: started, watched, killed, started again, stopped; nothing lost, nothing twice."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from penstock.cli.failures import Exit
from penstock.spark.pipelines.errors import PipelineNotFoundError
from penstock.spark.pipelines.registry import PipelineState, Registry
from tests.spark.sinking import values_in
from tests.support.marked import Mark
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

START_SECONDS = 240.0
WORK_SECONDS = 240.0


class Command:
    """``penstock pipeline`` with a state folder of its own."""

    def __init__(self, folder, bootstrap) -> None:
        self.folder = folder
        self.registry = Registry(folder / "state")
        self.mark = Mark()
        self._bootstrap = bootstrap

    @property
    def environment(self):
        return {
            **os.environ,
            **self.mark.environment,
            "PENSTOCK_STATE_DIR": str(self.registry.folder),
            "PENSTOCK_BOOTSTRAP": self._bootstrap,
        }

    def __call__(self, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "penstock", "pipeline", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )

    def status(self, name):
        return json.loads(self("status", name, "-o", "json").stdout)

    def start(self, file):
        """In the background."""
        done = self("run", str(file), "--detach", "--master", "local[2]", "--conf", "spark.driver.memory=1g")
        assert done.returncode == 0, done.stderr
        # On a machine with much else to do the command may have said that it is still starting.
        self.wait_until("it runs", lambda: self.registry.load("copy").state is PipelineState.RUNNING)
        return self.registry.load("copy")

    @contextmanager
    def in_a_group(self, file):
        """In the foreground of a process group of its own, as a shell and ``timeout`` start a program."""
        arguments = ["run", str(file), "--master", "local[2]", "--conf", "spark.driver.memory=1g"]
        with subprocess.Popen(
            [sys.executable, "-m", "penstock", "pipeline", *arguments],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                eventually(lambda: self.is_run_by(process), WORK_SECONDS, "it runs")
                yield process
            finally:
                self.mark.kill()

    def is_run_by(self, process):
        assert process.poll() is None, process.stderr.read()
        try:
            run = self.registry.load("copy")
        except PipelineNotFoundError:
            return False
        return run.pid == process.pid and run.state is PipelineState.RUNNING

    def wait_until(self, what, holds) -> None:
        def asked():
            run = self.registry.load("copy")
            assert run.state not in (PipelineState.FAILED, PipelineState.STOPPED), (
                run.reason,
                self.registry.log("copy").read_text(),
            )
            return holds()

        eventually(asked, WORK_SECONDS, what)


@pytest.fixture
def command(bootstrap, tmp_path):
    command = Command(tmp_path, bootstrap)
    yield command
    command.mark.kill()


def copy_file(command, topic):
    file = command.folder / "copy.toml"
    file.write_text(
        f'[pipeline]\nname = "copy"\nrate = 40\n[source]\ntopics = "{topic}"\nas = "records"\n'
        f'[[steps]]\nsql = "SELECT key, value FROM records"\n[[sinks]]\nkind = "topic"\ntopic = "{topic}.copy"\n'
    )
    return file


def to_the_group(command, process, number) -> None:
    """As ``timeout`` and a terminal do."""
    del command
    os.killpg(process.pid, number)


def to_all(command, process, number) -> None:
    """As systemd does when a service says no KillMode."""
    del process
    command.mark.signal(number)


@pytest.mark.parametrize(
    ("send", "numbers"), [(to_the_group, (signal.SIGTERM, signal.SIGINT)), (to_all, (signal.SIGTERM,) * 3)]
)
def test_a_signal_to_more_than_the_driver_stops_a_pipeline_cleanly(
    command, bootstrap, topic, produce, send, numbers
) -> None:
    file = copy_file(command, topic)
    sent = [b"%d" % number for number in range(1_500)]
    produce(topic, [(value, value) for value in sent])

    for number in numbers:
        with command.in_a_group(file) as process:
            command.wait_until("a batch of this run", lambda: command.registry.load("copy").rows > 0)
            send(command, process, number)
            _, said = process.communicate(timeout=WORK_SECONDS)
        run = command.registry.load("copy")
        assert (process.returncode, run.state, run.reason) == (0, PipelineState.STOPPED, ""), said
        assert said.splitlines()[-1] == f"Pipeline copy is stopped: {run.rows:,} rows read"

    done = command(
        "run", str(file), "--once", "--rate", "1500", "--master", "local[2]", "--conf", "spark.driver.memory=1g"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(values_in(bootstrap, f"{topic}.copy")) == sorted(sent)


def test_ctrl_c_while_spark_starts_is_answered_at_once(command, topic) -> None:
    arguments = ["archive", topic, "--to", str(command.folder / "lake"), "--master", "local[2]"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "pipeline", *arguments],
        env=command.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        eventually(
            lambda: any(words[0].endswith("/java") for words in command.mark.commands().values()),
            START_SECONDS,
            "Java starts",
        )
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=WORK_SECONDS)
    assert said.splitlines()[1:] == ["starting Spark...", "stopping..."]
    assert process.returncode == Exit.INTERRUPTED


def test_all_of_spark_ends_with_a_driver_that_is_killed(command, topic, produce) -> None:
    produce(topic, [(b"%d" % number, b"value") for number in range(4_000)])
    with command.in_a_group(copy_file(command, topic)) as process:
        command.wait_until("a batch of this run", lambda: command.registry.load("copy").rows > 0)
        programs = [words[0].rpartition("/")[2] for words in command.mark.commands().values()]
        assert "java" in programs
        assert len([name for name in programs if name.startswith("python")]) > 1, "the driver and a worker"
        process.kill()
        process.wait()
        eventually(lambda: not command.mark.pids(), WORK_SECONDS, "all are gone")


def test_a_killed_pipeline_is_shown_as_failed_and_continues_from_its_checkpoint(
    command, bootstrap, topic, produce
) -> None:
    out = f"{topic}.copy"
    file = copy_file(command, topic)
    sent = [b"%d" % number for number in range(300)]
    produce(topic, [(value, value) for value in sent[:200]])

    first = command.start(file)
    assert "is already running" in command("run", str(file)).stderr
    command.wait_until("some batches", lambda: command.registry.load("copy").rows >= 80)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: command.registry.load("copy").state is PipelineState.FAILED, what="the process is gone")
    status = command.status("copy")
    assert status["state"] == "failed"
    assert status["reason"].startswith(f"its process (pid {first.pid}) was killed or crashed")

    produce(topic, [(value, value) for value in sent[200:]])
    second = command.start(file)
    assert second.pid != first.pid
    command.wait_until("all records", lambda: len(values_in(bootstrap, out)) >= len(sent))
    command.wait_until("no lag", lambda: command.registry.load("copy").lag == 0)
    (listed,) = json.loads(command("ls", "-o", "json").stdout)
    assert (listed["name"], listed["state"], listed["lag"]) == ("copy", "running", 0)
    assert listed["rows"] < len(sent), "it went on, and did not begin anew"

    stopped = command("stop", "copy")
    assert (stopped.returncode, stopped.stderr) == (0, "Pipeline copy is stopped\n")
    assert command.status("copy")["state"] == "stopped"
    assert sorted(values_in(bootstrap, out)) == sorted(sent)
