import pytest

from penstock.core.topics.config import (
    ChangeKind,
    ConfigChange,
    ConfigSynonym,
    TopicConfig,
    apply_changes,
    check_configs,
    describe_topic_configs,
)
from penstock.core.topics.config_table import TOPIC_CONFIGS, ConfigSource
from penstock.errors import PenstockError, Reason
from penstock.log.config import CleanupPolicy, LogConfig
from penstock.records.batch import Compression
from penstock.types import TimestampType


def changed(overrides: dict[str, str], *changes: tuple[str, ChangeKind, str | None]) -> dict[str, str]:
    return apply_changes(overrides, {}, [ConfigChange(*change) for change in changes])


def refused(reason: Reason, *changes: tuple[str, ChangeKind, str | None]) -> str:
    with pytest.raises(PenstockError) as caught:
        changed({}, *changes)
    assert caught.value.reason is reason
    return caught.value.text


def test_the_defaults_are_those_of_the_log_and_of_kafka() -> None:
    config = TopicConfig.resolve({}, {})
    assert config.log == LogConfig()
    assert config.compression is None
    assert not config.is_compacted
    assert config.timestamp_type is TimestampType.CREATE_TIME
    assert (config.max_message_bytes, config.min_insync_replicas) == (1_048_588, 1)


def test_an_override_beats_the_brokers_default_which_beats_the_builtin_one() -> None:
    defaults = {"retention.ms": "10", "segment.ms": "20"}
    config = TopicConfig.resolve({"retention.ms": "30"}, defaults)
    assert (config.retention_ms, config.log.segment_ms, config.retention_bytes) == (30, 20, -1)


def test_every_setting_reaches_the_log() -> None:
    overrides = {
        "segment.bytes": "1001",
        "segment.ms": "1002",
        "index.interval.bytes": "1003",
        "retention.ms": "1004",
        "retention.bytes": "1005",
        "cleanup.policy": "compact,delete",
        "delete.retention.ms": "1006",
        "min.cleanable.dirty.ratio": "0.75",
        "min.compaction.lag.ms": "1007",
        "max.compaction.lag.ms": "1008",
        "file.delete.delay.ms": "1009",
    }
    assert TopicConfig.resolve(overrides, {}).log == LogConfig(
        segment_bytes=1001,
        segment_ms=1002,
        index_interval_bytes=1003,
        retention_ms=1004,
        retention_bytes=1005,
        cleanup=frozenset({CleanupPolicy.COMPACT, CleanupPolicy.DELETE}),
        delete_retention_ms=1006,
        min_cleanable_dirty_ratio=0.75,
        min_compaction_lag_ms=1007,
        max_compaction_lag_ms=1008,
        file_delete_delay_ms=1009,
    )


@pytest.mark.parametrize(
    ("text", "compression", "level"),
    [
        ("producer", None, None),
        ("uncompressed", Compression.NONE, None),
        ("gzip", Compression.GZIP, None),
        ("snappy", Compression.SNAPPY, None),
        ("lz4", Compression.LZ4, 9),
        ("zstd", Compression.ZSTD, 3),
    ],
)
def test_a_codec_comes_with_its_own_level(text: str, compression: Compression | None, level: int | None) -> None:
    config = TopicConfig.resolve({"compression.type": text}, {})
    assert (config.compression, config.compression_level) == (compression, level)


def test_a_chosen_level_counts_for_the_chosen_codec_only() -> None:
    overrides = {"compression.type": "gzip", "compression.gzip.level": "5", "compression.zstd.level": "7"}
    assert TopicConfig.resolve(overrides, {}).compression_level == 5


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(PenstockError) as caught:
        check_configs({"retention.hours": "1"}, {})
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert "retention.hours" in caught.value.text


def test_compaction_lags_are_checked_against_each_other_with_the_defaults_behind_them() -> None:
    check_configs({"min.compaction.lag.ms": "5"}, {"max.compaction.lag.ms": "5"})
    with pytest.raises(PenstockError) as caught:
        check_configs({"min.compaction.lag.ms": "6"}, {"max.compaction.lag.ms": "5"})
    assert caught.value.reason is Reason.INVALID_CONFIG


def test_set_and_delete_change_what_they_name_and_nothing_else() -> None:
    before = {"retention.ms": "1", "segment.ms": "2"}
    after = changed(before, ("retention.ms", ChangeKind.DELETE, None), ("retention.bytes", ChangeKind.SET, " 3 "))
    assert after == {"segment.ms": "2", "retention.bytes": "3"}
    assert before == {"retention.ms": "1", "segment.ms": "2"}


