"""The broker's own settings under Kafka's names, for tools that read them. Read-only: they are set in the TOML file.

Only what is true here is listed. Broker-wide defaults of topic configs stand under their broker-level names.
"""

from collections.abc import Iterator
from typing import Final

from penstock import limits
from penstock.core.broker import BrokerSettings
from penstock.core.config_table import TOPIC_CONFIGS, ConfigKind, ConfigSource
from penstock.core.topic_config import ConfigSynonym, ConfigValue
from penstock.gateways.kafka.context import RequestContext
from penstock.types import NodeId

_MINUTE_MS: Final = 60 * 1000
_HOUR_MS: Final = 60 * _MINUTE_MS


def describe_broker_configs(context: RequestContext) -> list[ConfigValue]:
    """Every config that is listed, by name."""
    values = [*_own_configs(context), *_topic_default_configs(context.broker.settings)]
    return sorted(values, key=lambda value: value.name)


def _own_configs(context: RequestContext) -> Iterator[ConfigValue]:
    broker, bounds = context.broker, context.gateway.bounds
    settings, plain = broker.settings, BrokerSettings(node_id=NodeId(1))
    groups, usual_groups = settings.groups, plain.groups
    topics, usual_topics = settings.topic_defaults, plain.topic_defaults
    node, boolean, number, text = str(settings.node_id), ConfigKind.BOOLEAN, ConfigKind.INT, ConfigKind.STRING
    listener = f"PLAINTEXT://{broker.advertised}"
    yield _value("node.id", number, node, str(plain.node_id), "This broker's number among its peers.")
    yield _value("broker.id", number, node, str(plain.node_id), "The same as node.id.")
    yield _value(
        "process.roles", ConfigKind.LIST, "broker,controller", "broker,controller", "A broker alone does both."
    )
    yield _value(
        "log.dirs", text, settings.data_dir, plain.data_dir, "Where everything lies that must survive a restart."
    )
    yield _value("log.dir", text, settings.data_dir, plain.data_dir, "The same as log.dirs.")
    yield _value("advertised.listeners", text, listener, listener, "What clients are told to connect to.")
    yield _value(
        "auto.create.topics.enable",
        boolean,
        _flag(on=settings.auto_create_topics),
        _flag(on=plain.auto_create_topics),
        "Whether a topic is made when a client first names it.",
    )
    yield _value("delete.topic.enable", boolean, "true", "true", "Topics can be deleted.")
    yield _value("log.cleaner.enable", boolean, "true", "true", "Topics with cleanup.policy=compact are compacted.")
    yield _value("authorizer.class.name", text, "", "", "Nobody is refused anything.")
    yield _number(
        "num.partitions", topics.partition_count, usual_topics.partition_count, "Of a topic made without a number."
    )
    yield _number(
        "default.replication.factor",
        topics.replication_factor,
        usual_topics.replication_factor,
        "Of a topic made without a number.",
    )
    yield _number(
        "offsets.topic.num.partitions",
        groups.offsets_topic_partitions,
        usual_groups.offsets_topic_partitions,
        "Partitions of __consumer_offsets when it is made.",
    )
    yield _number("offsets.topic.replication.factor", 1, 1, "A broker alone has one replica of everything.")
    yield _number(
        "offsets.retention.minutes",
        groups.offsets_retention_ms // _MINUTE_MS,
        usual_groups.offsets_retention_ms // _MINUTE_MS,
        "How long the offsets of an empty group are kept.",
    )
    yield _number(
        "offset.metadata.max.bytes",
        groups.offset_metadata_bytes_max,
        usual_groups.offset_metadata_bytes_max,
        "The longest text that may be committed with an offset.",
    )
    yield _number(
        "group.min.session.timeout.ms",
        groups.session_timeout_ms_min,
        usual_groups.session_timeout_ms_min,
        "The shortest session a member may ask for.",
    )
    yield _number(
        "group.max.session.timeout.ms",
        groups.session_timeout_ms_max,
        usual_groups.session_timeout_ms_max,
        "The longest session a member may ask for.",
    )
    yield _number(
        "group.initial.rebalance.delay.ms",
        groups.initial_rebalance_delay_ms,
        usual_groups.initial_rebalance_delay_ms,
        "How long an empty group waits for more members.",
    )
    yield _number("group.max.size", groups.members_max, usual_groups.members_max, "The most members of one group.")
    yield _number(
        "socket.request.max.bytes", bounds.request_bytes_max, limits.REQUEST_BYTES_MAX, "The largest request."
    )
    yield _number("max.connections", bounds.connections_max, limits.CONNECTIONS_MAX, "Connections at the same time.")
    yield _number(
        "connections.max.idle.ms",
        bounds.connection_idle_ms_max,
        limits.CONNECTION_IDLE_MS_MAX,
        "A connection silent for longer is closed.",
        ConfigKind.LONG,
    )
    yield _number("fetch.max.bytes", bounds.fetch_bytes_max, limits.FETCH_BYTES_MAX, "The most one fetch answers with.")
    yield _number(
        "max.incremental.fetch.session.cache.slots",
        bounds.fetch_sessions_max,
        limits.FETCH_SESSIONS_MAX,
        "Fetch sessions remembered.",
    )


def _topic_default_configs(settings: BrokerSettings) -> Iterator[ConfigValue]:
    configured = settings.topic_defaults.configs
    for definition in TOPIC_CONFIGS.values():
        if definition.broker_names:
            value = configured.get(definition.name, definition.default)
            documentation = f"For topics that do not set {definition.name}. {definition.documentation}"
            yield _value(definition.broker_names[0], definition.kind, value, definition.default, documentation)
    retention = TOPIC_CONFIGS["retention.ms"]
    retention_ms = int(configured.get(retention.name, retention.default))
    # Tools read the coarser units too; where the milliseconds are no whole number of them, they cannot be told.
    for name, unit_ms in (("log.retention.hours", _HOUR_MS), ("log.retention.minutes", _MINUTE_MS)):
        if retention_ms < 0 or retention_ms % unit_ms == 0:
            count = -1 if retention_ms < 0 else retention_ms // unit_ms
            default = int(retention.default) // unit_ms
            yield _number(name, count, default, "The same as log.retention.ms.")


def _flag(*, on: bool) -> str:
    return "true" if on else "false"


def _number(name: str, value: int, default: int, documentation: str, kind: ConfigKind = ConfigKind.INT) -> ConfigValue:
    return _value(name, kind, str(value), str(default), documentation)


def _value(name: str, kind: ConfigKind, value: str, default: str, documentation: str) -> ConfigValue:
    synonyms = [ConfigSynonym(name, default, ConfigSource.DEFAULT)]
    if value != default:
        synonyms.insert(0, ConfigSynonym(name, value, ConfigSource.STATIC_BROKER))
    return ConfigValue(name, kind, value, synonyms[0].source, documentation, tuple(synonyms), read_only=True)
