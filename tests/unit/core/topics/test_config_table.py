import pytest

from penstock.core.topics.config_table import TOPIC_CONFIGS, ConfigKind
from penstock.errors import PenstockError, Reason
from penstock.limits import PARTITIONS_PER_TOPIC_MAX

# What `kafka-configs --describe --all` of Kafka 4 lists for a topic.
KAFKA_TOPIC_CONFIGS = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]


def test_every_topic_config_of_kafka_is_there_and_sorted_with_our_own_among_them() -> None:
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)
    assert [name for name in TOPIC_CONFIGS if not name.startswith("penstock.")] == KAFKA_TOPIC_CONFIGS


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("retention.ms", " 1000 ", "1000"),
        ("retention.ms", "-1", "-1"),
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", " compact , delete,compact ", "compact,delete"),
        ("cleanup.policy", " ", ""),
        ("leader.replication.throttled.replicas", "0:1, 12:3", "0:1,12:3"),
        ("follower.replication.throttled.replicas", "*", "*"),
        ("min.cleanable.dirty.ratio", "0.25", "0.25"),
        ("min.cleanable.dirty.ratio", "1", "1"),
        ("compression.type", "zstd", "zstd"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("segment.bytes", "14", "14"),
        ("flush.ms", str(2**63 - 1), str(2**63 - 1)),
        ("remote.storage.enable", "false", "false"),
        ("leader.replication.throttled.replicas", "", ""),
    ],
)
def test_good_values_are_taken_in_their_plain_form(name: str, text: str, plain: str) -> None:
    assert TOPIC_CONFIGS[name].check(text) == plain


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("retention.ms", "soon", "an integer from -1"),
        ("retention.ms", "-2", "from -1"),
        ("retention.ms", "1_000", "an integer"),
        ("retention.ms", "1.5", "an integer"),
        ("retention.ms", "٣", "an integer"),
        ("retention.ms", str(2**63), "an integer"),
        ("retention.ms", "9" * 5000, "an integer"),
        ("segment.bytes", "13", "from 14"),
        ("segment.bytes", str(2**31), f"to {2**31 - 1}"),
        ("preallocate", "yes", "true or false"),
        ("cleanup.policy", "compact,drop", "any of compact, delete"),
        ("leader.replication.throttled.replicas", "0:1,nonsense", "pairs of partition:broker"),
        ("min.cleanable.dirty.ratio", "1.1", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number"),
        ("min.cleanable.dirty.ratio", "many", "a number"),
        ("compression.type", "none", "uncompressed"),
        ("message.timestamp.type", "createtime", "CreateTime"),
        ("remote.storage.enable", "true", "'false' only"),
        ("local.retention.ms", "-3", "from -2"),
        ("penstock.tier.format", "csv", "one of parquet, delta, iceberg"),
        ("penstock.tier.location", "x" * 4097, "at most 4096 characters"),
        ("min.cleanable.dirty.ratio", "0." + "0" * 4096, "at most 4096 characters"),
        (
            "leader.replication.throttled.replicas",
            ",".join(f"{n}:1" for n in range(80_000)),
            "at most 409600 characters",
        ),
    ],
)
def test_bad_values_are_refused_with_what_is_accepted(name: str, text: str, says: str) -> None:
    with pytest.raises(PenstockError) as caught:
        TOPIC_CONFIGS[name].check(text)
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert name in caught.value.text
    assert says in caught.value.text


def test_the_throttled_replicas_of_the_largest_topic_fit() -> None:
    replicas = ",".join(
        f"{partition}:{node}" for partition in range(PARTITIONS_PER_TOPIC_MAX) for node in (101, 102, 103)
    )
    for name in ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"):
        assert TOPIC_CONFIGS[name].check(replicas) == replicas


@pytest.mark.parametrize("definition", TOPIC_CONFIGS.values(), ids=TOPIC_CONFIGS)
def test_every_config_documents_itself_and_says_what_it_takes(definition) -> None:
    assert definition.documentation.endswith(".")
    assert definition.accepts()
    assert isinstance(definition.kind, ConfigKind)
