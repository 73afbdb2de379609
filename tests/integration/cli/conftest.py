"""The command as a user runs it: a process of its own."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

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


@pytest.fixture
def environment(penstock_broker):
    return {**os.environ, "PENSTOCK_BOOTSTRAP": penstock_broker.bootstrap}


@pytest.fixture
def penstock(environment):
    """Run ``penstock WORDS`` with this stdin; it must succeed unless ``code`` says otherwise."""

    def run(*words, stdin=b"", code=0):
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            input=stdin if isinstance(stdin, bytes) else stdin.encode(),
            capture_output=True,
            env=environment,
            timeout=SECONDS_MAX,
            check=False,
        )
        shown = Done(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())
        assert "Traceback" not in shown.err
        assert shown.code == code, shown
        return shown

    return run


@pytest.fixture
def topic(penstock):
    name = f"cli-{next(numbers)}"
    penstock("topic", "create", name, "--partitions", "2")
    return name
