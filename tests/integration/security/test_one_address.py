"""A client of IPv4 has one address, also at a listener on all addresses of IPv6: rules by address hold there."""

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.testing.broker import BrokerThread
from penstock.wire.mq import mq_generated as mq
from tests.support.certificates import Authority, tls_settings

SECONDS_MAX = 60.0
ROOT, EVE = ("admin", "root's"), ("eve", "eve's")


class Doors:
    """A broker on all addresses of IPv6, where eve may do everything with topics, but not from 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        first = folder / "first"
        first.write_text(ROOT[1])
        first.chmod(0o600)
        self.authority = Authority(folder)
        doors = {f"listeners.{door}": "[::]:0" for door in ("kafka", "http", "tcp", "grpc")}
        security = {"security.authentication": "required", "security.admin_password_file": str(first)}
        tls = tls_settings(self.authority, self.authority.server())
        self.broker = BrokerThread(folder / "data", {**doors, **security, **tls})

    def at(self, door: str) -> str:
        return f"127.0.0.1:{self.broker.address(door).rpartition(':')[2]}"

    def http(self, user: tuple[str, str]) -> httpx.Client:
        context = self.authority.context
        return httpx.Client(base_url=f"https://{self.at('http')}", auth=user, verify=context, timeout=SECONDS_MAX)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    made = Doors(tmp_path_factory.mktemp("doors"))
    rule = {"principal": "User:eve", "action": "all", "resource": "topic", "name": "*", "pattern": "literal"}
    # The denial is written in the long form, which means the same address.
    rules = [{**rule, "permission": "allow"}, {**rule, "permission": "deny", "host": "::ffff:127.0.0.1"}]
    with made.broker, made.http(ROOT) as root:
        for path, body in (
            ("/v1/users", {"user": EVE[0], "password": EVE[1]}),
            ("/topics", {"name": "t", "partitions": 1}),
            ("/v1/acls", {"rules": rules}),
        ):
            assert root.post(path, json=body).is_success
        yield made


def test_http(doors: Doors) -> None:
    with doors.http(EVE) as eve:
        assert eve.get("/topics/t").status_code == 403


def test_json_lines(doors: Doors) -> None:
    host, _, port = doors.at("tcp").rpartition(":")
    with (
        socket.create_connection((host, int(port)), SECONDS_MAX) as plain,
        doors.authority.context.wrap_socket(plain, server_hostname="localhost") as sock,
        sock.makefile("rb") as answers,
    ):
        sock.sendall(b'{"type":"auth","user":"eve","password":"eve\'s"}\n{"type":"produce","topic":"t","value":"x"}\n')
        assert [json.loads(answers.readline())["ok"] for _ in range(2)] == [True, False]


def test_grpc(doors: Doors) -> None:
    service = mq.DESCRIPTOR.services_by_name["MessageQueueService"].full_name
    credentials = grpc.ssl_channel_credentials(doors.authority.file.read_bytes())
    basic = "Basic " + base64.b64encode(":".join(EVE).encode()).decode()
    with grpc.secure_channel(doors.at("grpc"), credentials) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(
            f"/{service}/TopicStats",
            request_serializer=mq.TopicStatsRequest.SerializeToString,
            response_deserializer=mq.TopicStatsResponse.FromString,
        )(mq.TopicStatsRequest(topic="t"), metadata=(("authorization", basic),), timeout=SECONDS_MAX)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_kafka(doors: Doors) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": doors.at("kafka"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(doors.authority.file),
            "sasl.mechanism": "PLAIN",
            "sasl.username": EVE[0],
            "sasl.password": EVE[1],
        }
    )
    [found] = admin.list_offsets({TopicPartition("t", 0): OffsetSpec.latest()}, request_timeout=SECONDS_MAX).values()
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        found.result(SECONDS_MAX)
