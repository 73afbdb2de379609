"""The first section of docs/security.md is carried out as it is written, but for the addresses."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from penstock.testing.process import BrokerProcess

SECTION: Final = (
    (Path(__file__).resolve().parents[3] / "docs" / "security.md")
    .read_text(encoding="utf-8")
    .partition("## From loopback to a network")[2]
    .partition("\n## ")[0]
)
PREPARE, USE = re.findall(r"^```sh\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
[CONFIG] = re.findall(r"^```toml\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)


def run(commands: str, folder: Path) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PENSTOCK_CONTEXTS_FILE": str(folder / "contexts.toml"),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def settings(folder: Path) -> dict[str, object]:
    """The documented settings, without addresses, which the test cannot use."""
    sections = tomllib.loads(CONFIG)
    assert sections.pop("listeners") == {
        "kafka": "0.0.0.0:9092",
        "advertised_kafka": "broker.example.com:9092",
        "http": "0.0.0.0:8080",
    }
    named = {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
    return {name: folder / value if name.endswith("_file") else value for name, value in named.items()}


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[BrokerProcess]:
    run(PREPARE, tmp_path)
    broker = BrokerProcess(tmp_path / "data", settings(tmp_path), http="127.0.0.1:0").start()
    yield broker
    assert broker.stop() == 0


def test_the_first_steps_end_with_a_worker_that_may_work(prepared: BrokerProcess, tmp_path: Path) -> None:
    assert prepared.encrypted == {"kafka", "http"}
    for port in (9092, 8080):
        assert f"broker.example.com:{port}" in USE
    commands = USE.replace("broker.example.com:9092", prepared.bootstrap)
    run(commands.replace("broker.example.com:8080", prepared.addresses["http"]), tmp_path)
    worker = "--tls-ca tls/ca.crt --token-file paul.key"
    leased = run(f"penstock queue lease cartons --group cartons {worker} --http {prepared.addresses['http']}", tmp_path)
    assert "cartons/" not in leased
    run(f"! penstock topic rm cartons --yes {worker} -b {prepared.bootstrap}", tmp_path)
    assert run("penstock acl check User:paul read topic:cartons", tmp_path).startswith("User:paul may read")
