"""Authorisation of operations. Only this module, and the publishing of records, calls :class:`Access`; the hot lanes call :func:`authorise_lane`."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.core.queues.moves import REDRIVE_GROUP, dead_letter_topic
from penstock.core.security.access import REASONS, Access, Caller, denied
from penstock.core.security.attempts import BY_PASSWORD
from penstock.errors import PenstockError, Reason
from penstock.limits import ACCESS_DECISIONS_MAX
from penstock.operations.access import CLUSTER_NAME, USER
from penstock.operations.operation import Action, AnyOperation, Resource, Right
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class PartlyRefused(NamedTuple):
    """An operation over many items, some of which the caller has no right to."""

    admitted: Any
    """The operation with the other items."""
    refused: dict[int, Reason]
    """By the position of the item."""

    def names(self, asked: AnyOperation[Any]) -> list[tuple[str, Reason]]:
        """The refused items of the operation that was asked for, by their names."""
        field = next(right.field for right in asked.rights if right.each)
        items = getattr(asked, field)
        return [
            (items[at] if isinstance(items[at], str) else items[at].topic, reason)
            for at, reason in self.refused.items()
        ]

    def complete(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of all items, in order."""
        admitted = iter(results)
        count = len(results) + len(self.refused)
        return tuple(self.refused[at] if at in self.refused else next(admitted) for at in range(count))

    def completing(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Call ``done`` with the results of all items, or with the failure of the whole operation."""
        return lambda found: done(found if isinstance(found, PenstockError) else self.complete(found))


_Question = tuple[Resource, Action, str]


def authorise(broker: "Broker", asked: AnyOperation[Any], caller: Caller) -> PartlyRefused | None:
    """Raise PenstockError unless the caller has every right that the operation needs, except those on single items."""
    access = broker.access
    if access.allows_all:
        return None
    kind = type(asked)
    try:
        names = _NAMES[kind]
    except KeyError:
        names = _NAMES[kind] = _named_by(kind)
    if names is None:
        return None if caller.gateway is Gateway.INTERNAL else _authorise_rights(access, asked, caller)
    # An ack takes some microseconds, and a worker sends many: what was admitted once is looked up.
    key = kind, caller.principal, caller.client, caller.groups, caller.method, names(asked)
    admitted = access.admitted
    if key in admitted or caller.gateway is Gateway.INTERNAL:
        return None
    _authorise_rights(access, asked, caller)
    if len(admitted) >= ACCESS_DECISIONS_MAX:
        admitted.clear()
    admitted.add(key)
    return None


_NAMES: Final[dict[type[AnyOperation[Any]], Callable[[AnyOperation[Any]], object] | None]] = {}
"""What returns the names in an operation, by its kind; None if the decision depends on many items."""


def _named_by(kind: type[AnyOperation[Any]]) -> Callable[[AnyOperation[Any]], object] | None:
    if any(right.each for right in kind.rights):
        return None
    fields = [right.field for right in kind.rights if right.field]
    return attrgetter(*fields) if fields else lambda _asked: None


def _authorise_rights(access: Access, asked: AnyOperation[Any], caller: Caller) -> PartlyRefused | None:
    refused: PartlyRefused | None = None
    for right in asked.rights:
        if right.each:
            # An operation has at most one such right.
            refused = _authorise_each(access, asked, caller, right)
        elif right.any_name:
            _require_any(access, caller, right)
        elif right.resource is Resource.CLUSTER:
            if not right.field or getattr(asked, right.field) is not None:
                access.require(caller, right.action, Resource.CLUSTER)
        elif (
            right.field
            and (name := getattr(asked, right.field)) is not None
            and not _is_self(caller, right, name)
            and not _by_cluster(access, caller, right)
        ):
            for resource, action, each in _questions(right.resource, right.action, name):
                access.require(caller, action, resource, each)
    return refused


def _authorise_each(access: Access, asked: AnyOperation[Any], caller: Caller, right: Right) -> PartlyRefused | None:
    if _by_cluster(access, caller, right):
        return None
    items = getattr(asked, right.field)
    names = [item if isinstance(item, str) else item.topic for item in items]
    reasons = {name: _refusal(access, caller, right.resource, right.action, name) for name in dict.fromkeys(names)}
    refused = {at: reason for at, name in enumerate(names) if (reason := reasons[name]) is not None}
    if not refused:
        return None
    admitted = tuple(item for at, item in enumerate(items) if at not in refused)
    return PartlyRefused(replace(asked, **{right.field: admitted}), refused)


def _by_cluster(access: Access, caller: Caller, right: Right) -> bool:
    """Whether a right on the cluster is enough, and the caller has it."""
    return right.or_cluster is not None and access.allows(caller, right.or_cluster, Resource.CLUSTER)


def _is_self(caller: Caller, right: Right, name: str) -> bool:
    """Whether this is the user itself. A key or a token must not outlive itself by a new password or key."""
    return right.resource is Resource.USER and caller.method in BY_PASSWORD and caller.principal == f"{USER}{name}"


def _require_any(access: Access, caller: Caller, right: Right) -> None:
    if _by_cluster(access, caller, right):
        return
    decision = access.decide_any(caller, right.action, right.resource)
    if not decision.allowed:
        raise denied(caller, right.or_cluster or right.action, Resource.CLUSTER, CLUSTER_NAME, decision)


def _questions(resource: Resource, action: Action, name: str) -> Iterator[_Question]:
    """What rules have to allow."""
    if resource is Resource.SINK:
        yield Resource.TRANSACTIONAL_ID, action, name
    elif resource is Resource.DEAD_LETTERS:
        yield Resource.TOPIC, action, dead_letter_topic(name)
        if action is not Action.READ:
            yield Resource.GROUP, Action.READ, REDRIVE_GROUP
    else:
        yield resource, action, name


def _refusal(access: Access, caller: Caller, resource: Resource, action: Action, name: str) -> Reason | None:
    for asked, needed, each in _questions(resource, action, name):
        if not access.allows(caller, needed, asked, each):
            return REASONS[asked]
    return None


def may(broker: "Broker", caller: Caller, action: Action, resource: Resource, name: str = CLUSTER_NAME) -> bool:
    """Whether the caller may do this: for lists, which leave out the rest, and for descriptions of what the caller may do."""
    access = broker.access
    return access.allows_all or _refusal(access, caller, resource, action, name) is None


def may_describe_topic(broker: "Broker", caller: Caller, topic: str) -> bool:
    """Whether a topic may be in a list for this caller."""
    return may(broker, caller, Action.DESCRIBE, Resource.TOPIC, topic)


def may_describe_group(broker: "Broker", caller: Caller, group: str) -> bool:
    """Whether a group may be in a list for this caller."""
    return may(broker, caller, Action.DESCRIBE, Resource.GROUP, group)
