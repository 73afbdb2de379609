"""The broker's own settings under Kafka's names, for tools that read them. Those of ``BROKER_CONFIGS`` can change while the broker runs; the others are read-only.

Only what is true here is listed. Broker-wide defaults of topic configs have their broker-level names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from penstock.core.broker import Broker
from penstock.core.broker_config import (
    BROKER_CONFIGS,
    CONNECTION_RATE,
    CONNECTIONS_PER_IP,
    HOUSEKEEPING_MS,
    LOG_DIRS_RATE,
    RECEIVING_RATE,
    SENDING_RATE,
)
from penstock.core.topics.config import ConfigLayer, ConfigSynonym, ConfigValue, described
from penstock.core.topics.config_table import TOPIC_CONFIGS, ConfigKind, ConfigSource
from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.nodes import nodes_of
from penstock.limits import CONNECTION_IDLE_MS_MAX, OFFSET_METADATA_BYTES_MAX
from penstock.settings import Authentication, Settings

_MINUTE_MS: Final = 60 * 1000
_HOUR_MS: Final = 60 * _MINUTE_MS
_NUMBERS: Final = (
    ("num.partitions", "topics.partitions", "The default for new topics."),
    ("default.replication.factor", "replication_factor", "The default for new topics."),
    (
        "offsets.topic.num.partitions",
        "groups.offsets_topic_partitions",
        "Partitions of __consumer_offsets when it is created.",
    ),
    (
        "group.min.session.timeout.ms",
        "groups.session_timeout_ms_min",
        "The shortest session timeout that a member may request.",
    ),
    (
        "group.max.session.timeout.ms",
        "groups.session_timeout_ms_max",
        "The longest session timeout that a member may request.",
    ),
    (
        "group.initial.rebalance.delay.ms",
        "groups.initial_rebalance_delay_ms",
        "How long an empty group waits for members before the first rebalance.",
    ),
    ("group.max.size", "groups.members_max", "The maximum number of members of a group."),
    (
        "offsets.retention.minutes",
        "groups.offsets_retention_minutes",
        "How long the offsets of an empty group are retained.",
    ),
    ("socket.request.max.bytes", "limits.request_bytes_max", "The largest request."),
    ("max.connections", "limits.connections_max", "The maximum number of open connections."),
    ("fetch.max.bytes", "limits.fetch_bytes_max", "The largest fetch response."),
    ("max.incremental.fetch.session.cache.slots", "limits.fetch_sessions_max", "The maximum number of fetch sessions."),
)
"""Of each: its name, where its value is in the settings, and what it means."""


def describe_broker_configs(
    context: RequestContext, set_here: Mapping[str, str], set_on_all: Mapping[str, str]
) -> list[ConfigValue]:
    """Every config that is listed, by name, with what was set while the broker runs."""
    broker = context.broker
    settings = broker.settings
    here = broker.cluster.nodes.nodes.get(broker.node_id)
    own = next((node.address for node in nodes_of(context) if node.node_id == broker.node_id), context.advertised)
    values = [
        *_node_configs(broker, f"{_protocol(context)}://{own}"),
        _http_listeners(broker),
        *_numbers(settings),
        _flag(
            "auto.create.topics.enable",
            "Whether a topic is created when a client first uses it.",
            on=settings.topics.auto_create,
        ),
        _number(
            "offset.metadata.max.bytes",
            OFFSET_METADATA_BYTES_MAX,
            OFFSET_METADATA_BYTES_MAX,
            "The longest metadata text of a committed offset.",
        ),
        _number(
            "offsets.topic.replication.factor",
            _replicas_of(broker, OFFSETS_TOPIC),
            1,
            "Replicas of __consumer_offsets.",
        ),
        _value(
            "connections.max.idle.ms",
            ConfigKind.LONG,
            str(settings.limits.connection_idle_ms_max),
            str(CONNECTION_IDLE_MS_MAX),
            "An idle connection is closed after this time.",
        ),
        *_housekeeping_configs(settings.log.housekeeping_interval_ms),
        *_rate_configs(),
        *_topic_default_configs(settings.topic_configs),
    ]
    if here is not None:
        rack = here.rack or ""
        values.append(_value("broker.rack", ConfigKind.STRING, rack, "", "The rack of this broker."))
    layers = [(ConfigSource.DYNAMIC_BROKER, set_here), (ConfigSource.DYNAMIC_DEFAULT, set_on_all)]
    return sorted((_with_layers(value, layers) for value in values), key=lambda value: value.name)


def _protocol(context: RequestContext) -> str:
    """The protocol of the listener that the client used, in Kafka's words."""
    encryption = "PLAINTEXT" if context.listener.tls is None else "SSL"
    is_required = context.broker.settings.security.authentication is Authentication.REQUIRED
    return f"SASL_{encryption}" if is_required else encryption


def describe_all_brokers(values: Mapping[str, str]) -> list[ConfigValue]:
    """What was set for all brokers while they run, and nothing else, as Kafka does."""
    return [
        described(BROKER_CONFIGS[name], [ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT)])
        for name, value in sorted(values.items())
    ]


def _with_layers(value: ConfigValue, layers: Sequence[ConfigLayer]) -> ConfigValue:
    """The value with what was set for it while the broker runs."""
    if value.name not in BROKER_CONFIGS:
        return value
    dynamic = [
        ConfigSynonym(value.name, values[value.name], source) for source, values in layers if value.name in values
    ]
    synonyms = (*dynamic, *value.synonyms)
    return replace(value, value=synonyms[0].value, source=synonyms[0].source, synonyms=synonyms, read_only=False)


