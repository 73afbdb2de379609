"""The whole node: what it says when it is ready, why it may not start, and that a start that fails leaves nothing running."""

import asyncio
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config import load
from penstock.server import EXIT_FAILED, EXIT_USAGE, Server, StartError, run
from penstock.settings import Settings
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.metadata_generated import MetadataRequest
from tests.support.certificates import Authority, tls_settings
from tests.support.kafka_wire import METADATA, PRODUCE, RawClient, batch, create, produce, produced, until


def settings(data_dir: Path, **others: object) -> Settings:
    flags = {
        "server.data_dir": str(data_dir),
        "listeners.kafka": "127.0.0.1:0",
        "listeners.http": "off",
        "listeners.tcp": "off",
        "listeners.grpc": "off",
        "groups.offsets_topic_partitions": 1,
    }
    return load(flags={**flags, **{key.replace("__", "."): value for key, value in others.items()}})


@asynccontextmanager
async def serving(data_dir: Path, **others: object) -> AsyncIterator[Server]:
    server = Server(settings(data_dir, **others))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextmanager
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def new_threads(before: set[threading.Thread]) -> set[str]:
    """The threads begun since then, without those that asyncio keeps for itself."""
    names = {thread.name for thread in threading.enumerate() if thread not in before}
    return {name for name in names if not name.startswith("asyncio_")}


def ask(address: str, key: int, request: object, version: int) -> Any:
    with RawClient(address) as client:
        return client.ask(key, request, version)


async def test_the_ready_line_has_every_listener_with_its_real_port(tmp_path: Path) -> None:
    async with serving(tmp_path, listeners__http="127.0.0.1:0") as server:
        line = server.ready_line()
        assert re.fullmatch(
            r"penstock ready kafka=127\.0\.0\.1:[1-9]\d* http=127\.0\.0\.1:[1-9]\d* tcp=off grpc=off", line
        )
        told = await asyncio.to_thread(ask, str(server.addresses["kafka"]), METADATA, MetadataRequest(), 1)
        assert f"kafka={told.brokers[0].host}:{told.brokers[0].port} " in line


async def test_listeners_can_be_off(tmp_path: Path) -> None:
    async with serving(tmp_path, listeners__kafka="off") as server:
        assert server.ready_line() == "penstock ready kafka=off http=off tcp=off grpc=off"


async def test_an_address_that_is_advertised_is_what_clients_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path, listeners__advertised_kafka="broker.example:1234") as server:
        told = await asyncio.to_thread(ask, str(server.addresses["kafka"]), METADATA, MetadataRequest(), 1)
        assert [(broker.host, broker.port) for broker in told.brokers] == [("broker.example", 1234)]


@pytest.mark.parametrize("flush", ["sync", "os"])
async def test_records_are_there_after_a_stop_whatever_the_flush(tmp_path: Path, flush: str) -> None:
    for start in range(2):
        async with serving(tmp_path, log__flush=flush) as server:
            address = str(server.addresses["kafka"])
            if not start:
                await asyncio.to_thread(ask, address, ApiKey.CREATE_TOPICS, create("t"), 7)
            for number in range(2):
                answer = await asyncio.to_thread(
                    ask, address, PRODUCE, produce("t", batch(b"v", timestamp_ms=-1), acks=-1), 9
                )
                assert produced(answer).base_offset == 2 * start + number


@pytest.mark.parametrize("listener", ["kafka", "http"])
async def test_a_port_in_use_is_refused_with_a_sentence_and_leaves_nothing_running(
    tmp_path: Path, listener: str
) -> None:
    before = set(threading.enumerate())
    with taken_port() as address, pytest.raises(StartError, match=f"{address} for {listener}.*--{listener} HOST:PORT"):
        async with serving(tmp_path / "data", **{f"listeners__{listener}": address}):
            pass
    assert not (tmp_path / "data").exists()
    # The thread of a store that could not be opened ends by itself.
    await until(lambda: not new_threads(before))
    assert len(asyncio.all_tasks()) == 1
    async with serving(tmp_path):
        pass


async def test_a_data_directory_in_use_is_refused_and_its_owner_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as first:
        with pytest.raises(StartError, match=f"{tmp_path} is in use by process"):
            async with serving(tmp_path):
                pass
        assert await asyncio.to_thread(ask, str(first.addresses["kafka"]), METADATA, MetadataRequest(), 1)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metadata.sqlite", b"this is no database" * 100, "metadata.sqlite"),
        ("node.json", b"{", "node.json"),
        ("node.json", b'{"format_version": 99, "node_id": 1, "cluster_id": "x"}', "format 99"),
        ("topics", b"a file", "topics"),
    ],
    ids=["metadata", "node", "format", "topics"],
)
async def test_damaged_files_are_named_and_nothing_is_left_running(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    before = set(threading.enumerate())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartError, match=said):
        async with serving(tmp_path):
            pass
    # The thread of a store that could not be opened ends by itself.
    await until(lambda: not new_threads(before))
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"listeners__peer": "off"}, "--peer HOST:PORT"),
        ({"listeners__peer": "0.0.0.0:0", "security__insecure": True}, "--advertise HOST"),
        ({"cluster__etcd": "http://127.0.0.1:1,https://127.0.0.1:2"}, "use the same for all"),
        ({"cluster__etcd": "https://127.0.0.1:1", "cluster__etcd_cert": "/absent.pem"}, "--etcd-key"),
        ({"cluster__etcd": "https://127.0.0.1:1", "cluster__etcd_ca": "/absent.pem"}, "--etcd-ca /absent.pem"),
    ],
    ids=["peer-off", "any-host", "mixed", "half-a-certificate", "no-such-file"],
)
def test_settings_of_a_cluster_that_cannot_work_end_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, str], said: str
) -> None:
    given = {"cluster__name": "c", "listeners__peer": "127.0.0.1:0", **wrong}
    assert run(settings(tmp_path / "data", **given)) == EXIT_USAGE == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    # A warning about what the settings allow may come before.
    error = shown.err.splitlines()[-1]
    assert error.startswith("error: ")
    assert said in error


