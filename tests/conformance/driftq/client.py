"""A user of /v1: httpx for calls and streams, curl for what a person types."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

SECONDS = 60.0


@dataclass
class Curled:
    """What curl printed."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Stream:
    """A consume stream: each ``next`` waits for the next line."""

    response: httpx.Response
    lines: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.response.iter_lines()

    def next(self) -> dict:
        return json.loads(next(self.lines))

    def take(self, count: int) -> list[dict]:
        return [self.next() for _ in range(count)]


class Driftq:
    def __init__(self, address: str) -> None:
        self.url = f"http://{address}"
        self.http = httpx.Client(base_url=self.url, timeout=SECONDS)

    def close(self) -> None:
        self.http.close()

    def curl(self, *arguments: str) -> Curled:
        """``curl -i`` with a path where the URL goes."""
        words = [self.url + word if word.startswith("/v1") else word for word in arguments]
        done = subprocess.run(
            ["curl", "-s", "-i", "--max-time", str(SECONDS), *words], capture_output=True, text=True, check=True
        )
        head, _, body = done.stdout.partition("\n\n")
        first, *lines = head.splitlines()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Curled(int(first.split()[1]), headers, body)

    def create(self, topic: str, partitions: int = 1) -> str:
        answer = self.http.post("/v1/topics", json={"name": topic, "partitions": partitions})
        assert answer.status_code == 201, answer.text
        return topic

    def produce(self, topic: str, value: str, key: str | None = None, **envelope) -> dict:
        answer = self.produced(topic, value, key, **envelope)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def produced(self, topic: str, value: str, key: str | None = None, **envelope) -> httpx.Response:
        body = {"topic": topic, "value": value, **({"key": key} if key else {})}
        return self.http.post("/v1/produce", json={**body, **({"envelope": envelope} if envelope else {})})

    def settle(self, call: str, topic: str, owner: str, line: dict, group: str = "g", **more) -> httpx.Response:
        """Ack, nack, ack-cumulative or extend the record of a line."""
        place = {"partition": line["partition"], "offset": line["offset"]}
        return self.http.post(f"/v1/{call}", json={"topic": topic, "group": group, "owner": owner, **place, **more})

    def ack(self, topic: str, owner: str, line: dict, group: str = "g") -> None:
        answer = self.settle("ack", topic, owner, line, group)
        assert (answer.status_code, answer.content) == (204, b""), answer.text

    def nack(self, topic: str, owner: str, line: dict, reason: str, group: str = "g") -> None:
        answer = self.settle("nack", topic, owner, line, group, reason=reason)
        assert (answer.status_code, answer.content) == (204, b""), answer.text

    def why(self, topic: str, partition: int, offset: int, group: str = "g") -> dict:
        place = {"topic": topic, "partition": partition, "offset": offset, "group": group}
        answer = self.http.get("/v1/why", params=place)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self, topic: str, group: str = "g") -> dict:
        answer = self.http.get(f"/v1/queues/{topic}/{group}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def lease(self, topic: str, owner: str, group: str = "g", lease_ms: int = 60_000, **more) -> list[dict]:
        fields = {"topic": topic, "group": group, "owner": owner, "lease_ms": lease_ms}
        answer = self.http.post("/v1/lease", json={**fields, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["records"]

    @contextmanager
    def consume(self, topic: str, owner: str, group: str = "g", lease_ms: int = 60_000, **more) -> Iterator[Stream]:
        """A stream on a connection of its own, closed at the end of the block."""
        fields = {"topic": topic, "group": group, "owner": owner, "lease_ms": lease_ms, **more}
        with (
            httpx.Client(base_url=self.url, timeout=SECONDS) as client,
            client.stream("GET", "/v1/consume", params=fields) as response,
        ):
            assert response.status_code == 200, response.read()
            yield Stream(response)
