"""Authorisation of operations. Only this module, and the publishing of records, calls :class:`Access`; the hot lanes call :func:`authorise_lane`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from penstock.core.queues.moves import REDRIVE_GROUP, dead_letter_topic
from penstock.core.security.access import Access, Caller
from penstock.core.topics.names import staging_topic
from penstock.errors import PenstockError, Reason
from penstock.operations.operation import Action, AnyOperation, Resource, Right

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class PartlyRefused(NamedTuple):
    """An operation over many items, some of which the caller has no right to."""

    admitted: Any
    """The operation with the other items."""
    refused: dict[int, Reason]
    """By the position of the item."""

    def complete(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of all items, in order."""
        admitted = iter(results)
        count = len(results) + len(self.refused)
        return tuple(self.refused[at] if at in self.refused else next(admitted) for at in range(count))

    def completing(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Call ``done`` with the results of all items, or with the failure of the whole operation."""
        return lambda found: done(found if isinstance(found, PenstockError) else self.complete(found))


def authorise(broker: "Broker", asked: AnyOperation[Any], caller: Caller) -> PartlyRefused | None:
    """Raise PenstockError unless the caller has every right that the operation needs, except those on single items."""
    access = broker.access
    if access.allows_all:
        return None
    refused: PartlyRefused | None = None
    for right in asked.rights:
        if right.resource is Resource.CLUSTER:
            if not right.field or getattr(asked, right.field) is not None:
                access.require_cluster(caller, right.action)
        elif right.each:
            # An operation has at most one such right.
            refused = _authorise_each(access, asked, caller, right)
        elif right.field and (name := getattr(asked, right.field)) is not None:
            _require(access, caller, right.resource, right.action, name)
    return refused


def _authorise_each(access: Access, asked: AnyOperation[Any], caller: Caller, right: Right) -> PartlyRefused | None:
    items = getattr(asked, right.field)
    names = [item if isinstance(item, str) else item.topic for item in items]
    reasons = {name: _refusal(access, caller, right.resource, right.action, name) for name in dict.fromkeys(names)}
    refused = {at: reason for at, name in enumerate(names) if (reason := reasons[name]) is not None}
    if not refused:
        return None
    admitted = tuple(item for at, item in enumerate(items) if at not in refused)
    return PartlyRefused(replace(asked, **{right.field: admitted}), refused)


def _require(access: Access, caller: Caller, resource: Resource, action: Action, name: str) -> None:
    if resource is Resource.TOPIC:
        access.require_topic(caller, action, name)
    elif resource is Resource.GROUP:
        access.require_group(caller, action, name)
    elif resource is Resource.SINK:
        access.require_topic(caller, action, staging_topic(name))
    elif resource is Resource.CLUSTER:
        access.require_cluster(caller, action)
    else:
        access.require_topic(caller, action, dead_letter_topic(name))
        access.require_group(caller, Action.READ, REDRIVE_GROUP)


def _refusal(access: Access, caller: Caller, resource: Resource, action: Action, name: str) -> Reason | None:
    try:
        _require(access, caller, resource, action, name)
    except PenstockError as error:
        return error.reason
    return None


def may(broker: "Broker", caller: Caller, action: Action, resource: Resource, name: str = "") -> bool:
    """Whether the caller may do this: for lists, which leave out the rest, and for descriptions of what the caller may do."""
    access = broker.access
    return access.allows_all or _refusal(access, caller, resource, action, name) is None


def may_describe_topic(broker: "Broker", caller: Caller, topic: str) -> bool:
    """Whether a topic may be in a list for this caller."""
    return may(broker, caller, Action.DESCRIBE, Resource.TOPIC, topic)


def may_describe_group(broker: "Broker", caller: Caller, group: str) -> bool:
    """Whether a group may be in a list for this caller."""
    return may(broker, caller, Action.DESCRIBE, Resource.GROUP, group)


def authorise_lane(broker: "Broker", caller: Caller, action: Action, topic: str) -> None:
    """The check of the hot lanes, which have no operation: PenstockError unless the caller may do this to the topic."""
    access = broker.access
    if not access.allows_all:
        access.require_topic(caller, action, topic)
