"""``penstock serve`` as people and supervisors see it: the ready line, the health checks, the exit codes."""

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from penstock.testing.process import BrokerProcess
from tests.support.clients import CONSUMERS, PRODUCERS, Record

OTHERS_OFF = ("--http", "off", "--tcp", "off", "--grpc", "off")
"""Their own ports may be taken by a broker that runs on this machine."""


def serve(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``penstock serve`` where it is expected to end by itself."""
    command = [sys.executable, "-c", "import sys; from penstock.cli.main import main; sys.exit(main())", "serve"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=30, check=False, **options)


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_ready_line_names_every_listener(tmp_path) -> None:
    broker = BrokerProcess(tmp_path / "data", http="127.0.0.1:0")
    process = subprocess.Popen(broker.command(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        port = r"127\.0\.0\.1:[1-9]\d*"
        assert re.fullmatch(rf"penstock ready kafka={port} http={port} tcp=off grpc=off\n", line), line
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(30) == 0
        process.stdout.close()
    assert rest == "", "stdout holds the ready line alone"


def test_health_checks_answer(broker_process) -> None:
    address = broker_process.addresses["http"]
    assert get(address, "/livez")[0] == 200
    assert get(address, "/readyz")[0] == 200
    assert get(address, "/nothing-here")[0] == 404


def test_listeners_can_be_off(tmp_path) -> None:
    with BrokerProcess(tmp_path / "data", http="off") as broker:
        assert set(broker.addresses) == {"kafka"}


def test_a_taken_port_is_a_sentence_and_no_traceback(tmp_path, broker_process) -> None:
    done = serve("--data-dir", str(tmp_path / "data"), "--kafka", broker_process.bootstrap, *OTHERS_OFF)
    assert done.returncode != 0
    assert broker_process.bootstrap in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [("[log]\nflsh = 'os'\n", "log.flsh"), ("[log]\nflush = 'never'\n", "log.flush"), ("[topics\n", "toml")],
)
def test_a_mistake_in_the_file_is_named(tmp_path, text, named) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    done = serve("--config", str(file), "--data-dir", str(tmp_path / "data"), "--kafka", "127.0.0.1:0")
    assert done.returncode != 0
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = serve("--data-dir", str(tmp_path / "file" / "data"), "--kafka", "127.0.0.1:0", *OTHERS_OFF)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "file") in done.stderr


def test_noise_on_the_socket_does_not_disturb_others(broker_process) -> None:
    host, _, port = broker_process.bootstrap.rpartition(":")
    for noise in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        b"\x00\x00\x00\x08\x7f\xff\x00\x00\x00\x00\x00\x01",
        b"\x16\x03\x01",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    PRODUCERS["confluent"](broker_process.bootstrap, "after-noise", [Record(b"fine")])
    assert [r.value for r in CONSUMERS["confluent"](broker_process.bootstrap, "after-noise", 1)] == [b"fine"]


def test_a_hundred_topics_are_there_after_a_restart(tmp_path) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    names = [f"t{number}" for number in range(100)]
    with BrokerProcess(tmp_path / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
            future.result(30)
        PRODUCERS["confluent"](broker.bootstrap, "t42", [Record(b"kept", partition=1)])
        assert broker.stop() == 0
        broker.start()
        assert set(names) <= set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).topics)
        assert [r.value for r in CONSUMERS["confluent"](broker.bootstrap, "t42", 1, partition=1)] == [b"kept"]
