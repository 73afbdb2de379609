"""Authorisation of operations: the one place, beside the lanes of Kafka's fetch and of publishing, that asks :class:`Access`."""

from typing import TYPE_CHECKING, Any

from penstock.core.access import Access, Caller
from penstock.core.queues.moves import REDRIVE_GROUP, dead_letter_topic
from penstock.core.topics.names import staging_topic
from penstock.errors import PenstockError
from penstock.operations.operation import Action, Asked, Resource, Right

if TYPE_CHECKING:
    from penstock.core.broker import Broker


def authorise(broker: "Broker", asked: Asked[Any], caller: Caller) -> None:
    """Raise PenstockError unless the caller has every right that the operation needs."""
    access = broker.access
    if access.allows_all:
        return
    for right in asked.rights:
        if right.resource is Resource.CLUSTER:
            access.require_cluster(caller, right.action)
        elif right.field and (name := getattr(asked, right.field)) is not None:
            _require(access, caller, right, name)


def _require(access: Access, caller: Caller, right: Right, name: str) -> None:
    if right.resource is Resource.TOPIC:
        access.require_topic(caller, right.action, name)
    elif right.resource is Resource.GROUP:
        access.require_group(caller, right.action, name)
    elif right.resource is Resource.SINK:
        access.require_topic(caller, right.action, staging_topic(name))
    else:
        access.require_topic(caller, right.action, dead_letter_topic(name))
        access.require_group(caller, Action.READ, REDRIVE_GROUP)


def may_describe_topic(broker: "Broker", caller: Caller, topic: str) -> bool:
    """Whether a topic may be in a list for this caller."""
    access = broker.access
    if access.allows_all:
        return True
    try:
        access.require_topic(caller, Action.DESCRIBE, topic)
    except PenstockError:
        return False
    return True


def may_describe_group(broker: "Broker", caller: Caller, group: str) -> bool:
    """Whether a group may be in a list for this caller."""
    access = broker.access
    if access.allows_all:
        return True
    try:
        access.require_group(caller, Action.DESCRIBE, group)
    except PenstockError:
        return False
    return True
