"""penstock serve and penstock config, as processes."""

import json
import os
import signal
import subprocess
import sys

from penstock.testing.process import BrokerProcess


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_a_file_the_environment_and_flags_reach_the_broker(tmp_path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('[topics]\npartitions = 3\n[listeners]\nkafka = "127.0.0.1:1"\nhttp = "off"\n')
    broker = subprocess.Popen(
        [
            *(sys.executable, "-m", "penstock", "serve", "--config", str(config), "--data-dir", str(tmp_path / "data")),
            *("--kafka", "127.0.0.1:0", "--tcp=off", "--grpc", "off"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK__TOPIC_DEFAULTS__RETENTION_MS": "12345"},
    )
    try:
        assert broker.stdout is not None
        ready = broker.stdout.readline()
        assert ready.startswith("penstock ready kafka=127.0.0.1:")
        assert ready.endswith(" http=off tcp=off grpc=off\n")
        bootstrap = ready.split()[2].removeprefix("kafka=")
        assert not bootstrap.endswith(":1")
        assert run("topic", "create", "t", "-b", bootstrap).returncode == 0
        described = json.loads(run("topic", "describe", "t", "-b", bootstrap, "-o", "json").stdout)
        assert described[0]["partitions"] == 3
        configs = json.loads(run("topic", "config", "t", "--all", "-b", bootstrap, "-o", "json").stdout)
        assert {row["name"]: row["value"] for row in configs}["retention.ms"] == "12345"
    finally:
        broker.send_signal(signal.SIGTERM)
        _, log = broker.communicate(timeout=60)
    assert broker.returncode == 0, log


def test_a_wrong_configuration_does_not_start(tmp_path) -> None:
    (tmp_path / "penstock.toml").write_text("[log]\nflsh = 1\n")
    done = run("serve", "--config", str(tmp_path / "penstock.toml"), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"error: log.flsh: unknown; did you mean log.flush? ({tmp_path / 'penstock.toml'}:2)\n"
    assert not (tmp_path / "data").exists()


def test_reset_starts_empty_and_keeps_what_was_there(tmp_path) -> None:
    flags = [
        "--data-dir",
        str(tmp_path / "data"),
        "--kafka",
        "127.0.0.1:0",
        "--http",
        "off",
        "--tcp",
        "off",
        "--grpc",
        "off",
    ]
    with BrokerProcess(tmp_path / "data") as broker:
        assert run("topic", "create", "kept", "-b", broker.bootstrap).returncode == 0
        refused = run("serve", *flags, "--reset-wal")
        assert refused.returncode == 1
        assert "in use by a running broker" in refused.stderr
        broker.stop()
    again = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *flags, "--reset-wal"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert again.stdout is not None
        bootstrap = again.stdout.readline().split()[2].removeprefix("kafka=")
        assert json.loads(run("topic", "ls", "-b", bootstrap, "-o", "json").stdout) == []
    finally:
        again.terminate()
        _, log = again.communicate(timeout=60)
    assert "nothing was deleted" in log
    (aside,) = tmp_path.glob("data.reset-*")
    with BrokerProcess(aside) as broker:
        assert [
            row["topic"] for row in json.loads(run("topic", "ls", "-b", broker.bootstrap, "-o", "json").stdout)
        ] == ["kept"]


def test_config_show_says_where_values_come_from(tmp_path) -> None:
    (tmp_path / "penstock.toml").write_text("\n[log]\nsync_threads = 2\n")
    done = run(
        *("config", "show", "--config", str(tmp_path / "penstock.toml"), "--kafka", "127.0.0.1:0", "-o", "json"),
        PENSTOCK__LOG__FLUSH="os",
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert (rows["log.sync_threads"]["value"], rows["log.sync_threads"]["source"]) == (
        2,
        f"{tmp_path / 'penstock.toml'}:3",
    )
    assert (rows["log.flush"]["value"], rows["log.flush"]["source"]) == ("os", "PENSTOCK__LOG__FLUSH")
    assert (rows["listeners.kafka"]["value"], rows["listeners.kafka"]["source"]) == ("127.0.0.1:0", "--kafka")
    assert (rows["listeners.tcp"]["value"], rows["listeners.tcp"]["layer"]) == ("127.0.0.1:4040", "default")
    table = run("config", "show", "--changed", PENSTOCK__LOG__FLUSH="os").stdout
    assert "PENSTOCK__LOG__FLUSH" in table
    assert "listeners.tcp" not in table
    cells = [line.split() for line in run("config", "show").stdout.splitlines()]
    values = {line[0]: line[1] for line in cells if len(line) > 1}
    assert values["listeners.kafka"] == '"127.0.0.1:9092"'
    assert values["groups.session_timeout_ms_min"].isdigit()
    assert "true" in values.values() or "false" in values.values()


def test_config_example_is_a_configuration(tmp_path) -> None:
    (tmp_path / "example.toml").write_text(run("config", "example").stdout)
    assert (
        run("config", "show", "--config", str(tmp_path / "example.toml"), "--changed").stderr
        == "All values are defaults\n"
    )


def test_completion_knows_the_nouns_and_the_topics(penstock_broker) -> None:
    # What the shell's completion function asks for; its words are Typer's.
    def complete(words):
        done = run(
            _PENSTOCK_COMPLETE="complete_bash",
            COMP_WORDS=words,
            COMP_CWORD=str(len(words.split(" ")) - 1),
            PENSTOCK_BOOTSTRAP=penstock_broker.bootstrap,
        )
        return done.stdout.split()

    assert {"topic", "serve", "consume"} <= set(complete("penstock "))
    assert run("topic", "create", "complete-me", "-b", penstock_broker.bootstrap).returncode == 0
    assert complete("penstock topic describe complete-") == ["complete-me"]
