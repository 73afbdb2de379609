"""A pipeline as a process of its own: started, watched, killed, started again, stopped; nothing lost, nothing twice."""

import json
import os
import signal
import subprocess
import sys

import pytest

from penstock.spark.pipelines.registry import Registry, State
from tests.spark.sinking import values_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

START_SECONDS = 240.0
WORK_SECONDS = 240.0


class Command:
    """``penstock pipeline`` with a state folder of its own."""

    def __init__(self, folder, bootstrap):
        self.folder = folder
        self.registry = Registry(folder / "state")
        self._bootstrap = bootstrap

    def __call__(self, *arguments):
        environment = {
            **os.environ,
            "PENSTOCK_STATE_DIR": str(self.registry.folder),
            "PENSTOCK_BOOTSTRAP": self._bootstrap,
        }
        return subprocess.run(
            [sys.executable, "-m", "penstock", "pipeline", *arguments],
            env=environment,
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
        self.wait_until("it runs", lambda: self.registry.load("copy").state is State.RUNNING)
        return self.registry.load("copy")

    def wait_until(self, what, holds):
        def asked():
            run = self.registry.load("copy")
            assert run.state not in (State.FAILED, State.STOPPED), (run.reason, self.registry.log("copy").read_text())
            return holds()

        eventually(asked, WORK_SECONDS, what)


@pytest.fixture
def command(bootstrap, tmp_path):
    command = Command(tmp_path, bootstrap)
    yield command
    for run in command.registry.all():
        if run.state in (State.STARTING, State.RUNNING, State.STOPPING):
            os.kill(run.pid, signal.SIGKILL)


def test_a_killed_pipeline_is_told_as_failed_and_goes_on_from_its_checkpoint(command, bootstrap, topic, produce):
    out = f"{topic}.copy"
    file = command.folder / "copy.toml"
    file.write_text(
        f'[pipeline]\nname = "copy"\nrate = 40\n[source]\ntopics = "{topic}"\nas = "records"\n'
        f'[[steps]]\nsql = "SELECT key, value FROM records"\n[[sinks]]\nkind = "topic"\ntopic = "{out}"\n'
    )
    sent = [b"%d" % number for number in range(300)]
    produce(topic, [(value, value) for value in sent[:200]])

    first = command.start(file)
    assert "is running already" in command("run", str(file)).stderr
    command.wait_until("some batches", lambda: command.registry.load("copy").rows >= 80)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: command.registry.load("copy").state is State.FAILED, what="the process is gone")
    status = command.status("copy")
    assert status["state"] == "failed"
    assert status["reason"].startswith(f"its process (pid {first.pid}) is gone without a word")

    produce(topic, [(value, value) for value in sent[200:]])
    second = command.start(file)
    assert second.pid != first.pid
    command.wait_until("all records", lambda: len(values_in(bootstrap, out)) >= len(sent))
    command.wait_until("no lag", lambda: command.registry.load("copy").lag == 0)
    (listed,) = json.loads(command("ls", "-o", "json").stdout)
    assert (listed["name"], listed["state"], listed["lag"]) == ("copy", "running", 0)
    assert listed["rows"] < len(sent), "it went on, and did not begin anew"

    stopped = command("stop", "copy")
    assert (stopped.returncode, stopped.stderr) == (0, "pipeline copy is stopped\n")
    assert command.status("copy")["state"] == "stopped"
    assert sorted(values_in(bootstrap, out)) == sorted(sent)
