"""Users, keys and tokens at every door of a real broker: how they get in, what ends with them, and that no secret shows."""

import base64
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import grpc
import httpx
import pytest
from confluent_kafka.admin import AdminClient
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.address import parse_address
from penstock.server import StartError
from penstock.testing.broker import BrokerThread
from penstock.wire.mq import mq_generated as mq
from tests.support.tokens import Provider, settings

SECONDS_MAX = 60.0
ROOT, ANNA = "root-marked-1", "anna-marked-2"
WRONG = "wrong-marked-3"
ALL_DOORS = {"listeners.http": "127.0.0.1:0", "listeners.tcp": "127.0.0.1:0", "listeners.grpc": "127.0.0.1:0"}


def secret_file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


class Secured:
    """A broker with root, an administrator, and an identity provider."""

    def __init__(self, folder: Path, **chosen: object) -> None:
        self.folder = folder
        self.provider = Provider().publish(folder / "keys.json")
        self.root_file = secret_file(folder, "root", ROOT)
        self.broker = BrokerThread(
            folder / "data",
            {
                **ALL_DOORS,
                "security.authentication": "required",
                "security.super_users": "User:anna,User:token",
                **settings(folder / "keys.json"),
                **chosen,
            },
        )

    def cli(self, *arguments: str, user: str = "root", text: str = "", online: bool = True) -> str:
        """What a command says, on both outputs; it runs as another process, as people run it."""
        environment = {**os.environ, "PENSTOCK_CONTEXT": ""}
        if online:
            password = {"root": ROOT, "anna": ANNA}[user]
            environment |= {
                "PENSTOCK_HTTP": self.broker.address("http"),
                "PENSTOCK_USER": user,
                "PENSTOCK_PASSWORD_FILE": str(secret_file(self.folder, f"login-{user}", password)),
            }
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *arguments],
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said

    def http(self, credential: tuple[str, str] | str | None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {credential}"} if isinstance(credential, str) else {}
        auth = credential if isinstance(credential, tuple) else None
        return httpx.Client(base_url=f"http://{self.broker.address('http')}", headers=headers, auth=auth, timeout=30)

    def lines(self) -> "Lines":
        return Lines(self.broker.address("tcp"))

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.broker.address("grpc"), options=[("grpc.use_local_subchannel_pool", 1)])

    def kafka(self, user: str, password: str) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": user,
                "sasl.password": password,
            }
        )


class Lines:
    """A connection for JSON lines."""

    def __init__(self, address: str) -> None:
        host, port = parse_address(address)
        self._socket = socket.create_connection((host, port), timeout=SECONDS_MAX)
        self._file = self._socket.makefile("rb")

    def ask(self, **request: object) -> dict[str, Any]:
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        return self.answer()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file.readline())
        return found

    def is_closed(self) -> bool:
        try:
            return self._file.readline() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    said = made.cli(
        "user", "create", "root", "--admin", "--password-file", str(made.root_file),
        "--data-dir", str(made.broker.data_dir), online=False,
    )  # fmt: skip
    assert said == "Created user root\n"
    with made.broker:
        made.cli("user", "create", "anna", text=ANNA + "\n")
        yield made


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def create_topic(channel: grpc.Channel, authorization: str | None, name: str = "g") -> grpc.StatusCode:
    call = channel.unary_unary(
        "/mq.MessageQueueService/CreateTopic".replace("mq.MessageQueueService", _SERVICE),
        request_serializer=mq.CreateTopicRequest.SerializeToString,
        response_deserializer=mq.CreateTopicResponse.FromString,
    )
    metadata = () if authorization is None else (("authorization", authorization),)
    try:
        call(mq.CreateTopicRequest(name=name, partitions=1), metadata=metadata, timeout=30)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


_SERVICE = mq.DESCRIPTOR.services_by_name["MessageQueueService"].full_name


# The first start.


def test_a_broker_without_a_way_in_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match="there are no users: create the first one with 'penstock user create"
    ) as failed:
        BrokerThread(tmp_path / "data", {"security.authentication": "required"}).start()
    assert failed.value.is_usage


def test_the_first_start_creates_the_administrator_of_the_file_and_later_ones_do_not(tmp_path: Path) -> None:
    file = secret_file(tmp_path, "first", "first")
    chosen = {"security.authentication": "required", "security.admin_password_file": str(file), **ALL_DOORS}
    broker = BrokerThread(tmp_path / "data", chosen)
    for password in ("first", "second"):
        file.write_text(password)
        with broker:
            url = f"http://{broker.address('http')}/v1/users"
            assert httpx.get(url, auth=("admin", "first")).status_code == 200


