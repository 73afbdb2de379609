"""What every operation declares: its result, the rights that it needs, the node that owns it, and whether it may be repeated."""

from enum import Enum
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, get_args

import msgspec

R_co = TypeVar("R_co", covariant=True)


class Action(Enum):
    """What a caller wants to do to a resource: Kafka's operations."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster_action"
    """What the nodes of a cluster do among themselves."""
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    IDEMPOTENT_WRITE = "idempotent_write"
    CREATE_TOKENS = "create_tokens"
    DESCRIBE_TOKENS = "describe_tokens"
    ALL = "all"
    """Only in rules: any of the others."""


class Resource(Enum):
    """What access is granted to: Kafka's types of resources, and two that are made of them."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional_id"
    DELEGATION_TOKEN = "delegation_token"  # noqa: S105 - no password
    USER = "user"
    SINK = "sink"
    """The transactional id of its name. Only operations name it, not rules."""
    DEAD_LETTERS = "dead_letters"
    """The dead-letter topic of a topic; to change it, also the group that redrives from it. Only operations name it, not rules."""


class Right(NamedTuple):
    """One right that an operation needs: an action on the resource that one of its fields names."""

    resource: Resource
    action: Action
    field: str = ""
    """The field with the name of the resource; a field that is None names nothing, and needs no right."""
    each: bool = False
    """The field has many items, and the right is checked for each of them: see :func:`on_each_topic`."""
    or_cluster: Action | None = None
    """An action on the cluster that is enough as well."""
    any_name: bool = False
    """The right to at least one resource of the kind is enough, whatever its name."""


def on_topic(action: Action, field: str = "topic", *, or_cluster: Action | None = None) -> Right:
    """A right on the topic that a field names."""
    return Right(Resource.TOPIC, action, field, or_cluster=or_cluster)


def on_any_topic(action: Action, *, or_cluster: Action) -> Right:
    """A right on at least one topic, or on the cluster."""
    return Right(Resource.TOPIC, action, or_cluster=or_cluster, any_name=True)


def on_group(action: Action, field: str = "group") -> Right:
    """A right on the group that a field names."""
    return Right(Resource.GROUP, action, field)


def on_user(action: Action, field: str = "user") -> Right:
    """A right on the user that a field names: users that have shown their password have it on themselves."""
    return Right(Resource.USER, action, field, or_cluster=action)


def on_each_topic(action: Action, field: str, *, or_cluster: Action | None = None) -> Right:
    """A right on the topic of each item in a field: a tuple of the names of topics, or of things that have a ``topic``.

    An operation has at most one right on each item. The result of such an operation is a tuple with one result per item, in the same order. The handler gets only the items that the
    caller has the right to; the result of any other item is the reason for its refusal.
    """
    return Right(Resource.TOPIC, action, field, each=True, or_cluster=or_cluster)


def on_each_group(action: Action, field: str) -> Right:
    """The same for a field that is a tuple of the names of groups."""
    return Right(Resource.GROUP, action, field, each=True)


def on_transactional_id(action: Action, field: str = "transactional_id") -> Right:
    """A right on the transactional id that a field names."""
    return Right(Resource.TRANSACTIONAL_ID, action, field)


def on_sink(action: Action, field: str = "sink") -> Right:
    """A right on the sink that a field names."""
    return Right(Resource.SINK, action, field)


def on_dead_letters(action: Action, field: str = "topic") -> Right:
    """A right on the dead letters of the topic that a field names."""
    return Right(Resource.DEAD_LETTERS, action, field)


def on_cluster(action: Action, field: str = "") -> Right:
    """A right on the node and the cluster; if there is a field, only unless it is None."""
    return Right(Resource.CLUSTER, action, field)


def listing(resource: Resource) -> Right:
    """Anyone may ask for the list; the handler leaves out what the caller may not describe."""
    return Right(resource, Action.DESCRIBE)


class OwnerKind(Enum):
    """How the node that carries out an operation is found."""

    LEADER = "leader"
    GROUP = "group"
    KEYS = "keys"
    SINKS = "sinks"
    ANY = "any"
    EVERY = "every"


class Owner(NamedTuple):
    """The node that carries out an operation, by the fields that name it."""

    kind: OwnerKind
    fields: tuple[str, ...] = ()


def leader(topic: str = "topic", partition: str = "partition") -> Owner:
    """The leader of the partition that two fields name."""
    return Owner(OwnerKind.LEADER, (topic, partition))


def coordinator(group: str = "group") -> Owner:
    """The coordinator of the group that a field names."""
    return Owner(OwnerKind.GROUP, (group,))


def keys_coordinator(topic: str = "topic") -> Owner:
    """The node that remembers the produce keys of the topic that a field names."""
    return Owner(OwnerKind.KEYS, (topic,))


SINKS_COORDINATOR: Final = Owner(OwnerKind.SINKS)
ANY_NODE: Final = Owner(OwnerKind.ANY)
EVERY_NODE: Final = Owner(OwnerKind.EVERY)
"""Every node answers for its part, and the node that was asked merges the answers."""


class Repeat(Enum):
    """When a failed operation may be sent again without the caller's knowledge."""

    UNDONE = "undone"
    """Only while it is certain that nothing was done."""
    ALWAYS = "always"
    """Whatever the outcome of the first attempt: doing it twice is the same as doing it once."""


class AnyOperation(msgspec.Struct, Generic[R_co], frozen=True):
    """What operations with one result and streams have in common."""

    rights: ClassVar[tuple[Right, ...]]
    belongs_to: ClassVar[Owner]
    repeat: ClassVar[Repeat] = Repeat.UNDONE
    is_change: ClassVar[bool | None] = None
    """Whether the audit log has each of them, as a change; None: if its rights are to create, delete or alter something."""
    audited: ClassVar[tuple[str, ...]] = ()
    """The fields that the audit log shows, beside the resources. Never one with a secret, or with what a caller could mistake for a name."""

    def wait_ms_max(self) -> int:
        """How long the caller allows the owner to wait before it answers."""
        return 0


class Operation(AnyOperation[R_co], Generic[R_co], frozen=True):
    """An operation with one result."""


class Stream(AnyOperation[R_co], Generic[R_co], frozen=True):
    """An operation with any number of items, for which its caller grants credit."""

    credit: int
    """The number of items that may be sent before the caller grants more."""


def result_type(asked: type[AnyOperation[Any]]) -> Any:  # noqa: ANN401  any type
    """The type of an operation's result, or of a stream's items."""
    return get_args(asked.__orig_bases__[0])[0]  # type: ignore[attr-defined]  # typing sets it on every subscripted class
