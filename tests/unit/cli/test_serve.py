"""The arguments of the broker, and moving its data aside."""

import fcntl
from datetime import UTC, datetime

import pytest
import typer

from penstock.cli import serve
from penstock.cli.failures import Exit, Failure
from penstock.cli.main import build
from penstock.cli.serve import ServeArguments, move_aside, parse
from penstock.cli.serve_command import flags_given
from penstock.config import load
from penstock.settings import LogFormat

NOW = datetime(2026, 1, 31, 12, 30, 0, tzinfo=UTC)


def test_nothing_given_is_nothing_set() -> None:
    assert parse([]) == ServeArguments(None, {}, False)


def test_values_stand_behind_a_blank_or_an_equal_sign_and_the_last_one_wins() -> None:
    given = parse(["--kafka", "h:1", "--kafka=h:2", "--config=c.toml", "--data-dir", "a=b", "--reset-wal"])
    assert given == ServeArguments("c.toml", {"listeners.kafka": "h:2", "server.data_dir": "a=b"}, True)


def test_every_flag_of_the_interface_reaches_its_setting() -> None:
    given = parse(
        [
            *("--data-dir", "d", "--kafka", "h:1", "--http", "h:2", "--tcp", "off", "--grpc", "h:4"),
            *("--log-format", "json", "--log-level", "debug"),
        ]
    )
    settings = load(None, {}, given.flags)
    assert settings.server.data_dir == "d"
    assert [str(settings.listeners.kafka), str(settings.listeners.http), str(settings.listeners.grpc)] == [
        "h:1",
        "h:2",
        "h:4",
    ]
    assert settings.listeners.tcp is None
    assert (settings.server.log_format.value, settings.server.log_level.value) == ("json", "debug")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kafak", "h:1"], "Unknown option '--kafak' of penstock serve; did you mean --kafka?"),
        (["now"], "Unknown option 'now' of penstock serve; see penstock serve --help"),
        (["--kafka"], "--kafka needs a value"),
        (["--reset-wal=yes"], "Unknown option '--reset-wal'"),
    ],
)
def test_a_wrong_argument_is_told(arguments, says) -> None:
    with pytest.raises(Failure) as caught:
        parse(arguments)
    assert says in str(caught.value)
    assert caught.value.code is Exit.USAGE


def test_help_and_completion_know_the_same_flags() -> None:
    command = typer.main.get_group(build("serve")).commands["serve"]
    shown = {parameter.opts[0] for parameter in command.params}
    assert shown == {*serve.FLAGS, serve.CONFIG, serve.RESET}


def test_the_flags_that_help_knows_set_the_same_settings() -> None:
    assert flags_given(kafka="h:1", log_format=LogFormat.JSON, tcp=None) == {
        "listeners.kafka": "h:1",
        "server.log_format": "json",
    }


def test_data_is_moved_aside_and_never_deleted(tmp_path) -> None:
    data = tmp_path / "data"
    (data / "topics").mkdir(parents=True)
    (data / "node.json").write_text("{}")
    moved = move_aside(data, NOW)
    assert moved == tmp_path / "data.reset-20260131T123000Z"
    assert (moved / "node.json").read_text() == "{}"
    assert not data.exists()


def test_two_resets_in_one_second_keep_both(tmp_path) -> None:
    for _ in range(3):
        (tmp_path / "data").mkdir()
        move_aside(tmp_path / "data", NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data.reset-20260131T123000Z",
        "data.reset-20260131T123000Z-2",
        "data.reset-20260131T123000Z-3",
    ]


def test_nothing_to_move_is_fine(tmp_path) -> None:
    assert move_aside(tmp_path / "data", NOW) is None
    assert list(tmp_path.iterdir()) == []


def test_the_data_of_a_running_broker_stays_where_it_is(tmp_path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with (data / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Failure, match="in use by a running broker"):
            move_aside(data, NOW)
    assert data.exists()


@pytest.mark.parametrize("flag", sorted({"--node-id", *serve.CLUSTER_ONLY}))
def test_a_flag_for_clusters_without_a_cluster_is_refused_before_anything_starts(flag, tmp_path) -> None:
    value = {"--node-id": "2", "--peer-tls": "require"}.get(flag, "127.0.0.1:1")
    with pytest.raises(Failure, match=f"{flag} is only for a node of a cluster") as caught:
        serve.serve(parse([flag, value, "--data-dir", str(tmp_path / "data")]), {})
    assert caught.value.code is Exit.USAGE
    assert not (tmp_path / "data").exists()