def test_a_password_file_that_others_can_read_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "open"
    file.write_text("secret-marked")
    file.chmod(0o644)
    chosen = {"security.authentication": "required", "security.admin_password_file": str(file)}
    with pytest.raises(StartError, match="chmod 600") as failed:
        BrokerThread(tmp_path / "data", chosen).start()
    assert "secret-marked" not in str(failed.value)


def test_a_user_cannot_be_created_behind_the_back_of_a_running_broker(secured: Secured) -> None:
    with pytest.raises(AssertionError, match="is in use by process"):
        secured.cli(
            "user",
            "create",
            "eve",
            "--admin",
            "--no-password",
            "--data-dir",
            str(secured.broker.data_dir),
            online=False,
        )


# The command line.


def test_users_and_keys_are_managed_from_the_command_line(secured: Secured) -> None:
    password = secret_file(secured.folder, "carl", "carl's")
    assert secured.cli("user", "create", "carl", "--password-file", str(password)) == "Created user carl\n"
    listed = json.loads(secured.cli("user", "ls", "--json"))
    assert {each["user"]: each["admin"] for each in listed}["carl"] is False
    said = secured.cli("key", "create", "carl", "--name", "deploy", "--days", "1")
    key = said.splitlines()[0]
    assert key.startswith("psk_")
    [shown] = json.loads(secured.cli("key", "ls", "carl", "--json"))
    assert (shown["name"], key.split("_", 2)[2] in json.dumps(shown)) == ("deploy", False)
    with secured.http(key) as by_key, secured.http(("carl", "carl's")) as by_password:
        assert by_key.get("/v1/topics").status_code == 200
        assert by_password.get("/v1/topics").status_code == 200
        password.write_text("another")
        secured.cli("user", "passwd", "carl", "--password-file", str(password))
        assert by_password.get("/v1/topics").status_code == 401
        assert by_key.get("/v1/topics").status_code == 200
        assert secured.cli("key", "revoke", shown["id"]) == f"Revoked key {shown['id']}\n"
        assert by_key.get("/v1/topics").status_code == 401
    assert secured.cli("user", "rm", "carl", "--yes") == "Deleted user carl\n"
    assert "carl" not in secured.cli("user", "ls")


def test_a_user_changes_its_own_password_over_http_and_not_that_of_others(secured: Secured) -> None:
    with secured.http(("root", ROOT)) as root:
        assert root.post("/v1/users", json={"user": "dora", "password": "dora's"}).status_code == 204
        assert root.post("/v1/users", json={"user": "dora", "password": "x"}).status_code == 409
        assert root.post("/v1/users", json={"user": "d o", "password": "x"}).status_code == 400
    with secured.http(("dora", "dora's")) as dora:
        assert dora.get("/v1/users").status_code == 403
        assert dora.put("/v1/users/root/password", json={"password": "x"}).status_code == 403
        made = dora.post("/v1/keys", json={"user": "dora", "name": "mine"})
        assert made.status_code == 200
        assert [key["id"] for key in dora.get("/v1/keys", params={"user": "dora"}).json()["keys"]] == [
            made.json()["id"]
        ]
        with secured.http(made.json()["key"]) as by_key:
            assert by_key.put("/v1/users/dora/password", json={"password": "x"}).status_code == 403
        assert dora.delete(f"/v1/keys/{made.json()['id']}").status_code == 204
        assert dora.delete(f"/v1/keys/{made.json()['id']}").status_code == 403
        assert dora.put("/v1/users/dora/password", json={"password": "new"}).status_code == 204
        assert dora.put("/v1/users/dora/password", json={"password": "newer"}).status_code == 401


# JSON lines.


def test_json_lines_begin_with_a_login(secured: Secured) -> None:
    lines = secured.lines()
    refused = lines.ask(type="listTopics")
    assert refused["ok"] is False
    assert "Authentication is required" in refused["error"]
    assert lines.ask(type="auth", user="anna", password=ANNA) == {
        "ok": True,
        "data": {"principal": "User:anna", "expiresMs": None},
    }
    assert lines.ask(type="createTopic", topic="lines")["ok"] is True
    assert lines.ask(type="auth", user="root", password=ROOT)["ok"] is False
    assert lines.ask(type="auth", user="anna", password=ANNA)["ok"] is True
    lines.close()


