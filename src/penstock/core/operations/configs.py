"""Configs of topics, groups and nodes."""

from typing import TYPE_CHECKING

from penstock.core.dynamic_configs import ConfigResource, ResourceKind
from penstock.core.groups.configs import check_group_name
from penstock.core.operations.handling import answers, works
from penstock.core.operations.rights import may_describe_group, may_describe_topic
from penstock.core.security.access import Caller
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.names import AUDIT_TOPIC, check_topic_name, is_staging
from penstock.core.topics.topics import without_nulls
from penstock.errors import PenstockError, Reason
from penstock.operations import configs
from penstock.operations.operation import Action, Resource

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_KINDS = (ChangeKind.SET, ChangeKind.DELETE, ChangeKind.APPEND, ChangeKind.SUBTRACT)


@answers(configs.DescribeConfigs)
def describe_configs(broker: "Broker", asked: configs.DescribeConfigs, _: Caller) -> dict[str, str]:
    """From the metadata that every node has."""
    if asked.topic is not None:
        check_topic_name(asked.topic)
        return dict(broker.topics.require(asked.topic).overrides)
    return dict(broker.configs.values(_resource(asked)))


@works(configs.AlterConfigs)
async def alter_configs(broker: "Broker", asked: configs.AlterConfigs, caller: Caller) -> None:
    """Returns when the changes are stored."""
    if asked.topic is not None:
        _check_topic(broker, asked.topic, caller)
        await broker.topics.alter(asked.topic, _changes(asked), validate_only=asked.validate_only)
        return
    resource = _resource(asked)
    _check_node(broker, resource)
    await broker.configs.alter(resource, _changes(asked), validate_only=asked.validate_only)


@works(configs.ReplaceConfigs)
async def replace_configs(broker: "Broker", asked: configs.ReplaceConfigs, caller: Caller) -> None:
    """Returns when the changes are stored."""
    if asked.topic is not None:
        _check_topic(broker, asked.topic, caller)
        await broker.topics.replace_configs(asked.topic, asked.configs, validate_only=asked.validate_only)
        return
    resource = _resource(asked)
    _check_node(broker, resource)
    await broker.configs.replace(resource, without_nulls(asked.configs), validate_only=asked.validate_only)


@answers(configs.ListConfiguredResources)
def list_configured_resources(
    broker: "Broker", _: configs.ListConfiguredResources, caller: Caller
) -> configs.ConfiguredResources:
    """All topics, because each has configs."""
    return configs.ConfiguredResources(
        tuple(topic.name for topic in broker.topics if may_describe_topic(broker, caller, topic.name)),
        tuple(name for name in broker.configs.group_names() if may_describe_group(broker, caller, name)),
    )


def _resource(asked: configs.DescribeConfigs | configs.AlterConfigs | configs.ReplaceConfigs) -> ConfigResource:
    if asked.group is not None:
        check_group_name(asked.group)
        return ConfigResource(ResourceKind.GROUP, asked.group)
    if asked.node is None:
        raise PenstockError(Reason.INVALID_REQUEST, "The request names neither a topic, a group nor a node")
    return ConfigResource(ResourceKind.BROKER, asked.node)


def _changes(asked: configs.AlterConfigs) -> list[ConfigChange]:
    for edit in asked.edits:
        if not 0 <= edit.kind < len(_KINDS):
            raise PenstockError(
                Reason.INVALID_REQUEST,
                f"There is no operation {edit.kind}. Use 0 to set, 1 to delete, 2 to append, 3 to subtract.",
            )
    return [ConfigChange(edit.name, _KINDS[edit.kind], edit.value) for edit in asked.edits]


def _check_topic(broker: "Broker", name: str, caller: Caller) -> None:
    check_topic_name(name)
    if name == AUDIT_TOPIC:
        # A shorter retention deletes the record of what was done, also by those who may only operate topics.
        broker.access.require(caller, Action.ALTER, Resource.CLUSTER)
    if is_staging(name):
        raise PenstockError(Reason.INVALID_TOPIC, f"{name} belongs to a sink: its configs cannot be changed.")


def _check_node(broker: "Broker", resource: ConfigResource) -> None:
    """Nodes are known that are up, or have replicas: what was set on a node that is down can be deleted."""
    name = resource.name
    if resource.kind is not ResourceKind.BROKER or name in (configs.ALL_NODES, str(broker.node_id)):
        return
    topics = broker.topics
    known = {*broker.cluster.nodes.nodes}.union(
        *(partition.replicas for topic in topics for partition in topics.partitions(topic))
    )
    if not any(str(node) == name for node in known):
        raise PenstockError(Reason.INVALID_REQUEST, f"There is no broker {name[:64]!a} in this cluster")
