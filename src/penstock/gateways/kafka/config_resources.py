"""Kafka's numbers for configs: kinds of resources, sources and types; and the resources that have configs here."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

from penstock.core.dynamic_configs import ConfigResource, ResourceKind
from penstock.core.groups.configs import check_group_name
from penstock.core.topics.config import ConfigValue
from penstock.core.topics.config_table import ConfigKind, ConfigSource
from penstock.core.topics.names import check_topic_name, is_staging
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.nodes import nodes_of
from penstock.operations.operation import Action


class ResourceType(IntEnum):
    """What a config belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


SOURCES: Final[Mapping[ConfigSource, int]] = {
    ConfigSource.TOPIC: 1,  # DYNAMIC_TOPIC_CONFIG
    ConfigSource.DYNAMIC_BROKER: 2,  # DYNAMIC_BROKER_CONFIG
    ConfigSource.DYNAMIC_DEFAULT: 3,  # DYNAMIC_DEFAULT_BROKER_CONFIG
    ConfigSource.STATIC_BROKER: 4,  # STATIC_BROKER_CONFIG
    ConfigSource.DEFAULT: 5,  # DEFAULT_CONFIG
    ConfigSource.GROUP: 8,  # DYNAMIC_GROUP_CONFIG
}

KINDS: Final[Mapping[ConfigKind, int]] = {
    ConfigKind.BOOLEAN: 1,
    ConfigKind.STRING: 2,
    ConfigKind.INT: 3,
    ConfigKind.LONG: 5,
    ConfigKind.DOUBLE: 6,
    ConfigKind.LIST: 7,
}


def topic_of_resource(name: str, context: RequestContext) -> Topic:
    """The topic that a resource names: ``INVALID_TOPIC`` or ``UNKNOWN_TOPIC_OR_PARTITION`` when there is none."""
    check_topic_name(name)
    return context.broker.topics.require(name)


def check_broker_name(name: str, context: RequestContext) -> None:
    """``INVALID_REQUEST`` unless the name is this broker's id: each broker knows its own configuration only."""
    if name == str(context.broker.node_id):
        return
    other = next((node for node in nodes_of(context) if str(node.node_id) == name), None)
    if other is not None:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"This is broker {context.broker.node_id}. Send the request to broker {name}, at {other.address}.",
        )
    raise PenstockError(
        Reason.INVALID_REQUEST, f"There is no broker {name[:64]!a} here; this one is {context.broker.node_id}."
    )


def refuse_resource(resource_type: int) -> PenstockError:
    """The refusal of a resource that has no configs here."""
    known = {int(kind): kind.name for kind in ResourceType}
    return PenstockError(
        Reason.INVALID_REQUEST,
        f"Resources of type {known.get(resource_type, resource_type)} have no configs. Use TOPIC, BROKER or GROUP.",
    )


def check_topic_alterable(name: str, context: RequestContext) -> None:
    """Whether the caller may change the configs of this topic, and they can be changed."""
    context.require_topic(Action.ALTER, name)
    check_topic_name(name)
    if is_staging(name):
        raise PenstockError(Reason.INVALID_TOPIC, f"{name} belongs to a sink: its configs cannot be changed.")


def alterable(resource_type: int, name: str, context: RequestContext) -> ConfigResource:
    """The broker or group whose configs the caller may change."""
    if resource_type == ResourceType.GROUP:
        context.require_group(Action.ALTER, name)
        check_group_name(name)
        return ConfigResource(ResourceKind.GROUP, name)
    context.require_cluster(Action.ALTER)
    if resource_type != ResourceType.BROKER:
        raise refuse_resource(resource_type)
    if name and not any(str(node) == name for node in _known_nodes(context)):
        raise PenstockError(Reason.INVALID_REQUEST, f"There is no broker {name[:64]!a} in this cluster.")
    return ConfigResource(ResourceKind.BROKER, name)


def _known_nodes(context: RequestContext) -> Iterable[int]:
    """Nodes that are up, or have replicas: what was set on a node that is down can be deleted."""
    topics = context.broker.topics
    return {node.node_id for node in nodes_of(context)}.union(
        *(partition.replicas for topic in topics for partition in topics.partitions(topic))
    )


def named_twice(names: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """The resources that stand more than once in a request. None of their changes is made: it is unclear which one counts."""
    seen: set[tuple[int, str]] = set()
    twice: set[tuple[int, str]] = set()
    for name in names:
        (twice if name in seen else seen).add(name)
    return twice


def refuse_twice(name: str) -> PenstockError:
    """The refusal of such a resource."""
    return PenstockError(Reason.INVALID_REQUEST, f"{name[:64]!a} is listed twice in the request. List it once.")


def values_of(values: Iterable[ConfigValue], wanted: list[str] | None) -> list[ConfigValue]:
    """The configs that were asked for; no list, or an empty one, asks for all."""
    if not wanted:
        return list(values)
    chosen = set(wanted)
    return [value for value in values if value.name in chosen]