def test_lines_after_a_right_login_in_one_packet_are_carried_out_and_those_after_a_wrong_one_are_not(
    secured: Secured,
) -> None:
    def packet(password: str, topic: str) -> bytes:
        both = ({"type": "auth", "user": "anna", "password": password}, {"type": "createTopic", "topic": topic})
        return b"".join(json.dumps(each).encode() + b"\n" for each in both)

    right, wrong = secured.lines(), secured.lines()
    right.send(packet(ANNA, "after-right"))
    wrong.send(packet(WRONG, "after-wrong"))
    assert [right.answer()["ok"], right.answer()["ok"]] == [True, True]
    assert [wrong.answer()["ok"], wrong.answer()["ok"]] == [False, False]
    assert "after-wrong" not in right.ask(type="listTopics")["data"]["topics"]
    right.close()
    wrong.close()


def test_the_third_failure_closes_a_connection_for_lines(secured: Secured) -> None:
    lines = secured.lines()
    for _ in range(3):
        assert lines.ask(type="auth", user="anna", password=WRONG)["ok"] is False
    assert lines.is_closed()
    lines.close()


def test_failures_after_the_login_close_a_connection_for_lines_too(secured: Secured) -> None:
    lines = secured.lines()
    assert lines.ask(type="auth", user="anna", password=ANNA)["ok"] is True
    for user, password in (("anna", WRONG), ("root", ROOT)):
        assert lines.ask(type="auth", user=user, password=password)["ok"] is False
        assert lines.ask(type="auth", user="anna", password=ANNA)["ok"] is True
    assert lines.ask(type="auth", user="anna", password=WRONG)["ok"] is False
    assert lines.is_closed()
    lines.close()


def test_a_long_line_before_the_login_is_refused(secured: Secured) -> None:
    lines = secured.lines()
    lines.send(b'{"type": "auth", "token": "' + b"x" * 10_000 + b'"}\n')
    assert lines.answer()["ok"] is False
    lines.close()


def test_a_token_logs_in_for_lines(secured: Secured) -> None:
    lines = secured.lines()
    welcome = lines.ask(type="auth", token=secured.provider.token(sub="token"))
    assert welcome["data"]["principal"] == "User:token"
    assert welcome["data"]["expiresMs"] > time.time() * 1000
    lines.close()


def test_a_login_for_lines_is_refused_where_none_is_needed(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data", ALL_DOORS) as broker:
        lines = Lines(broker.address("tcp"))
        assert lines.ask(type="auth", user="anna", password="x")["ok"] is False
        assert lines.ask(type="listTopics")["ok"] is True
        lines.close()


# gRPC.


def test_grpc_takes_a_password_a_key_or_a_token_in_the_metadata(secured: Secured) -> None:
    key = secured.cli("key", "create", "anna").splitlines()[0]
    with secured.channel() as channel:
        assert create_topic(channel, None) is grpc.StatusCode.UNAUTHENTICATED
        assert create_topic(channel, basic("anna", WRONG)) is grpc.StatusCode.UNAUTHENTICATED
        assert create_topic(channel, "Basic !") is grpc.StatusCode.UNAUTHENTICATED
        assert create_topic(channel, f"Bearer {key[:-1]}") is grpc.StatusCode.UNAUTHENTICATED
        assert create_topic(channel, basic("anna", ANNA), "by-password") is grpc.StatusCode.OK
        assert create_topic(channel, f"Bearer {key}", "by-key") is grpc.StatusCode.OK
        token = secured.provider.token(sub="token")
        assert create_topic(channel, f"Bearer {token}", "by-token") is grpc.StatusCode.OK
        old = secured.provider.token(sub="token", iat=1_000, exp=2_000)
        assert create_topic(channel, f"Bearer {old}") is grpc.StatusCode.UNAUTHENTICATED


def test_health_is_open_and_reflection_is_not(secured: Secured) -> None:
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    with secured.channel() as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            list(reflection.ServerReflectionInfo(iter(asked), timeout=30))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", basic("anna", ANNA)),)
        [answer] = reflection.ServerReflectionInfo(iter(asked), metadata=metadata, timeout=30)
        assert answer.list_services_response.service


# The end of users and keys.


def watch_kafka(secured: Secured, user: str, password: str) -> Callable[[], None]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": secured.broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
            "group.id": "g",
            "error_cb": lambda error: errors.append(error.code()),
        }
    )
    errors: list[int] = []
    consumer.assign([confluent_kafka.TopicPartition("ending", 0, 0)])
    deadline = time.monotonic() + SECONDS_MAX
    while not consumer.list_topics("ending", timeout=SECONDS_MAX).topics and time.monotonic() < deadline:
        pass

    def has_ended() -> None:
        end = time.monotonic() + SECONDS_MAX
        while confluent_kafka.KafkaError._AUTHENTICATION not in errors:
            consumer.poll(0.1)
            assert time.monotonic() < end, "the connection of a deleted user is still open"
        consumer.close()

    return has_ended


