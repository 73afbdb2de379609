"""kill -9 of the driver at every step of a batch, then another start from the same checkpoint: nothing lost, nothing twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.discovery import http_addresses
from penstock.client.sinks import SinkClient
from tests.spark.sinking import values_in
from tests.support.marked import Mark
from tests.support.waiting import eventually

DRIVER = Path(__file__).parent / "kill_driver" / "driver.py"
FILES = 6
ROWS_PER_FILE = 3000
SECONDS = 300.0


class Driver:
    """One run of the driver, with the JVM that it starts."""

    def __init__(self, told, log) -> None:
        self._log = log
        self._mark = Mark()
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self._mark.environment},
            )

    def kill_at(self, marker) -> None:
        try:
            eventually(lambda: marker.exists() or self._ended(), SECONDS, f"the driver at {marker.name}")
            assert marker.exists(), self._log.read_text()[-5000:]
        finally:
            self._kill()
        marker.unlink()

    def finish(self) -> None:
        try:
            assert self._process.wait(SECONDS) == 0, self._log.read_text()[-5000:]
        finally:
            self._kill()

    def _kill(self) -> None:
        self._mark.kill()
        self._process.wait(SECONDS)

    def _ended(self):
        return self._process.poll() is not None


@pytest.fixture
def places(tmp_path):
    places = {name: tmp_path / name for name in ("input", "checkpoint", "markers")}
    for name in ("input", "markers"):
        places[name].mkdir()
    os.mkfifo(places["markers"] / "pipe")
    return places


@pytest.mark.timeout(1500)
def test_a_driver_killed_anywhere_loses_nothing_and_repeats_nothing(
    bootstrap, cluster, topic, places, tmp_path
) -> None:
    rows = [b"%08d" % number for number in range(FILES * ROWS_PER_FILE)]
    for number in range(FILES):
        part = rows[number * ROWS_PER_FILE : (number + 1) * ROWS_PER_FILE]
        (places["input"] / f"{number}.txt").write_bytes(b"\n".join(part) + b"\n")
    told = {name: str(path) for name, path in places.items()} | {"bootstrap": bootstrap, "topic": topic}

    def driver(hold):
        return Driver({**told, "hold": hold}, tmp_path / "driver.log")

    def status():
        query = json.loads((places["checkpoint"] / "metadata").read_text())["id"]
        with SinkClient(http_addresses(cluster)) as client:
            return client.status(query)

    batch = len(rows) // (FILES // 2)
    driver("write").kill_at(places["markers"] / "write")
    assert (places["markers"] / "failed").exists()
    assert values_in(bootstrap, topic) == []

    driver("before").kill_at(places["markers"] / "before")
    assert status().staged_bytes > 0
    assert values_in(bootstrap, topic) == []

    driver("after").kill_at(places["markers"] / "after")
    assert status().last_batch_id == 0
    assert not (places["checkpoint"] / "commits" / "0").exists()
    seen = values_in(bootstrap, topic)
    assert len(seen) == len(set(seen)) == batch

    driver(None).finish()
    assert values_in(bootstrap, topic) == rows
    assert status().last_batch_id == FILES // 2 - 1
