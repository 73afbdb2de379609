"""Layers over layers, and a sentence for each mistake."""

import pytest

from penstock.address import Address
from penstock.config import ConfigError, load
from penstock.settings import LogFormat, Settings, SettingSource, SourceKind
from penstock.types import Acks, Flush


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "penstock.toml"
        path.write_text(text)
        return path

    return write


def problems(*arguments):
    with pytest.raises(ConfigError) as caught:
        load(*arguments)
    return caught.value.problems


def test_nothing_given_is_the_defaults() -> None:
    assert load() == Settings()
    assert load(None, {}, {}) == Settings()


def test_the_defaults_are_safe() -> None:
    settings = Settings()
    for address in (settings.listeners.kafka, settings.listeners.http, settings.listeners.tcp, settings.listeners.grpc):
        assert address is not None
        assert address.host == "127.0.0.1"
    assert settings.log.flush is Flush.SYNC


def test_the_fixed_interface_has_its_defaults() -> None:
    listeners = Settings().listeners
    assert [str(address) for address in (listeners.kafka, listeners.http, listeners.tcp, listeners.grpc)] == [
        "127.0.0.1:9092",
        "127.0.0.1:8080",
        "127.0.0.1:4040",
        "127.0.0.1:50051",
    ]
    assert Settings().server.data_dir == "./data"


def test_the_kept_names_of_the_http_api_have_their_defaults() -> None:
    http = Settings().http
    assert (http.host, http.port, http.default_partitions, http.default_replication_factor) == ("127.0.0.1", 8080, 4, 1)
    assert (http.default_retention_seconds, http.default_retention_bytes) == (604_800, 1_073_741_824)
    assert (http.acks, http.max_poll_records) == (Acks.LEADER, 500)
    assert min(http.retries, http.retry_backoff_ms, http.session_timeout_ms, http.request_timeout_ms) > 0


@pytest.mark.parametrize(
    ("environment", "flags", "port", "kind"),
    [
        ({}, {}, 1, SourceKind.FILE),
        ({"PENSTOCK__LISTENERS__KAFKA": "h:2"}, {}, 2, SourceKind.ENVIRONMENT),
        ({"PENSTOCK__LISTENERS__KAFKA": "h:2"}, {"listeners.kafka": "h:3"}, 3, SourceKind.FLAG),
        ({}, {"listeners.kafka": "h:3"}, 3, SourceKind.FLAG),
        ({"PENSTOCK__LISTENERS__KAFKA": "h:2"}, {"listeners.kafka": None}, 2, SourceKind.ENVIRONMENT),
    ],
)
def test_flags_beat_the_environment_and_that_beats_the_file(toml, environment, flags, port, kind) -> None:
    settings = load(toml('[listeners]\nkafka = "h:1"\n'), environment, flags)
    assert settings.listeners.kafka == Address("h", port)
    assert settings.source_of("listeners.kafka").kind is kind
    assert settings.source_of("listeners.http").kind is SourceKind.DEFAULT


def test_each_value_remembers_where_it_came_from(toml) -> None:
    path = toml('# top\n[log]\nflush = "os"\n\n[topic_defaults]\n"retention.ms" = 5\nsegment.bytes = 100\n')
    settings = load(path, {"PENSTOCK__LOG__SYNC_THREADS": "2"}, {"server.data_dir": "d"})
    assert settings.sources == {
        "log.flush": SettingSource(SourceKind.FILE, f"{path}:3"),
        "topic_defaults.retention.ms": SettingSource(SourceKind.FILE, f"{path}:6"),
        "topic_defaults.segment.bytes": SettingSource(SourceKind.FILE, f"{path}:7"),
        "log.sync_threads": SettingSource(SourceKind.ENVIRONMENT, "PENSTOCK__LOG__SYNC_THREADS"),
        "server.data_dir": SettingSource(SourceKind.FLAG, "--data-dir"),
    }
    assert str(settings.source_of("log.flush")) == f"{path}:3"
    assert str(settings.source_of("log.checkpoint_interval_ms")) == "default"


