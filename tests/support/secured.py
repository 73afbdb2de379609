"""A broker process that requires a login, with or without TLS; clients that may log in at each of its doors; and what strangers could change."""

import http.client
import json
import resource
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import grpc

from penstock.client import ClientSecurity, Cluster
from penstock.testing.process import BrokerProcess
from penstock.wire.mq import mq_generated as mq
from tests.support import tokens
from tests.support.certificates import Authority, tls_settings

ADMIN, PASSWORD = "admin", "right horse, right battery"
ANYWHERE = "127.0.0.1:0"
SECONDS_MAX = 60.0
MOVING = ("_per_second", "age_ms", "lag_ms")
LISTS = ("topics", "groups", "queues", "sinks", "dlq", "users", "keys", "roles", "acls", "quotas")


class SecuredProcess(BrokerProcess):
    """``penstock serve`` with a login at every door, all files in ``folder``."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None, *, tls: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        password, keys = folder / "password", folder / "keys.json"
        password.touch(mode=0o600)
        password.write_text(PASSWORD + "\n")
        self.provider = tokens.Provider().publish(keys)
        self.authority = Authority(folder) if tls else None
        chosen: dict[str, object] = {
            "security.authentication": "required",
            "security.admin_password_file": str(password),
            "groups.offsets_topic_partitions": 1,
            "groups.initial_rebalance_delay_ms": 0,
            "log.flush": "os",
            **tokens.settings(keys),
            **(tls_settings(self.authority) if self.authority else {}),
            **(settings or {}),
        }
        super().__init__(folder / "data", chosen, http=ANYWHERE, tcp=ANYWHERE, grpc=ANYWHERE)

    def place(self, door: str) -> tuple[str, int]:
        """Host and port of a listener."""
        host, _, port = self.addresses[door].rpartition(":")
        return host, int(port)

    @property
    def context(self) -> ssl.SSLContext | None:
        """For clients that trust it; None without TLS."""
        return None if self.authority is None else self.authority.context

    @property
    def security(self) -> ClientSecurity:
        """For the clients of ``penstock.client``."""
        ca_file = None if self.authority is None else str(self.authority.file)
        return ClientSecurity(ca_file=ca_file, user=ADMIN, password=PASSWORD)

    def resident_bytes(self) -> int:
        """What the process has in memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    # Each of these logs in and asks for something.

    def enter(self, door: str) -> None:
        """Log in at a door as the administrator, and list the topics."""
        {"kafka": self._kafka, "http": self._http, "tcp": self._lines, "grpc": self._grpc}[door]()

    def _kafka(self) -> None:
        with Cluster(self.bootstrap, security=self.security) as cluster:
            assert cluster.describe(None).topics is not None

    def _http(self) -> None:
        assert "topics" in self.get("/v1/topics")

    def _lines(self) -> None:
        with self.connect("tcp") as sock, sock.makefile("rwb") as lines:
            login = json.dumps({"type": "auth", "user": ADMIN, "password": PASSWORD})
            lines.write(login.encode() + b'\n{"type":"listTopics"}\n')
            lines.flush()
            assert [json.loads(lines.readline())["ok"] for _ in range(2)] == [True, True]

    def _grpc(self) -> None:
        with self.channel() as channel:
            method = channel.unary_unary("/mq.MessageQueueService/ListTopics")
            last = monotonic() + SECONDS_MAX
            while True:
                try:
                    method(mq.ListTopicsRequest().SerializeToString(), timeout=SECONDS_MAX, metadata=(basic(),))
                    return
                except grpc.RpcError as error:
                    # grpcio cancels calls by itself while more arrive than it serves: a client calls again.
                    if error.code() is not grpc.StatusCode.CANCELLED or monotonic() > last:
                        raise

    def connect(self, door: str, source: str = "127.0.0.1") -> socket.socket:
        """A connection, with TLS if the broker has it."""
        sock = socket.create_connection(self.place(door), SECONDS_MAX, (source, 0))
        return sock if self.context is None else self.context.wrap_socket(sock, server_hostname="127.0.0.1")

    def channel(self) -> grpc.Channel:
        """For calls."""
        if self.authority is None:
            return grpc.insecure_channel(self.addresses["grpc"])
        return grpc.secure_channel(
            self.addresses["grpc"], grpc.ssl_channel_credentials(self.authority.file.read_bytes())
        )

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One HTTP request, with the administrator's credential if no headers are given."""
        host, port = self.place("http")
        connection = (
            http.client.HTTPConnection(host, port, timeout=SECONDS_MAX)
            if self.context is None
            else http.client.HTTPSConnection(host, port, timeout=SECONDS_MAX, context=self.context)
        )
        try:
            sent = dict([basic()]) if headers is None else dict(headers)
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {**sent, "content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """What the administrator sees."""
        status, body = self.ask("GET", path)
        assert status == 200, body
        return json.loads(body)

    def state(self) -> dict[str, Any]:
        """All that a caller could have changed. The audit log grows by itself."""
        found = {name: self.get(f"/v1/{name}") for name in LISTS}
        for name in self.get("/v1/topics")["topics"]:
            if not name.startswith("__"):
                found[f"topic {name}"] = self.get(f"/v1/topics/{quote(name, safe='')}/stats")
        for group in found["groups"]["groups"]:
            name = group if isinstance(group, str) else group["group"]
            found[f"group {name}"] = self.get(f"/v1/groups/{quote(name)}")
        return {name: _lasting(value) for name, value in found.items()}


def _lasting(value: Any) -> Any:
    """Without rates and ages, which change by themselves."""
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if not name.endswith(MOVING)}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def basic(user: str = ADMIN, password: str = PASSWORD) -> tuple[str, str]:
    """The header of a user."""
    import base64

    return "authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
