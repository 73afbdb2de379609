"""Dynamic configs of the broker, by Kafka's names: their definitions, and where Kafka's other broker configs are set.

:data:`BROKER_CONFIGS` has those that are dynamic in Kafka too and have an effect here. A value is the one that was set for this broker,
else for all brokers, else the one in the broker's configuration file.
"""

from collections.abc import Mapping
from typing import Final

from penstock.core.topics.config import check_configs
from penstock.core.topics.config_table import (
    INT_MAX,
    LONG_MAX,
    TOPIC_CONFIGS,
    ConfigDefinition,
    ConfigKind,
    config_table,
)
from penstock.errors import PenstockError, Reason
from penstock.limits import CONNECTIONS_MAX
from penstock.settings import LogSettings

SENDING_RATE: Final = "leader.replication.throttled.rate"
RECEIVING_RATE: Final = "follower.replication.throttled.rate"
LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
CONNECTIONS: Final = "max.connections"
CONNECTION_RATE: Final = "max.connection.creation.rate"
CONNECTIONS_PER_IP: Final = "max.connections.per.ip"
HOUSEKEEPING_MS: Final = "log.cleaner.backoff.ms"

_TOPIC_CONFIG_OF: Final = {
    definition.broker_names[0]: definition.name
    for definition in TOPIC_CONFIGS.values()
    if definition.broker_names and not definition.is_inert
}
"""The topic config of which a broker config is the default."""


def _broker_wide(definition: ConfigDefinition) -> ConfigDefinition:
    return ConfigDefinition(
        definition.broker_names[0],
        definition.kind,
        definition.default,
        f"For topics that do not set {definition.name}. {definition.documentation}",
        low=definition.low,
        high=definition.high,
        choices=definition.choices,
        may_be_empty=definition.may_be_empty,
    )


BROKER_CONFIGS: Final = config_table(
    *(_broker_wide(TOPIC_CONFIGS[name]) for name in _TOPIC_CONFIG_OF.values()),
    ConfigDefinition(
        SENDING_RATE,
        ConfigKind.LONG,
        str(LONG_MAX),
        "The maximum rate, in bytes per second, at which this broker sends partitions listed in leader.replication.throttled.replicas to replicas that are not in sync.",
        low=1,
    ),
    ConfigDefinition(
        RECEIVING_RATE,
        ConfigKind.LONG,
        str(LONG_MAX),
        "The maximum rate, in bytes per second, at which this broker receives partitions listed in follower.replication.throttled.replicas while its replicas are not in sync.",
        low=1,
    ),
    ConfigDefinition(
        LOG_DIRS_RATE,
        ConfigKind.LONG,
        str(LONG_MAX),
        "The maximum rate of moves between log directories. Accepted and listed, but has no effect: there is one directory.",
        low=1,
    ),
    ConfigDefinition(
        CONNECTIONS,
        ConfigKind.INT,
        str(CONNECTIONS_MAX),
        "The maximum number of open connections, for the Kafka listener and for the JSON lines listener.",
        low=1,
    ),
    ConfigDefinition(
        CONNECTIONS_PER_IP,
        ConfigKind.INT,
        str(INT_MAX),
        "The maximum number of open connections from one address. Further ones are closed.",
        low=1,
    ),
    ConfigDefinition(
        CONNECTION_RATE,
        ConfigKind.INT,
        str(INT_MAX),
        "The maximum number of connections that this broker accepts per second. Further ones are accepted later.",
        low=1,
    ),
    ConfigDefinition(
        HOUSEKEEPING_MS,
        ConfigKind.LONG,
        str(LogSettings().housekeeping_interval_ms),
        "How often the broker checks for records to delete or compact, and for segments to roll.",
        low=10,
        high=24 * 60 * 60 * 1000,
    ),
)

_CLUSTER_WIDE: Final = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})
"""The leader and the controller must use the same value, whichever nodes they are."""

