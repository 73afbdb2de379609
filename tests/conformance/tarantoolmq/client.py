"""curl, as a person types it: a method, a path, a body; back come the status and the JSON."""

import json
import subprocess
from typing import Any, NamedTuple


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Curl:
    """``address`` is HOST:PORT of a broker's HTTP listener."""

    def __init__(self, address: str) -> None:
        self.base = f"http://{address}"

    def __call__(self, method: str, path: str, body: Any = None, *more: str) -> Reply:
        words = ["curl", "-sS", "-i", "--max-time", "60", "-X", method, f"{self.base}{path}", *more]
        if body is not None:
            text = body if isinstance(body, str) else json.dumps(body)
            words += ["-H", "Content-Type: application/json", "--data-binary", text]
        output = subprocess.run(words, check=True, capture_output=True).stdout.decode()
        head, _, content = output.partition("\r\n\r\n")
        status, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Reply(int(status.split()[1]), json.loads(content) if content else None, headers)

    def get(self, path: str, *more: str) -> Reply:
        return self("GET", path, None, *more)

    def post(self, path: str, body: Any = None) -> Reply:
        return self("POST", path, body)