def test_the_environment_is_text_and_is_read_as_what_is_wanted() -> None:
    settings = load(
        None,
        {
            "PENSTOCK__TOPICS__AUTO_CREATE": "false",
            "PENSTOCK__TOPICS__PARTITIONS": "12",
            "PENSTOCK__SERVER__DATA_DIR": "123",
            "PENSTOCK__SERVER__LOG_FORMAT": "JSON",
            "PENSTOCK__LISTENERS__GRPC": "off",
            "PENSTOCK__TOPIC_DEFAULTS__RETENTION_MS": "5",
            "PENSTOCK_BOOTSTRAP": "not ours",
            "PATH": "/bin",
        },
    )
    assert settings.topics.auto_create is False
    assert settings.topics.partitions == 12
    assert settings.server.data_dir == "123"
    assert settings.server.log_format is LogFormat.JSON
    assert settings.listeners.grpc is None
    assert settings.topic_defaults == {"retention.ms": "5"}


def test_topic_defaults_keep_kafkas_names_and_become_plain_text(toml) -> None:
    path = toml(
        '[topic_defaults]\nretention.ms = 86400000\n"cleanup.policy" = ["compact", "delete"]\n'
        '"min.cleanable.dirty.ratio" = 0.25\n"message.timestamp.type" = "LogAppendTime"\n'
    )
    assert load(path).topic_defaults == {
        "retention.ms": "86400000",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.25",
        "message.timestamp.type": "LogAppendTime",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[log]\nflsh = "sync"\n', "log.flsh: unknown; did you mean log.flush? ({path}:2)"),
        ("[lgo]\nflush = 1\n", "lgo.flush: unknown; did you mean log? ({path}:2)"),
        ("[xyzzy]\n", "xyzzy: unknown; available: "),
        ("log = 5\n", "log: got 5, expected a table with keys, such as [log] ({path}:1)"),
        ('[log]\nflush = "never"\n', "log.flush: got the string 'never', expected sync or os ({path}:2)"),
        ("[log]\nflush = true\n", "log.flush: got True, expected sync or os ({path}:2)"),
        ("[log]\nsync_threads = 0\n", "log.sync_threads: got 0, expected an integer >= 1 ({path}:2)"),
        ("[log]\nsync_threads = 65\n", "log.sync_threads: got 65, expected an integer <= 64 ({path}:2)"),
        ('[log]\nsync_threads = "4"\n', "log.sync_threads: got the string '4', expected an integer ({path}:2)"),
        ("[log]\nsync_threads = 1.5\n", "log.sync_threads: got 1.5, expected an integer ({path}:2)"),
        ("[topics]\nauto_create = 1\n", "topics.auto_create: got 1, expected true or false ({path}:2)"),
        ("[server]\ndata_dir = 5\n", "server.data_dir: got 5, expected a string ({path}:2)"),
        ('[server]\ndata_dir = ""\n', "server.data_dir: got the string '', expected a non-empty string ({path}:2)"),
        ("[listeners]\nkafka = 9092\n", "listeners.kafka: got 9092, expected HOST:PORT or off ({path}:2)"),
        ('[listeners]\nkafka = "9092"\n', "listeners.kafka: '9092' has no port; write HOST:PORT"),
        ('[topic_defaults]\n"retention.m" = 1\n', "did you mean topic_defaults.retention.ms? ({path}:2)"),
        (
            '[topic_defaults]\n"retention.ms" = "x"\n',
            "topic_defaults.retention.ms: got the string 'x', expected an integer from",
        ),
        (
            '[topic_defaults]\n"cleanup.policy" = [1]\n',
            "topic_defaults.cleanup.policy: got the list [1], expected a string",
        ),
        (
            '[topic_defaults]\n"min.compaction.lag.ms" = 9\n"max.compaction.lag.ms" = 1\n',
            "topic_defaults: min.compaction.lag.ms (9) cannot be above",
        ),
        (
            "[groups]\nsession_timeout_ms_min = 10\nsession_timeout_ms_max = 9\n",
            "groups.session_timeout_ms_min: 10 is above groups.session_timeout_ms_max, which is 9",
        ),
        ("[log\n", "{path} is not valid TOML: "),
    ],
)
def test_a_mistake_in_the_file_is_named_where_it_stands(toml, text, says) -> None:
    path = toml(text)
    (problem,) = problems(path)
    assert says.format(path=path) in problem


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PENSTOCK__LOG__FLSH", "os", "log.flsh: unknown; did you mean log.flush? (PENSTOCK__LOG__FLSH)"),
        ("PENSTOCK__LGO__FLUSH", "os", "lgo.flush: unknown; did you mean log? (PENSTOCK__LGO__FLUSH)"),
        ("PENSTOCK__LOG", "os", "log: got the string 'os', expected a table with keys, such as [log] (PENSTOCK__LOG)"),
        ("PENSTOCK__LOG__SYNC_THREADS", "x", "log.sync_threads: got the string 'x', expected an integer"),
        (
            "PENSTOCK__TOPICS__AUTO_CREATE",
            "maybe",
            "topics.auto_create: got the string 'maybe', expected true or false",
        ),
        ("PENSTOCK__TOPIC_DEFAULTS__RETENTION_M", "1", "did you mean topic_defaults.retention.ms?"),
    ],
)
def test_a_mistake_in_the_environment_is_named_too(name, value, says) -> None:
    (problem,) = problems(None, {name: value})
    assert says in problem
    assert problem.endswith(f"({name})")