def test_append_and_subtract_start_from_the_value_that_holds() -> None:
    append, subtract = ChangeKind.APPEND, ChangeKind.SUBTRACT
    both = changed({}, ("cleanup.policy", append, "compact,delete"))
    assert both == {"cleanup.policy": "delete,compact"}
    assert changed(both, ("cleanup.policy", subtract, "delete")) == {"cleanup.policy": "compact"}
    defaults = {"cleanup.policy": "compact"}
    change = [ConfigChange("cleanup.policy", append, "delete")]
    assert apply_changes({}, defaults, change) == {"cleanup.policy": "compact,delete"}


def test_changes_that_cannot_be_are_refused() -> None:
    assert "not a list" in refused(Reason.INVALID_CONFIG, ("retention.ms", ChangeKind.APPEND, "5"))
    assert "needs a value" in refused(Reason.INVALID_REQUEST, ("retention.ms", ChangeKind.SET, None))
    assert "any of" in refused(Reason.INVALID_CONFIG, ("cleanup.policy", ChangeKind.APPEND, "drop"))
    assert "no topic config" in refused(Reason.INVALID_CONFIG, ("what.ever", ChangeKind.DELETE, None))
    twice = ("retention.ms", ChangeKind.SET, "5"), ("retention.ms", ChangeKind.DELETE, None)
    assert "twice" in refused(Reason.INVALID_REQUEST, *twice)


def test_a_description_lists_every_config_with_all_places_its_value_could_come_from() -> None:
    layers = [(ConfigSource.DYNAMIC_BROKER, {"retention.ms": "3"}), (ConfigSource.STATIC_BROKER, {"retention.ms": "2"})]
    values = {value.name: value for value in describe_topic_configs({"retention.ms": "1"}, layers)}
    assert list(values) == list(TOPIC_CONFIGS)
    retention = values["retention.ms"]
    assert (retention.value, retention.source, retention.read_only) == ("1", ConfigSource.TOPIC, False)
    assert retention.synonyms == (
        ConfigSynonym("retention.ms", "1", ConfigSource.TOPIC),
        ConfigSynonym("log.retention.ms", "3", ConfigSource.DYNAMIC_BROKER),
        ConfigSynonym("log.retention.ms", "2", ConfigSource.STATIC_BROKER),
        ConfigSynonym("log.retention.ms", "604800000", ConfigSource.DEFAULT),
    )
    assert values["segment.ms"].source is ConfigSource.DEFAULT
    assert values["remote.storage.enable"].read_only


def test_an_empty_cleanup_policy_neither_deletes_nor_compacts() -> None:
    emptied = changed({"cleanup.policy": "delete"}, ("cleanup.policy", ChangeKind.SUBTRACT, "delete"))
    assert emptied == {"cleanup.policy": ""}
    config = TopicConfig.resolve(emptied, {}).log
    assert not config.deletes
    assert not config.compacts


def test_throttled_replicas_are_pairs_of_a_partition_and_a_node() -> None:
    config = TopicConfig.resolve({"leader.replication.throttled.replicas": "0:1,12:3"}, {})
    assert [config.throttled_leaders.has(*pair) for pair in ((0, 1), (12, 3), (1, 0), (0, 3))] == [
        True,
        True,
        False,
        False,
    ]
    assert not config.throttled_followers.has(0, 1)
    assert TopicConfig.resolve({"follower.replication.throttled.replicas": "*"}, {}).throttled_followers.has(5, 6)


TIER = {"penstock.tier.location": "/lake", "penstock.tier.group": "archive"}


@pytest.mark.parametrize(
    ("values", "kept_ms", "kept_bytes"),
    [
        ({"retention.ms": "9", "retention.bytes": "8", "local.retention.ms": "7"}, 9, 8),
        ({**TIER, "retention.ms": "9", "retention.bytes": "8"}, 9, 8),
        ({**TIER, "retention.ms": "9", "local.retention.ms": "7", "local.retention.bytes": "6"}, 7, 6),
        ({**TIER, "retention.ms": "9", "local.retention.ms": "-1"}, -1, -1),
    ],
)
def test_local_retention_decides_what_the_disk_keeps_of_a_topic_with_a_tier(
    values: dict[str, str], kept_ms: int, kept_bytes: int
) -> None:
    config = TopicConfig.resolve(check_configs(values, {}), {})
    assert (config.log.retention_ms, config.log.retention_bytes) == (kept_ms, kept_bytes)
    assert config.retention_ms == 9, "what the topic promises is not changed by its tier"


def test_a_tier_needs_a_group_and_a_topic_that_is_not_compacted() -> None:
    location = {"penstock.tier.location": "/lake"}
    with pytest.raises(PenstockError, match=r"penstock\.tier\.group"):
        check_configs(location, {})
    with pytest.raises(PenstockError, match="compacted"):
        check_configs({**TIER, "cleanup.policy": "compact,delete"}, {})
    assert TopicConfig.resolve({"penstock.tier.group": "archive"}, {}).tier_group is None
