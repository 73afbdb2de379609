"""Kafka's numbers for configs: kinds of resources, sources and types; and changes of the configs of many resources."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Protocol, TypeVar

from penstock.core.topics.config import ConfigValue
from penstock.core.topics.config_table import ConfigKind, ConfigSource
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.nodes import nodes_of
from penstock.gateways.kafka.portions import at_a_time
from penstock.operations.configs import AlterConfigs
from penstock.operations.operation import Operation


class _Resource(Protocol):
    resource_type: int
    resource_name: str


Changed = TypeVar("Changed", bound=_Resource)
Names = dict[str, str]
"""The field of an operation that names a resource, with the name."""


class ResourceType(IntEnum):
    """Kinds of resources that have configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_FIELDS: Final[Mapping[int, str]] = {
    ResourceType.TOPIC: "topic",
    ResourceType.BROKER: "node",
    ResourceType.GROUP: "group",
}
"""The fields of operations on configs that name a resource of each kind."""

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


def check_broker_name(name: str, context: RequestContext) -> None:
    """``INVALID_REQUEST`` unless the name is this broker's id: each broker knows only its own configuration."""
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
    """The refusal for a kind of resource that has no configs."""
    known = {int(kind): kind.name for kind in ResourceType}
    return PenstockError(
        Reason.INVALID_REQUEST,
        f"Resources of type {known.get(resource_type, resource_type)} have no configs. Use TOPIC, BROKER or GROUP.",
    )


async def change_each(
    resources: Sequence[Changed], operation: Callable[[Changed, Names], Operation[None]], context: RequestContext
) -> list[PenstockError | None]:
    """Change each resource; returns the refusals in the same order. A resource that is in the request twice is refused."""
    counts = Counter((each.resource_type, each.resource_name) for each in resources)

    async def change(asked: Changed) -> PenstockError | None:
        kind, name = asked.resource_type, asked.resource_name
        try:
            # A refusal comes before mistakes in the request.
            context.check(AlterConfigs((), validate_only=True, **{_FIELDS.get(kind, "node"): name}))
            if counts[kind, name] > 1:
                raise PenstockError(
                    Reason.INVALID_REQUEST, f"{name[:64]!a} is listed twice in the request. List it once."
                )
            if kind not in _FIELDS:
                raise refuse_resource(kind)
            await context.do(operation(asked, {_FIELDS[kind]: name}))
        except PenstockError as error:
            return error
        return None

    return await at_a_time(resources, change)


def values_of(values: Iterable[ConfigValue], wanted: list[str] | None) -> list[ConfigValue]:
    """The configs in the list; all of them if there is no list, or an empty one."""
    if not wanted:
        return list(values)
    chosen = set(wanted)
    return [value for value in values if value.name in chosen]
