"""The command, in this process or in one of its own."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from penstock.cli import main

numbers = itertools.count()
SECONDS_MAX = 60


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="session")
def environment(penstock_broker, tmp_path_factory):
    # A hundred processes start here; each compiling everything anew would be most of the time.
    cache = {"PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("bytecode")), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **cache, "PENSTOCK_BOOTSTRAP": penstock_broker.bootstrap}


@pytest.fixture
def penstock(penstock_broker, monkeypatch, tmp_path):
    """Run ``penstock WORDS`` with this stdin; it must succeed unless ``code`` says otherwise.

    It runs in this process, with real files as stdin, stdout and stderr: starting a process each time would be most of the
    time. ``penstock_process`` starts one.
    """
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", penstock_broker.bootstrap)

    def run(*words, stdin=b"", code=0):
        (tmp_path / "stdin").write_bytes(stdin if isinstance(stdin, bytes) else stdin.encode(errors="surrogateescape"))
        with (
            (tmp_path / "stdin").open() as standard_input,
            (tmp_path / "stdout").open("w") as standard_output,
            (tmp_path / "stderr").open("w") as standard_error,
            monkeypatch.context() as patch,
        ):
            patch.setattr(sys, "stdin", standard_input)
            patch.setattr(sys, "stdout", standard_output)
            patch.setattr(sys, "stderr", standard_error)
            ended = main.run(words)
        out = (tmp_path / "stdout").read_bytes().decode(errors="surrogateescape")
        return checked(Done(ended, out, (tmp_path / "stderr").read_text()), code)

    return run


@pytest.fixture
def penstock_process(environment):
    """The same, in a process of its own, as a user runs it."""

    def run(*words, stdin=b"", code=0):
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            input=stdin if isinstance(stdin, bytes) else stdin.encode(),
            capture_output=True,
            env=environment,
            timeout=SECONDS_MAX,
            check=False,
        )
        out = done.stdout.decode(errors="surrogateescape")
        return checked(Done(done.returncode, out, done.stderr.decode()), code)

    return run


def checked(done, code):
    assert "Traceback" not in done.err
    assert done.code == code, done
    return done


@pytest.fixture
def topic(penstock):
    name = f"cli-{next(numbers)}"
    penstock("topic", "create", name, "--partitions", "2")
    return name