def watch_lines(secured: Secured, user: str, password: str) -> Callable[[], None]:
    lines = secured.lines()
    assert lines.ask(type="auth", user=user, password=password)["ok"] is True

    def has_ended() -> None:
        assert lines.answer() == {"ok": False, "error": "The login has ended: connect and authenticate again"}
        assert lines.is_closed()
        lines.close()

    return has_ended


def watch_grpc(secured: Secured, user: str, password: str) -> Callable[[], None]:
    channel = secured.channel()
    subscribe = channel.unary_stream(
        f"/{_SERVICE}/Subscribe",
        request_serializer=mq.SubscribeRequest.SerializeToString,
        response_deserializer=lambda raw: raw,
    )
    stream = subscribe(
        mq.SubscribeRequest(topic="ending"), metadata=(("authorization", basic(user, password)),), timeout=SECONDS_MAX
    )
    assert next(stream)

    def has_ended() -> None:
        with pytest.raises(grpc.RpcError) as ended:
            # The records of the topic may have been on their way.
            deque(stream, maxlen=0)
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        channel.close()

    return has_ended


WATCHES: Mapping[str, Callable[[Secured, str, str], Callable[[], None]]] = {
    "kafka": watch_kafka,
    "tcp": watch_lines,
    "grpc": watch_grpc,
}


@pytest.mark.parametrize("door", WATCHES)
def test_what_a_user_has_opened_ends_with_the_user(secured: Secured, door: str) -> None:
    with secured.http(("root", ROOT)) as root:
        assert root.post("/v1/users", json={"user": "ends", "password": "ends"}).status_code == 204
        root.post("/v1/topics", json={"name": "ending"})
        assert root.post("/v1/produce", json={"topic": "ending", "value": "x"}).is_success
        rule = {"principal": "User:ends", "permission": "allow", "action": "all", "resource": "topic", "name": "ending"}
        made = root.post("/v1/acls", json={"rules": [rule]})
        assert made.is_success, made.text
        has_ended = WATCHES[door](secured, "ends", "ends")
        assert root.delete("/v1/users/ends").status_code == 204
        has_ended()


# Nothing to see.


def test_no_secret_shows_in_logs_metrics_configs_or_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    file = secret_file(tmp_path, "first", ROOT)
    chosen = {"security.admin_password_file": str(file), "server.log_level": "debug"}
    secured = Secured(tmp_path, **chosen)
    seen: list[str] = []
    token = secured.provider.token(sub="token")
    with secured.broker:
        with secured.http(("admin", ROOT)) as admin:
            key = admin.post("/v1/keys", json={"user": "admin", "name": "x"}).json()["key"]
            assert admin.post("/v1/users", json={"user": "anna", "password": ANNA}).status_code == 204
            seen.append(admin.post("/v1/users", json={"user": "anna", "password": f"psk_{WRONG}"}).text)
            seen.append(admin.post("/v1/users", json={"user": "anna", "password": WRONG, "extra": 1}).text)
        for credential in (("admin", WRONG), (WRONG, "x"), f"psk_{WRONG}", f"{token}{WRONG}", key, token):
            with secured.http(credential) as client:
                seen.append(client.get("/v1/topics").text)
        lines = secured.lines()
        seen.append(json.dumps(lines.ask(type="auth", user="anna", password=WRONG)))
        seen.append(json.dumps(lines.ask(type="auth", token=token)))
        lines.close()
        with secured.channel() as channel:
            create_topic(channel, basic("anna", WRONG))
            create_topic(channel, f"Bearer {key}")
        assert secured.kafka("anna", ANNA).list_topics(timeout=30).brokers
        with pytest.raises(confluent_kafka.KafkaException):
            secured.kafka("anna", WRONG).list_topics(timeout=2)
        with secured.http(("admin", ROOT)) as admin:
            metrics = admin.get("/metrics").text
            seen += [metrics, admin.get("/v1/users").text, admin.get("/v1/keys").text]
    assert 'penstock_authentication_failures_total{method="plain",reason="wrong-password"}' in metrics
    assert "login failed" in caplog.text
    settings_shown = subprocess.run(
        [sys.executable, "-m", "penstock", "config", "show"],
        env={**os.environ, "PENSTOCK__SECURITY__ADMIN_PASSWORD_FILE": str(file)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    said = "\n".join([*seen, caplog.text, *capfd.readouterr(), settings_shown])
    for secret in (ROOT, ANNA, WRONG, key, key.split("_", 2)[2], token, token.rpartition(".")[2]):
        assert secret not in said
        assert base64.b64encode(secret.encode()).decode() not in said