_IN_THE_FILE: Final[Mapping[str, str]] = {
    "advertised.listeners": "listeners.advertised_kafka",
    "auto.create.topics.enable": "topics.auto_create",
    "broker.id": "server.node_id",
    "broker.rack": "cluster.rack",
    "broker.session.timeout.ms": "cluster.lease_ms",
    "connections.max.idle.ms": "limits.connection_idle_ms_max",
    "default.replication.factor": "cluster.replication_factor",
    "fetch.max.bytes": "limits.fetch_bytes_max",
    "group.initial.rebalance.delay.ms": "groups.initial_rebalance_delay_ms",
    "group.max.session.timeout.ms": "groups.session_timeout_ms_max",
    "group.max.size": "groups.members_max",
    "group.min.session.timeout.ms": "groups.session_timeout_ms_min",
    "leader.imbalance.check.interval.seconds": "cluster.balance_ms",
    "listeners": "listeners.kafka",
    "log.dir": "server.data_dir",
    "log.dirs": "server.data_dir",
    "log.flush.interval.messages": "log.flush",
    "log.flush.interval.ms": "log.flush",
    "log.flush.scheduler.interval.ms": "log.flush",
    "max.incremental.fetch.session.cache.slots": "limits.fetch_sessions_max",
    "node.id": "server.node_id",
    "num.partitions": "topics.partitions",
    "offsets.retention.minutes": "groups.offsets_retention_minutes",
    "offsets.topic.num.partitions": "groups.offsets_topic_partitions",
    "offsets.topic.replication.factor": "cluster.replication_factor",
    "replica.lag.time.max.ms": "cluster.lag_ms_max",
    "socket.request.max.bytes": "limits.request_bytes_max",
}
"""The setting in the configuration file that corresponds to a config of Kafka's."""

_INSTEAD: Final[Mapping[str, str]] = {
    "log.retention.check.interval.ms": HOUSEKEEPING_MS,
    "log.retention.hours": "log.retention.ms",
    "log.retention.minutes": "log.retention.ms",
    "log.roll.hours": "log.roll.ms",
}
"""The dynamic config that corresponds to one in other units."""


def broker_config(name: str) -> ConfigDefinition:
    """The config of that name; ``INVALID_REQUEST``, with what to change instead, if it is not dynamic."""
    definition = BROKER_CONFIGS.get(name)
    if definition is not None:
        return definition
    if name in _INSTEAD:
        next_step = f"Set {_INSTEAD[name]} instead"
    elif name in _IN_THE_FILE:
        next_step = f"Set {_IN_THE_FILE[name]} in the broker's configuration file and restart it"
    else:
        next_step = "This broker has no setting for it"
    raise PenstockError(Reason.INVALID_REQUEST, f"{name[:100]} cannot be changed dynamically. {next_step}")


def check_broker_configs(
    values: Mapping[str, str], topic_defaults: Mapping[str, str], *, cluster_wide: bool
) -> dict[str, str]:
    """The normalized values. ``topic_defaults`` are the other topic configs, with which they must be consistent."""
    plain = {name: broker_config(name).check(value) for name, value in values.items()}
    alone = sorted(plain.keys() & _CLUSTER_WIDE)
    if alone and not cluster_wide:
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"{alone[0]} can only be set for all brokers: use an empty broker name (--entity-default in kafka-configs)",
        )
    check_configs({**topic_defaults, **topic_values(plain)}, {})
    return plain


def broker_values(topic_configs: Mapping[str, str]) -> dict[str, str]:
    """Topic configs by the names of the corresponding broker configs."""
    return {broker: topic_configs[topic] for broker, topic in _TOPIC_CONFIG_OF.items() if topic in topic_configs}


def topic_values(values: Mapping[str, str]) -> dict[str, str]:
    """The values that apply to topics, by the names of the topic configs."""
    return {_TOPIC_CONFIG_OF[name]: value for name, value in values.items() if name in _TOPIC_CONFIG_OF}
