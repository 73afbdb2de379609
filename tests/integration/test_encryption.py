"""Encryption at rest with real processes: a broker with a key file, the commands on its data directory, and refusals."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.encryption.keys import ENVIRONMENT, new_key
from penstock.testing.process import BrokerProcess
from tests.support.clients import CONSUMERS, PRODUCERS, Record

SECRET = b"a-secret-that-nobody-may-find-on-the-disk"
COMMAND = [sys.executable, "-c", "import sys; from penstock.cli.main import main; sys.exit(main())"]


def key_file(path: Path, *keys: str) -> Path:
    path.write_text("".join(f"{key}\n" for key in keys))
    path.chmod(0o600)
    return path


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def start(tmp_path):
    started: list[BrokerProcess] = []

    def start(key: Path | None, **environment: str) -> BrokerProcess:
        settings: dict[str, object] = {"topic_defaults.segment.bytes": 2000}
        settings |= {} if key is None else {"encryption.key_file": str(key)}
        broker = BrokerProcess(tmp_path / "data", settings, environment=environment)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.kill()


def produce(broker: BrokerProcess, count: int) -> None:
    for number in range(count):
        PRODUCERS["confluent"](broker.bootstrap, "secrets", [Record(SECRET + b"%d" % number)])


def consume(broker: BrokerProcess, count: int) -> list[bytes]:
    return [record.value for record in CONSUMERS["confluent"](broker.bootstrap, "secrets", count)]


def found_on_disk(data_dir: Path) -> list[Path]:
    return [path for path in data_dir.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


def test_records_are_unreadable_without_the_key_and_the_commands_work_with_it(tmp_path, start) -> None:
    key = key_file(tmp_path / "key", new_key())
    broker = start(key)
    produce(broker, 40)
    assert consume(broker, 40) == [SECRET + b"%d" % number for number in range(40)]
    assert found_on_disk(broker.data_dir) == []
    assert broker.stop() == 0
    assert found_on_disk(broker.data_dir) == []

    of = ["--data-dir", str(broker.data_dir)]
    dumped = command("log", "dump", "secrets", "--records", *of, "--encryption-key-file", str(key))
    assert dumped.stdout.count(SECRET.decode()) == 40
    verified = command("log", "verify", *of, "--encryption-key-file", str(key))
    assert verified.returncode == 0, verified.stderr
    refused = command("log", "dump", "secrets", *of)
    assert refused.returncode == 2
    assert "set encryption.key_file" in refused.stderr

    segment = min(broker.data_dir.glob("topics/*/*/*.log"))
    data = bytearray(segment.read_bytes())
    data[-20] ^= 1
    segment.write_bytes(data)
    changed = command("log", "verify", *of, "--encryption-key-file", str(key))
    assert changed.returncode == 1
    assert "were changed after the segment was closed" in changed.stderr


@pytest.mark.parametrize("wrong", ["missing", "another", "readable by others"])
def test_a_start_without_the_right_key_is_refused_with_what_to_do(tmp_path, start, wrong) -> None:
    key = key_file(tmp_path / "key", new_key())
    broker = start(key)
    produce(broker, 1)
    assert broker.stop() == 0
    if wrong == "another":
        key_file(key, new_key())
    elif wrong == "readable by others":
        key.chmod(0o644)
    with pytest.raises(RuntimeError):
        start(None if wrong == "missing" else key)
    words = {"missing": "set encryption.key_file", "another": "add the missing key", "readable by others": "chmod 600"}
    assert words[wrong] in broker.log_text()


def test_a_rotation_needs_a_restart_and_no_rewriting(tmp_path, start) -> None:
    old, new = new_key(), new_key()
    key = key_file(tmp_path / "key", old)
    broker = start(key)
    produce(broker, 10)
    assert broker.stop() == 0
    broker = start(key_file(key, new, old))
    assert "wrapped by the new master key" in broker.log_text()
    produce(broker, 10)
    assert broker.stop() == 0
    broker = start(key_file(key, new))
    assert len(consume(broker, 20)) == 20


def test_encryption_can_be_turned_on_for_existing_data(tmp_path, start) -> None:
    broker = start(None)
    produce(broker, 40)
    assert broker.stop() == 0
    assert found_on_disk(broker.data_dir)
    text = new_key()
    broker = start(None, **{ENVIRONMENT: text})
    assert "closed segments are not encrypted" in broker.log_text()
    assert len(consume(broker, 40)) == 40
    assert broker.stop() == 0
    key = key_file(tmp_path / "key", text)
    of = ["--data-dir", str(broker.data_dir), "--encryption-key-file", str(key)]
    assert "Encrypted" in command("encryption", "convert", *of).stderr
    assert '"clear_segments":0' in command("encryption", "status", *of, "-o", "json").stdout.replace(" ", "")
    assert found_on_disk(broker.data_dir) == []
    broker = start(key)
    assert len(consume(broker, 40)) == 40
    busy = command("encryption", "rotate", *of)
    assert busy.returncode == 1
    assert "stop it first" in busy.stderr


def test_after_a_rotation_the_new_master_key_alone_is_enough_also_for_the_secrets_of_users(tmp_path, start) -> None:
    old, new = new_key(), new_key()
    broker = start(key_file(tmp_path / "key", old))
    assert broker.stop() == 0
    both = key_file(tmp_path / "both", new, old)
    rotated = command("encryption", "rotate", "--data-dir", str(broker.data_dir), "--encryption-key-file", str(both))
    assert rotated.returncode == 0, rotated.stderr
    again = start(key_file(tmp_path / "key", new))
    assert again.running
    assert again.stop() == 0
