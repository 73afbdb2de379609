"""schemathesis reads the OpenAPI document of a running broker and tries everything that it says, and much that it does not."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.testing.process import BrokerProcess

# Streams that go on until the client has enough.
STREAMS = r"/tail$|^/v1/consume$"
# Whether valid data is accepted depends on which topics and records there are; two follow links that nobody declares; a method that is
# not served is 404 outside /v1, as that API has it, so that 405 is asked for under /v1 alone.
NOT_CHECKED = "positive_data_acceptance,use_after_free,ensure_resource_availability,ignored_auth,unsupported_method"
CHECKED = ["--checks", "all", "--exclude-checks", NOT_CHECKED]
# Paths that lead somewhere, so that more is reached than a 404.
REAL = (
    '[parameters]\n"path.topic" = "orders"\n"path.partition" = "0"\n"path.group" = "workers"\n"path.consumer" = "c"\n'
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"log.flush": "os", "groups.offsets_topic_partitions": 4, "limits.partitions_max": 2000}
    with BrokerProcess(tmp_path_factory.mktemp("openapi") / "data", settings, http="127.0.0.1:0") as broker:
        base = f"http://{broker.addresses['http']}"
        httpx.post(f"{base}/topics", json={"name": "orders"}).raise_for_status()
        httpx.post(f"{base}/topics/orders/messages", json=[{"value": "x"}] * 10).raise_for_status()
        body = {"topic_name": "orders", "consumer_id": "c", "session_timeout_ms": 600_000}
        httpx.post(f"{base}/consumers/workers/members", json=body).raise_for_status()
        yield broker
        assert broker.running, f"the broker died under the suite:\n{broker.log_text()}"
        assert "Traceback" not in broker.log_text(), broker.log_text()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("config", "checks", "more"),
    [
        ("", CHECKED, []),
        (REAL, CHECKED, ["--exclude-method", "DELETE"]),
        (REAL, ["--checks", "unsupported_method"], ["--include-path-regex", "^/v1/"]),
    ],
    ids=["any path", "paths that lead somewhere", "methods under /v1"],
)
def test_the_api_does_what_its_document_says(
    broker: BrokerProcess, tmp_path: Path, config: str, checks: list[str], more: list[str]
) -> None:
    (tmp_path / "schemathesis.toml").write_text(config)
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        *checks,
        *("--exclude-path-regex", STREAMS),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--request-timeout", "20", "--no-color"),
        *("--continue-on-failure", "--generation-database", "none", "--seed", "1"),
        *more,
        f"http://{broker.addresses['http']}/openapi.json",
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
