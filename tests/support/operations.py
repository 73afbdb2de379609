"""One value of each operation, made from the types of its fields."""

import types
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from penstock.operations.catalogue import CATALOGUE
from penstock.operations.operation import AnyOperation

_PLAIN: dict[Any, Any] = {str: "x", int: 1, float: 1.5, bool: True, bytes: b"x", UUID: UUID(int=1)}


def sample(kind: Any) -> Any:
    """A value of this type, as full as it can be."""
    kind = getattr(kind, "__supertype__", kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return sample(arguments[0])
    if origin is list:
        return [sample(arguments[0])]
    if origin is tuple:
        return tuple(sample(each) for each in arguments if each is not Ellipsis)
    if origin is frozenset:
        return frozenset({sample(arguments[0])})
    if origin is not None and arguments:
        return {sample(arguments[0]): sample(arguments[1])}
    if issubclass(kind, Enum):
        return next(iter(kind))
    if issubclass(kind, tuple):
        return kind(*map(sample, get_type_hints(kind).values()))
    assert issubclass(kind, msgspec.Struct), kind
    return kind(**{field.name: sample(field.type) for field in msgspec.structs.fields(kind)})


def every_operation() -> list[AnyOperation[Any]]:
    """One of each."""
    return [sample(kind) for kind in CATALOGUE.values()]
