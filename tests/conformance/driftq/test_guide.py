"""The guide for people, docs/queues.md: every command of it, as it stands there, in its order, against one broker."""

import json
import re
import subprocess
from pathlib import Path

from penstock.testing.process import BrokerProcess
from tests.support.waiting import eventually

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "queues.md"
ADDRESS = "127.0.0.1:8080"
CURL_TIMED_OUT = 28


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    found: list[str] = []
    for block in blocks:
        # A command ends with its line, unless a quote is open: bodies stand on several lines.
        command = ""
        for line in block.splitlines():
            command += line + "\n"
            if command.count("'") % 2 == 0:
                found.append(command.strip())
                command = ""
        assert not command, f"an open quote in:\n{block}"
    return found


def first_lines(command: str, address: str, count: int) -> list[dict]:
    """What a stream prints first. Then its reader leaves, and keeps its leases: it acks later."""
    told = "exec " + command.replace("curl ", "curl -sS ", 1).replace(ADDRESS, address)
    with subprocess.Popen(["bash", "-c", told], stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        lines = [json.loads(curl.stdout.readline()) for _ in range(count)]
        curl.kill()
    return lines


def run(command: str, address: str) -> list[dict]:
    told = command.replace(ADDRESS, address).replace("curl ", "curl -sS --fail-with-body --max-time 30 ", 1)
    done = subprocess.run(["bash", "-c", told], capture_output=True, text=True, check=False)
    expected = CURL_TIMED_OUT if "--max-time" in command else 0
    assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_command_of_the_guide_does_what_it_says(tmp_path) -> None:
    serve, *curls = commands()
    assert serve.startswith("penstock serve ")
    assert len(curls) >= 18
    answers: list[tuple[str, list[dict]]] = []
    with BrokerProcess(tmp_path / "data", http="127.0.0.1:0") as broker:
        address = broker.addresses["http"]
        for command in curls:
            assert command.startswith("curl "), command
            if "/v1/consume" in command and "--max-time" not in command:
                assert [line["offset"] for line in first_lines(command, address, 2)] == [0, 1]
                continue
            if "/v1/dlq" in command and not any("/v1/dlq" in earlier for earlier, _ in answers):
                # The dead letter is there a moment after the nack that made it.
                eventually(lambda: run(f"curl http://{ADDRESS}/v1/dlq", address)[0]["topics"])
            answers.append((command, run(command, address)))

    def told(part: str) -> list[dict]:
        return [line for command, lines in answers if part in command for line in lines]

    assert [(line["offset"], line["attempts"]) for line in told("--max-time")] == [(0, 1)]
    assert [record["offset"] for answer in told("/v1/lease") for record in answer["records"]] == [1, 2]
    assert "worker-2" in told("/v1/why")[0]["sentence"]
    assert told("/plan")[0]["count"] == 1
    assert (told("/redrive")[-1]["done"], told("/redrive")[-1]["finished"]) == (True, 1)
    assert [answer.get("duplicate") for answer in told("Idempotency-Key")] == [None, True]