def test_a_directory_of_another_node_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.json").write_text('{"format_version": 1, "node_id": 7, "cluster_id": "x"}')
    assert run(settings(tmp_path)) == EXIT_USAGE
    assert "belongs to node 7" in capsys.readouterr().err


def test_run_says_why_it_cannot_start_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert run(settings(tmp_path / "file" / "data")) == EXIT_FAILED == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: Cannot use ")
    assert "--data-dir" in said.err
    assert "Traceback" not in said.err


# Listeners and their TLS.


async def test_a_listener_off_loopback_without_authentication_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r'security\.authentication = "required"') as refused:
        async with serving(tmp_path / "data", listeners__kafka="0.0.0.0:0"):
            pass
    assert refused.value.is_usage
    assert not (tmp_path / "data").exists()


async def test_an_insecure_broker_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    insecure = {"security__insecure": True, "listeners__http": "127.0.0.1:0"}
    async with serving(tmp_path, listeners__kafka="0.0.0.0:0", **insecure) as server:
        assert server.ready_line().endswith(" insecure=yes")
        assert "everyone who can connect to kafka on 0.0.0.0" in caplog.text
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://{server.addresses['http']}/metrics")).text
        assert "penstock_insecure 1.0" in text


async def test_what_the_settings_allow_is_not_shown_where_it_is_not_used(tmp_path: Path) -> None:
    async with serving(tmp_path, security__insecure=True) as server:
        assert "insecure" not in server.ready_line()


async def test_the_ready_line_has_further_listeners_and_those_with_tls(tmp_path: Path) -> None:
    more = tls_settings(Authority(tmp_path)) | {"listeners.outside.address": "127.0.0.1:0", "tls.http.enabled": False}
    async with serving(
        tmp_path / "data", listeners__http="127.0.0.1:0", **{name.replace(".", "__"): more[name] for name in more}
    ) as server:
        address = r"127\.0\.0\.1:[1-9]\d*"
        ready = rf"penstock ready kafka={address} http={address} tcp=off grpc=off outside={address} tls=kafka,outside"
        assert re.fullmatch(ready, server.ready_line())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tls__key_file": "/absent.key"}, "Cannot read /absent.key"),
        ({"tls__principal_rules": "RULE:x"}, "is not a rule"),
        ({"listeners__grpc": "127.0.0.1:0", "tls__min_version": "1.3"}, "gRPC cannot refuse TLS 1.2"),
    ],
    ids=["key", "rules", "grpc"],
)
async def test_tls_that_cannot_be_used_stops_the_start(tmp_path: Path, wrong: dict[str, object], said: str) -> None:
    right = {name.replace(".", "__"): value for name, value in tls_settings(Authority(tmp_path)).items()}
    with pytest.raises(StartError, match=said) as refused:
        async with serving(tmp_path / "data", **{**right, **wrong}):
            pass
    assert refused.value.is_usage
    assert not (tmp_path / "data").exists()


def test_a_key_that_others_can_read_stops_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tls = tls_settings(Authority(tmp_path))
    Path(str(tls["tls.key_file"])).chmod(0o644)
    given = {name.replace(".", "__"): value for name, value in tls.items()}
    assert run(settings(tmp_path / "data", **given)) == EXIT_USAGE
    assert re.search(r"Other users can read .*chmod 600", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("mode", "authentication", "is_reported"),
    [(0o755, "required", True), (0o755, "off", False), (0o700, "required", False)],
)
async def test_a_data_directory_that_others_can_enter_is_reported_if_clients_must_log_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, authentication: str, is_reported: bool
) -> None:
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("pencil")
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(mode)
    chosen = {"security.authentication": authentication, "security.admin_password_file": str(password)}
    async with serving(data_dir, **chosen):
        pass
    assert (f"chmod 700 {data_dir}" in caplog.text) is is_reported


async def test_other_users_of_the_machine_can_read_nothing_of_what_a_broker_stores(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with serving(tmp_path / "data") as server:
            address = str(server.addresses["kafka"])
            await asyncio.to_thread(ask, address, ApiKey.CREATE_TOPICS, create("t"), 7)
            request = produce("t", batch(b"v", timestamp_ms=-1), acks=-1)
            assert produced(await asyncio.to_thread(ask, address, PRODUCE, request, 9)).base_offset == 0
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*")}
    assert {path.name for path in modes} >= {"lock", "node.json", "metadata.sqlite", "00000000000000000000.log"}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o027} == {}
