"""Quotas of users, client ids and addresses."""

from enum import Enum

import msgspec

from penstock.operations.operation import ANY_NODE, Action, Operation, Repeat, on_cluster


class EntityPart(msgspec.Struct, frozen=True, order=True):
    """One part of an entity: ``user``, ``client-id`` or ``ip``, and its name; None for all those without a quota of their own."""

    kind: str
    name: str | None = None


QuotaEntity = tuple[EntityPart, ...]
"""What a quota applies to: a user, a client id, a user with a client id, or an address."""


class Match(Enum):
    """How a filter matches the name of a part."""

    EXACT = "exact"
    DEFAULT = "default"
    ANY = "any"


class PartFilter(msgspec.Struct, frozen=True):
    """A part that an entity must have. ``name`` only with an exact match."""

    kind: str
    match: Match = Match.ANY
    name: str | None = None


class EntityQuotas(msgspec.Struct, frozen=True):
    """The quotas of an entity, by key."""

    entity: QuotaEntity
    quotas: dict[str, float]


class DescribeQuotas(Operation[tuple[EntityQuotas, ...]], frozen=True):
    """The quotas of all entities that have every part of the filter; ``strict``: and no other parts."""

    parts: tuple[PartFilter, ...] = ()
    strict: bool = False

    rights = (on_cluster(Action.DESCRIBE_CONFIGS),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class AlterQuotas(Operation[None], frozen=True):
    """Change quotas of one entity, all of them or none: a value sets the quota of that key, None removes it."""

    entity: QuotaEntity
    changes: dict[str, float | None]
    validate_only: bool = False

    rights = (on_cluster(Action.ALTER_CONFIGS),)
    belongs_to = ANY_NODE
    audited = ("entity", "changes")
    repeat = Repeat.ALWAYS
