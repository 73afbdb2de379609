"""The audit log of a real broker: in a file and in the topic, across a restart."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.client import Admin, Cluster
from penstock.testing.process import BrokerProcess


def consumed(bootstrap: str, count: int) -> list[dict[str, Any]]:
    """What ``penstock consume __audit`` prints."""
    words = ["consume", "__audit", "--bootstrap", bootstrap, "-n", str(count)]
    found = subprocess.run(
        [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=True, timeout=60
    )
    return [json.loads(line) for line in found.stdout.splitlines()]


def operations(records: list[dict[str, Any]]) -> list[str]:
    return [record["operation"] for record in records]


def test_changes_are_in_the_file_and_in_the_topic(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    settings = {"audit.mode": "on", "audit.file": str(path), "audit.required": True}
    wanted = ["Start", "CreateTopic", "CreateTopic", "Stop", "Start", "DeleteTopic", "DeleteTopic"]
    with BrokerProcess(tmp_path / "data", settings) as broker, Cluster(broker.bootstrap, client_id="me") as cluster:
        Admin(cluster).create_topic("orders")
        assert broker.stop() == 0
    with BrokerProcess(tmp_path / "data", settings) as broker:
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).delete_topic("orders")
        in_topic = consumed(broker.bootstrap, len(wanted))
        assert broker.stop() == 0
    in_file = [json.loads(line) for line in path.read_text().splitlines()]
    assert operations(in_topic) == wanted
    assert operations(in_file) == [*wanted, "Stop"]
    created = in_file[2]
    assert (created["result"], created["resources"], created["client"], created["client_id"]) == (
        "success",
        ["orders"],
        "127.0.0.1",
        "me",
    )


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    settings = {"audit.mode": "on", "audit.file": str(tmp_path / "absent" / "audit.log")}
    broker = BrokerProcess(tmp_path / "data", settings)
    try:
        broker.start()
    except RuntimeError as error:
        assert "Cannot write the audit log" in str(error)
    else:
        broker.stop()
        raise AssertionError("the broker started without its audit log")