def _node_configs(broker: Broker, listener: str) -> Iterator[ConfigValue]:
    node = str(broker.node_id)
    yield _value("node.id", ConfigKind.INT, node, "1", "The id of this broker.")
    yield _value("broker.id", ConfigKind.INT, node, "1", "The same as node.id.")
    roles = "broker,controller"
    yield _value("process.roles", ConfigKind.LIST, roles, roles, "Any broker can be the controller.")
    yield _static("log.dirs", broker.logs.data_dir, "The data directory.")
    yield _static("log.dir", broker.logs.data_dir, "The same as log.dirs.")
    yield _static("advertised.listeners", listener, "The address that clients connect to.")
    yield _value(
        "authorizer.class.name",
        ConfigKind.STRING,
        "",
        "",
        "Access rules are built in: security.authentication turns them on.",
    )
    yield _flag("delete.topic.enable", "Topics can be deleted.", on=True)
    yield _flag("log.cleaner.enable", "Topics with cleanup.policy=compact are compacted.", on=True)


def _http_listeners(broker: Broker) -> ConfigValue:
    if broker.is_alone:
        found = [broker.http]
    else:
        # This node comes first: it is up, since it was just asked.
        nodes = sorted(
            broker.cluster.nodes.nodes.values(), key=lambda node: (node.node_id != broker.node_id, node.node_id)
        )
        found = [node.listeners.get("http") for node in nodes]
    scheme = "https://" if broker.is_http_tls else ""
    shown = ",".join(f"{scheme}{address}" for address in found if address is not None)
    documentation = "The addresses of the HTTP API, with https:// if it uses TLS, on this node and on other nodes that are up; empty if it is off. Exactly-once sinks use it for commits."
    return _value("penstock.http.listeners", ConfigKind.LIST, shown, shown, documentation)


def _replicas_of(broker: Broker, name: str) -> int:
    topic = broker.topics.get(name)
    return 1 if topic is None else topic.replication_factor


def _numbers(settings: Settings) -> Iterator[ConfigValue]:
    """The settings that are numbers, with the defaults of the configuration."""
    defaults = Settings()
    for name, path, documentation in _NUMBERS:
        of = attrgetter(path)
        yield _number(name, of(settings), of(defaults), documentation)


def _housekeeping_configs(interval_ms: int) -> Iterator[ConfigValue]:
    definition = BROKER_CONFIGS[HOUSEKEEPING_MS]
    shown, usual = str(interval_ms), definition.default
    yield _value(HOUSEKEEPING_MS, definition.kind, shown, usual, definition.documentation)
    name, documentation = (
        "log.retention.check.interval.ms",
        f"The same as {HOUSEKEEPING_MS}, unless that was changed dynamically.",
    )
    yield _value(name, definition.kind, shown, usual, documentation)


def _rate_configs() -> Iterator[ConfigValue]:
    for name in (SENDING_RATE, RECEIVING_RATE, LOG_DIRS_RATE, CONNECTIONS_PER_IP, CONNECTION_RATE):
        definition = BROKER_CONFIGS[name]
        yield _value(name, definition.kind, definition.default, definition.default, definition.documentation)


def _topic_default_configs(configured: Mapping[str, str]) -> Iterator[ConfigValue]:
    for definition in TOPIC_CONFIGS.values():
        if definition.broker_names:
            value = configured.get(definition.name, definition.default)
            documentation = f"For topics that do not set {definition.name}. {definition.documentation}"
            yield _value(definition.broker_names[0], definition.kind, value, definition.default, documentation)
    retention = TOPIC_CONFIGS["retention.ms"]
    retention_ms = int(configured.get(retention.name, retention.default))
    # Tools read the coarser units too; where the milliseconds are not a multiple of the unit, it is not listed.
    for name, unit_ms in (("log.retention.hours", _HOUR_MS), ("log.retention.minutes", _MINUTE_MS)):
        if retention_ms < 0 or retention_ms % unit_ms == 0:
            count = -1 if retention_ms < 0 else retention_ms // unit_ms
            default = int(retention.default) // unit_ms
            yield _number(name, count, default, "The same as log.retention.ms.")


def _static(name: str, value: str, documentation: str) -> ConfigValue:
    """What is always from the broker's configuration."""
    synonym = ConfigSynonym(name, value, ConfigSource.STATIC_BROKER)
    return ConfigValue(name, ConfigKind.STRING, value, synonym.source, documentation, (synonym,), read_only=True)


def _flag(name: str, documentation: str, *, on: bool) -> ConfigValue:
    """All flags are on unless somebody turned them off."""
    return _value(name, ConfigKind.BOOLEAN, "true" if on else "false", "true", documentation)


def _number(name: str, value: int, default: int, documentation: str) -> ConfigValue:
    return _value(name, ConfigKind.INT, str(value), str(default), documentation)


def _value(name: str, kind: ConfigKind, value: str, default: str, documentation: str) -> ConfigValue:
    synonyms = [ConfigSynonym(name, default, ConfigSource.DEFAULT)]
    if value != default:
        synonyms.insert(0, ConfigSynonym(name, value, ConfigSource.STATIC_BROKER))
    return ConfigValue(name, kind, value, synonyms[0].source, documentation, tuple(synonyms), read_only=True)
