"""The operations that a caller may do, as Kafka's bit sets."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from penstock.gateways.kafka.context import RequestContext
from penstock.operations.operation import Action

NOT_ASKED: Final = -(2**31)
"""What stands in an answer when the request did not ask."""


class Operation(IntEnum):
    """Kafka's numbers; the bit of an operation is 1 shifted by it."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_ACTIONS: Final[Mapping[Operation, Action]] = {
    Operation.READ: Action.READ,
    Operation.WRITE: Action.WRITE,
    Operation.CREATE: Action.CREATE,
    Operation.DELETE: Action.DELETE,
    Operation.ALTER: Action.ALTER,
    Operation.DESCRIBE: Action.DESCRIBE,
    Operation.CLUSTER_ACTION: Action.ALTER,
    Operation.DESCRIBE_CONFIGS: Action.DESCRIBE,
    Operation.ALTER_CONFIGS: Action.ALTER,
    Operation.IDEMPOTENT_WRITE: Action.WRITE,
}
"""What the core is asked, for each."""

_OF_A_TOPIC: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_OF_A_GROUP: Final = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)
_OF_THE_CLUSTER: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


def _bits(operations: tuple[Operation, ...], allowed: Callable[[Action], bool]) -> int:
    return sum(1 << operation for operation in operations if allowed(_ACTIONS[operation]))


TOPIC_OPERATIONS: Final = _bits(_OF_A_TOPIC, lambda _: True)
"""All of them: what everybody has while nobody is refused anything."""
CLUSTER_OPERATIONS: Final = _bits(_OF_THE_CLUSTER, lambda _: True)


def topic_operations(topic: str, context: RequestContext) -> int:
    """What the caller may do with a topic."""
    if context.broker.access.allows_all:
        return TOPIC_OPERATIONS
    return _bits(_OF_A_TOPIC, lambda action: context.allows_topic(action, topic))


def group_operations(group: str, context: RequestContext) -> int:
    """What the caller may do with a group."""
    return _bits(_OF_A_GROUP, lambda action: context.allows_group(action, group))


def cluster_operations(context: RequestContext) -> int:
    """What the caller may do with the cluster."""
    return _bits(_OF_THE_CLUSTER, context.allows_cluster)