def test_a_mistake_in_a_flag_names_the_flag() -> None:
    assert problems(None, {}, {"listeners.http": "nowhere"}) == [
        "listeners.http: 'nowhere' has no port; write HOST:PORT, for example 127.0.0.1:9092 (--http)"
    ]


def test_the_name_of_a_cluster_that_cannot_be_says_which_characters_it_may_have() -> None:
    assert problems(None, {}, {"cluster.name": "my shop"}) == [
        "cluster.name: got the string 'my shop', expected letters, digits, dots, underscores and dashes (a-z A-Z 0-9 . _ -), at most 100 of them (--cluster)"
    ]


def test_all_mistakes_are_told_at_once_even_those_that_a_stronger_layer_hides(toml) -> None:
    path = toml('[log]\nflush = "never"\nsync_threads = 0\n')
    told = problems(path, {"PENSTOCK__LOG__FLUSH": "os", "PENSTOCK__X": "1"}, {"listeners.tcp": "?"})
    assert [problem.partition(":")[0] for problem in told] == ["log.flush", "log.sync_threads", "x", "listeners.tcp"]


def test_a_file_that_cannot_be_read_is_named(tmp_path) -> None:
    assert problems(tmp_path / "absent.toml") == [
        f"cannot read the configuration {tmp_path / 'absent.toml'}: No such file or directory"
    ]
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    assert problems(tmp_path / "latin.toml") == [
        f"cannot read the configuration {tmp_path / 'latin.toml'}: it is not UTF-8"
    ]


def test_host_and_port_of_http_speak_where_its_listener_does_not(toml) -> None:
    path = toml("[http]\nport = 1234\n")
    settings = load(path)
    assert settings.listeners.http == Address("127.0.0.1", 1234)
    assert settings.source_of("listeners.http").place == f"{path}:2"
    assert load(path, {"PENSTOCK__HTTP__HOST": "::1"}).listeners.http == Address("::1", 1234)
    assert load(path, {}, {"listeners.http": "off"}).listeners.http is None


def test_empty_sections_are_fine(toml) -> None:
    settings = load(toml("[log]\n[topic_defaults]\n"))
    assert settings.log == Settings().log
    assert settings.topic_defaults == {}


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().log.flush = Flush.OS
